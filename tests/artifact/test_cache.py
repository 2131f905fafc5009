"""Where the file unpacks itself to, and what may go wrong there."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.artifact.support import (
    IMPLEMENTATION,
    NOBODY,
    STRANGER,
    Zipapp,
    finish,
    one_line,
    start,
    temporary_folders,
    written,
)
from tests.support.need import need
from tests.support.wait import until

as_root = pytest.mark.skipif("os.geteuid() != 0", reason="needs root: other accounts, mounts")
MONTH = 31 * 86400
OK = "dislock "


def works(zipapp: Zipapp) -> None:
    """The extensions are loaded, from where they belong."""
    impl, place = zipapp.python(IMPLEMENTATION).split(" ", 1)
    assert impl == "binary"
    assert place.startswith(str(zipapp.root))


def in_mounts(mounts: str) -> list[str]:
    """What runs a program where other file systems are mounted, which nobody else sees."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    need(done.returncode == 0, "file systems cannot be mounted here: needs root with CAP_SYS_ADMIN")
    return ["unshare", "--mount", "sh", "-ec", f'{mounts}\nexec "$@"', "sh"]


def age(folder: Path, seconds: float) -> None:
    os.utime(folder / ".lock", (time.time() - seconds,) * 2)


class TestFirstStart:
    def test_only_this_hosts_part_is_unpacked(self, zipapp: Zipapp) -> None:
        works(zipapp)
        [cache] = zipapp.caches()
        assert len(list(cache.rglob("_psycopg*.so"))) == 1
        assert len({library.name.split("-")[0] for library in cache.rglob("libpq*")}) == 1
        assert not list(cache.rglob("sqlalchemy"))
        assert written(zipapp.root) <= 16_000_000

    @pytest.mark.parametrize("umask", [0o077, 0o000, 0o777])
    def test_nobody_else_can_read_or_write_it(self, zipapp: Zipapp, umask: int) -> None:
        ran = finish(zipapp.start("--version", umask=umask))
        assert (ran.code, ran.err) == (0, "")
        ours = [zipapp.root.parent, zipapp.root, *zipapp.root.rglob("*")]
        assert len(ours) > 100
        # Python's own folders for bytecode have the mode that the umask leaves, inside of ours.
        for path in (path for path in ours if "__pycache__" not in path.parts):
            assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o700), path

    def test_it_is_used_again(self, zipapp: Zipapp) -> None:
        zipapp.run("--version")
        [cache] = zipapp.caches()
        extension = next(cache.rglob("_psycopg*.so"))
        before = extension.stat()
        works(zipapp)
        assert extension.stat().st_ino == before.st_ino
        assert zipapp.caches() == [cache]

    def test_each_start_names_the_build(self, zipapp: Zipapp, python: str) -> None:
        starts = [zipapp.run("--version", command=command) for command in ([], [], [python])]
        [cache] = zipapp.caches()
        build = cache.name.partition("-")[0]
        assert [f"(build {build}, " in ran.out for ran in starts] == [True] * 3, starts

    def test_forty_at_once(self, zipapp: Zipapp) -> None:
        started = [zipapp.start("--python", "-c", IMPLEMENTATION) for _ in range(40)]
        ended = [finish(process) for process in started]
        assert [(ran.code, ran.err, ran.out.split(" ")[0]) for ran in ended] == [(0, "", "binary")] * 40
        assert len(zipapp.caches()) == 1
        assert zipapp.half_made() == []

    def test_killed_in_the_middle_of_it(self, zipapp: Zipapp) -> None:
        process = zipapp.start("--version")
        until(lambda: zipapp.root.is_dir() and any(zipapp.half_made()) and any(zipapp.half_made()[0].rglob("*.py")))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert zipapp.caches() == []
        [half] = zipapp.half_made()
        works(zipapp)
        assert half.is_dir()
        # A later build clears it away, once it is certain that nobody works on it.
        os.utime(half, (time.time() - MONTH,) * 2)
        age(half, MONTH)
        [cache] = zipapp.caches()
        cache.rename(zipapp.root / "0123456789abcdef-cpython-311-glibc-x86_64")
        works(zipapp)
        until(lambda: not half.exists())

    def test_stopped_in_the_middle_of_it(self, zipapp: Zipapp) -> None:
        zipapp.root.mkdir(parents=True, mode=0o700)
        zipapp.root.parent.chmod(0o700)
        with (zipapp.root / ".unpacking").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = zipapp.start("--version")
            ran = finish(process)
        assert (ran.code, ran.err) == (0, "")

    def test_what_the_machine_lost_in_a_crash_is_unpacked_again(self, zipapp: Zipapp) -> None:
        zipapp.run("--version")
        [cache] = zipapp.caches()
        until(lambda: (cache / ".lock").stat().st_size == 0, what="the note that the cache is on the disk")
        (cache / ".lock").write_text("of another boot")
        next(cache.rglob("_psycopg*.so")).write_bytes(b"")
        works(zipapp)

    def test_a_folder_that_is_not_whole_is_replaced(self, zipapp: Zipapp) -> None:
        zipapp.run("--version")
        [cache] = zipapp.caches()
        (cache / ".lock").unlink()
        next(cache.rglob("_psycopg*.so")).unlink()
        works(zipapp)
        assert zipapp.caches() == [cache]

    def test_a_damaged_file_is_told(self, zipapp: Zipapp) -> None:
        content = bytearray(zipapp.file.read_bytes())
        # In the middle of this host's natives.
        content[len(content) // 2 - 6_000_000 :: 1_000_000] = bytes(
            len(content[len(content) // 2 - 6_000_000 :: 1_000_000])
        )
        zipapp.file.unlink()
        zipapp.file.write_bytes(content)
        zipapp.file.chmod(0o755)
        one_line(zipapp.run("--version"), 1, "damaged", str(zipapp.file))
        assert zipapp.caches() == zipapp.half_made() == []


class TestName:
    def test_renamed_linked_and_called_from_elsewhere(self, zipapp: Zipapp) -> None:
        works(zipapp)
        strange = zipapp.folder / "a b" / "-ü 'x\".bin"
        strange.parent.mkdir()
        zipapp.file.rename(strange)
        link = zipapp.folder / "job"
        link.symlink_to(strange)
        for argv in ([str(strange)], [str(link)], ["./job"], ["sh", "job"], ["env", "-S", "./job"]):
            ran = finish(start([*argv, "--python", "-c", IMPLEMENTATION], zipapp.environment, zipapp.folder))
            assert ran.out.startswith("binary"), ran
            assert ran.err == ""
        assert len(zipapp.caches()) == 1

    def test_found_on_path(self, zipapp: Zipapp) -> None:
        path = f"{zipapp.folder}:{zipapp.environment['PATH']}"
        ran = finish(
            start(["/usr/bin/env", "dislock.pyz", "--version"], {**zipapp.environment, "PATH": path}, Path("/"))
        )
        assert (ran.code, ran.out[:8]) == (0, OK)


class TestPlace:
    def test_named_by_dislock_cache(self, zipapp: Zipapp) -> None:
        place = zipapp.folder / "elsewhere" / "deeper"
        assert zipapp.run("--version", DISLOCK_CACHE=str(place)).code == 0
        assert len(zipapp.caches(place)) == 1
        assert zipapp.caches() == []

    @pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
    def test_one_that_others_can_write_is_refused(self, zipapp: Zipapp, mode: int) -> None:
        place = zipapp.folder / "shared"
        place.mkdir()
        place.chmod(mode)
        one_line(zipapp.run("--version", DISLOCK_CACHE=str(place)), 2, "DISLOCK_CACHE", str(place), "written by others")
        assert list(place.iterdir()) == []

    @as_root
    def test_a_private_group_is_nobody_else(self, zipapp: Zipapp) -> None:
        """The default of several distributions: ~/.cache has mode 0775, and a group that has only its user in it."""
        home = zipapp.folder / "home"
        cache = home / ".cache"
        cache.mkdir(parents=True)
        for path in (home, cache):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o775)
        in_accounts = (
            'printf "me:x:65534:65534::%s:/bin/sh\\n" "$HOME" >"$HOME/passwd"; '
            'printf "%s:x:65534:%s\\n" "$GROUP" "$MEMBERS" '
            '>"$HOME/group"; mount --bind "$HOME/passwd" /etc/passwd; mount --bind "$HOME/group" /etc/group; '
            'exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; exit'
        )
        for group, members, told in (("me", "", 0), ("me", "me", 0), ("me", "you", 1), ("us", "", 1)):
            zipapp.environment |= {"HOME": str(home), "GROUP": group, "MEMBERS": members, "XDG_CACHE_HOME": ""}
            ran = zipapp.run("--version", command=in_mounts(in_accounts))
            assert (ran.code, ran.out[:8], ran.err.count("written by others")) == (0, "dislock ", told), ran

    def test_one_that_others_can_exchange_is_refused(self, zipapp: Zipapp) -> None:
        above = zipapp.folder / "open"
        above.mkdir()
        place = above / "mine"
        place.mkdir(mode=0o700)
        above.chmod(0o777)
        one_line(zipapp.run("--version", DISLOCK_CACHE=str(place)), 2, str(above), "written by others")

    def test_a_ready_cache_that_others_can_write_is_not_loaded(self, zipapp: Zipapp) -> None:
        zipapp.run("--version")
        [cache] = zipapp.caches()
        next(cache.rglob("site-packages/dislock/__init__.py")).write_text("print('loaded')")
        cache.chmod(0o777)
        ran = zipapp.run("--version")
        assert "loaded" not in ran.out
        assert "written by others" in ran.err

    def test_an_unsafe_one_that_nobody_named_is_told_and_not_used(self, zipapp: Zipapp) -> None:
        zipapp.root.mkdir(parents=True)
        zipapp.root.chmod(0o777)
        ran = zipapp.run("--version", HOME=str(zipapp.folder))
        assert (ran.code, ran.out[:8]) == (0, OK)
        assert ran.err.count("\n") == 1
        assert str(zipapp.root) in ran.err
        assert list(zipapp.root.iterdir()) == []

    @as_root
    def test_another_users_folder_is_refused(self, zipapp: Zipapp) -> None:
        place = zipapp.folder / "theirs"
        place.mkdir(mode=0o700)
        os.chown(place, NOBODY, NOBODY)
        one_line(zipapp.run("--version", DISLOCK_CACHE=str(place)), 2, str(place), str(NOBODY))

    @as_root
    def test_root_ignores_the_home_that_sudo_left(self, zipapp: Zipapp) -> None:
        home = zipapp.folder / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        code = "import dislock; print(dislock.__file__)"
        assert zipapp.python(code, XDG_CACHE_HOME="", HOME=str(home)).startswith("/var/cache/dislock/")
        assert list(home.iterdir()) == []

    @as_root
    def test_a_second_account_makes_its_own(self, zipapp: Zipapp) -> None:
        works(zipapp)
        home = zipapp.folder / "second"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        ran = zipapp.run("--version", uid=NOBODY, XDG_CACHE_HOME="", HOME=str(home))
        assert (ran.code, ran.err) == (0, "")
        assert len(zipapp.caches(home / ".cache" / "dislock")) == 1

    @as_root
    def test_a_second_account_may_use_what_root_lets_it_read(self, zipapp: Zipapp) -> None:
        # A cache is one Python's; one below root's home, say, is not for everybody.
        chosen = zipapp.run("--python", "-c", "import sys; print(sys.executable)", uid=NOBODY).out.strip()
        zipapp.run("--version", DISLOCK_PYTHON=chosen)
        subprocess.run(["chmod", "-R", "a+rX", str(zipapp.root.parent)], check=True)
        ran = zipapp.run("--python", "-c", IMPLEMENTATION, uid=NOBODY)
        assert ran.out == f"binary {zipapp.caches()[0]}/site-packages/psycopg/__init__.py\n"

    @as_root
    def test_a_second_account_that_cannot_read_it_is_told(self, zipapp: Zipapp) -> None:
        zipapp.run("--version")
        ran = zipapp.run("--version", uid=NOBODY, DISLOCK_CACHE=str(zipapp.root))
        assert (ran.code, ran.out[:8]) == (0, OK)
        assert "DISLOCK_CACHE cannot be used" in ran.err
        assert ran.err.count("\n") == 1

    @as_root
    def test_no_home_and_no_passwd_entry(self, zipapp: Zipapp) -> None:
        before = temporary_folders()
        ran = zipapp.run("--python", "-c", IMPLEMENTATION, uid=STRANGER, XDG_CACHE_HOME="")
        assert ran.err == ""
        assert ran.out.startswith("binary /tmp/dislock-")
        until(lambda: temporary_folders() <= before, what="the removal of the temporary folder")

    @as_root
    def test_home_comes_from_passwd(self, zipapp: Zipapp) -> None:
        # nobody's is /nonexistent, which it cannot make.
        ran = zipapp.run("--python", "-c", IMPLEMENTATION, uid=NOBODY, XDG_CACHE_HOME="")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("binary /tmp/dislock-")


@as_root
class TestFileSystems:
    def test_read_only(self, zipapp: Zipapp) -> None:
        mounts = 'mkdir "$XDG_CACHE_HOME"; mount -t tmpfs -o ro none "$XDG_CACHE_HOME"'
        ran = zipapp.run("--python", "-c", IMPLEMENTATION, command=in_mounts(mounts))
        # Root has another place of its own.
        assert ran.out.startswith("binary /var/cache/dislock/"), ran
        assert ran.err == ""

    def test_read_only_with_a_ready_cache(self, zipapp: Zipapp) -> None:
        zipapp.run("--version")
        mounts = 'mount --bind "$XDG_CACHE_HOME" "$XDG_CACHE_HOME"; mount -o remount,ro,bind "$XDG_CACHE_HOME"'
        for code in (IMPLEMENTATION, "import sqlalchemy, sys; print('binary', sys.path[0])"):
            ran = zipapp.run("--python", "-c", code, command=in_mounts(mounts))
            assert ran.out.startswith(f"binary {zipapp.root}"), ran
            assert ran.err == ""

    @pytest.mark.parametrize("options", ["size=3m", "size=3m,nr_inodes=20", "noexec"])
    def test_full_or_not_for_programs(self, zipapp: Zipapp, options: str) -> None:
        mounts = (
            f'mkdir "$DISLOCK_CACHE"; mount -t tmpfs -o {options},mode=700 none "$DISLOCK_CACHE"; '
            'trap \'ls -A "$DISLOCK_CACHE" >&2\' EXIT; "$@"; exit'
        )
        small = str(zipapp.folder / "small")
        ran = zipapp.run("--python", "-c", IMPLEMENTATION, command=in_mounts(mounts), DISLOCK_CACHE=small)
        assert ran.out.startswith("binary /tmp/dislock-"), ran
        assert "DISLOCK_CACHE cannot be used" in ran.err
        # One line, and what ls found: no half of a cache.
        assert set(ran.err.splitlines()[1:]) <= {".unpacking"}

    @pytest.mark.parametrize("options", ["size=1m", "noexec", "ro"])
    def test_there_is_no_place_at_all(self, zipapp: Zipapp, options: str) -> None:
        places = '"$XDG_CACHE_HOME" /var/cache /tmp /var/tmp /dev/shm'
        # The file itself lies below /tmp, so it is kept in sight.
        mounts = (
            f'mount --bind "{zipapp.folder}" /mnt; mkdir "$XDG_CACHE_HOME"; '
            f'for place in {places}; do mount -t tmpfs -o {options},mode=1777 none "$place" || exit 9; done; cd /mnt'
        )
        zipapp.environment["XDG_CACHE_HOME"] = "/mnt/caches"
        zipapp.environment["PATH"] = "/mnt/bin:/usr/bin:/bin"
        process = start(
            [*in_mounts(mounts), "./dislock.pyz", "--version"],
            zipapp.environment,
            zipapp.folder,
        )
        one_line(finish(process), 1, "no place to unpack to", "/tmp", "DISLOCK_CACHE")


class TestTemporary:
    """Without a cache, a folder of the run's own goes with it."""

    @pytest.fixture
    def homeless(self, zipapp: Zipapp) -> Zipapp:
        zipapp.environment |= {"DISLOCK_CACHE": "/proc/nowhere", "TMPDIR": str(zipapp.folder / "tmp")}
        (zipapp.folder / "tmp").mkdir()
        return zipapp

    def left(self, homeless: Zipapp) -> list[Path]:
        return list((homeless.folder / "tmp").iterdir())

    def test_it_goes_at_the_end(self, homeless: Zipapp) -> None:
        ran = homeless.run("--version")
        assert ran.code == 0
        assert ran.err.startswith("dislock: DISLOCK_CACHE cannot be used: ")
        until(lambda: not self.left(homeless))

    def test_it_goes_after_a_kill(self, homeless: Zipapp) -> None:
        process = homeless.start("--python", "-c", "print('ready', flush=True); import time; time.sleep(100)")
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(self.left(homeless)) == 1
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until(lambda: not self.left(homeless))

    def test_it_is_there_as_long_as_it_is_needed(self, homeless: Zipapp) -> None:
        ran = homeless.run("--python", "-c", "import time; time.sleep(0.3); import sqlalchemy, psycopg; print('fine')")
        assert ran.out == "fine\n"
        until(lambda: not self.left(homeless))

    def test_no_process_of_ours_is_the_commands_child(self, homeless: Zipapp) -> None:
        code = "import os\ntry: os.waitpid(-1, os.WNOHANG); print('a child')\nexcept ChildProcessError: print('none')"
        assert homeless.run("--python", "-c", code).out == "none\n"


class TestOldCaches:
    """Those of other builds go when they have not been used for 30 days, and only then."""

    def new_build(self, zipapp: Zipapp, **ages: float) -> dict[str, Path]:
        """Caches of other builds, last used so long ago; then a first start of this one."""
        works(zipapp)
        [cache] = zipapp.caches()
        others = {}
        for number, (name, seconds) in enumerate(ages.items()):
            others[name] = zipapp.root / f"{number:016x}-cpython-311-glibc-x86_64"
            others[name].mkdir(mode=0o700)
            (others[name] / ".lock").touch()
            (others[name] / "file").touch()
            age(others[name], seconds)
        cache.rename(zipapp.root / f"{99:016x}-cpython-311-glibc-x86_64")
        return others

    def tidied(self, zipapp: Zipapp) -> None:
        works(zipapp)
        until(
            lambda: all((cache / ".lock").stat().st_size == 0 for cache in zipapp.caches()), what="the end of tidying"
        )

    def test_old_ones_go(self, zipapp: Zipapp) -> None:
        others = self.new_build(zipapp, old=MONTH, young=20 * 86400)
        users_own = zipapp.root / "notes"
        users_own.mkdir()
        (users_own / ".lock").touch()
        age(users_own, MONTH)
        works(zipapp)
        until(lambda: not others["old"].exists())
        assert (others["young"] / "file").exists()
        assert users_own.exists()

    def test_one_that_is_in_use_stays(self, zipapp: Zipapp) -> None:
        others = self.new_build(zipapp, used=MONTH, old=MONTH)
        with (others["used"] / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            works(zipapp)
            until(lambda: not others["old"].exists())
            assert (others["used"] / "file").exists()

    def test_a_run_holds_its_own_until_it_ends(self, zipapp: Zipapp) -> None:
        works(zipapp)
        [cache] = zipapp.caches()
        process = subprocess.Popen(
            [str(zipapp.file), "--python", "-c", "print('ready', flush=True); input()"],
            env=zipapp.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with (cache / ".lock").open() as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            process.communicate(b"\n")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_start_says_that_it_was_used(self, zipapp: Zipapp) -> None:
        works(zipapp)
        [cache] = zipapp.caches()
        age(cache, MONTH)
        works(zipapp)
        assert time.time() - (cache / ".lock").stat().st_mtime < 1000
