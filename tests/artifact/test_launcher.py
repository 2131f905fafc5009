"""How the file finds a Python, keeps the caller's surroundings away from itself, and hands them on to the command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.artifact.pythons import interpreters
from tests.artifact.support import PLAIN_PATH, Zipapp, finish, links, one_line, start
from tests.support.contract import YEARLY
from tests.support.need import need, need_program

WHO = "import sys; print(sys.version_info.minor)"
OLD = ("2.7", "3.6", "3.7", "3.8", "3.9")


@pytest.fixture
def zipapp(zipapp: Zipapp, used_caches: Path) -> Zipapp:
    """The file as most starts find it."""
    zipapp.environment["XDG_CACHE_HOME"] = str(used_caches)
    return zipapp


def old_python(version: str) -> str:
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    found = sorted(root.glob(f"versions/{version}.*/bin/python")) or [
        Path(p) for p in [shutil.which(f"python{version}")] if p
    ]
    need(found, f"no Python {version} in pyenv or on PATH")
    return str(found[0])


def only(folder: Path, **programs: str) -> str:
    """A PATH with these programs and nothing else."""
    folder.mkdir()
    for name, program in programs.items():
        (folder / name.replace("_", ".")).symlink_to(program)
    return str(folder)


class TestWhichPython:
    @pytest.mark.parametrize("version", OLD)
    def test_one_that_is_too_old(self, zipapp: Zipapp, version: str) -> None:
        python = old_python(version)
        path = only(zipapp.folder / "old", python3=python, python=python, **{f"python{version}": python})
        one_line(zipapp.run("--version", PATH=path), 2, "no CPython 3.10 or newer on PATH")
        one_line(zipapp.run("--version", DISLOCK_PYTHON=python), 2, "3.10", version)
        one_line(zipapp.run("--version", command=[python]), 2, "3.10", version)

    def test_none_at_all(self, zipapp: Zipapp) -> None:
        one_line(zipapp.run("--version", PATH="/nowhere"), 2, "no CPython 3.10 or newer on PATH", "DISLOCK_PYTHON")

    def test_the_newest_on_path(self, zipapp: Zipapp) -> None:
        path = ""
        for version in ("3.10", "3.13", "3.12"):
            need(version in interpreters(), f"no CPython {version}")
            path += only(zipapp.folder / version, **{f"python{version}": interpreters()[version].path}) + ":"
        assert zipapp.python(WHO, PATH=path) == "13"
        # RHEL 9: python3 is 3.9, and beside it lies a newer one by its full name.
        (zipapp.folder / "3.10" / "python3").symlink_to(old_python("3.9"))
        assert zipapp.python(WHO, PATH=str(zipapp.folder / "3.10")) == "10"

    def test_one_that_is_only_called_python3(self, zipapp: Zipapp, python: str) -> None:
        assert zipapp.run("--version", PATH=only(zipapp.folder / "short", python3=python)).code == 0

    def test_dislock_python_wins(self, zipapp: Zipapp) -> None:
        need("3.10" in interpreters(), "no CPython 3.10")
        assert zipapp.python(WHO, DISLOCK_PYTHON=interpreters()["3.10"].path) == "10"
        path = only(zipapp.folder / "named", mine=interpreters()["3.10"].path) + ":" + zipapp.environment["PATH"]
        assert zipapp.python(WHO, DISLOCK_PYTHON="mine", PATH=path) == "10"
        one_line(zipapp.run("--version", DISLOCK_PYTHON="/no/such"), 2, "DISLOCK_PYTHON", "/no/such")

    def test_a_shim_of_a_version_manager_is_the_last_resort(self, zipapp: Zipapp, python: str) -> None:
        shims = zipapp.folder / "shims"
        shims.mkdir()
        for name in ("python3.15", "python3"):
            (shims / name).write_text("#!/bin/sh\necho 'not that version' >&2; exit 127\n")
            (shims / name).chmod(0o755)
        assert zipapp.run("--version", PATH=f"{shims}:{links(zipapp.folder / 'bin', python)}").code == 0
        one_line(zipapp.run("--version", PATH=str(shims)), 2, "no CPython 3.10 or newer")
        (shims / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        assert zipapp.run("--version", PATH=str(shims)).code == 0

    def test_never_one_out_of_the_working_directory(self, zipapp: Zipapp) -> None:
        evil = zipapp.folder / "python3.15"
        evil.write_text("#!/bin/sh\necho evil\n")
        evil.chmod(0o755)
        for path in (":", ".", ""):
            assert "evil" not in zipapp.run("--version", PATH=f"{path}:{zipapp.environment['PATH']}").out

    @pytest.mark.parametrize("options", [[], ["-I"], ["-S"], ["-E", "-s", "-B"]])
    def test_python_in_front_of_the_file(self, zipapp: Zipapp, python: str, options: list[str]) -> None:
        ran = zipapp.run("--version", command=[python, *options])
        assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")


#: What a start finds out of an interpreter that starts but cannot serve, and what makes another look like it.
UNFIT = {
    "lacks zlib of Python's own modules": "absent.add('zlib')",
    "lacks _ssl of Python's own modules": "absent.add('_ssl')",
    "lacks _ctypes of Python's own modules": "absent.add('_ctypes')",
    "lacks asyncio, decimal of Python's own modules": "absent.update(['asyncio', 'decimal'])",
    "is pypy, and CPython is needed": "sys.implementation.name = 'pypy'",
    "is free-threaded": "sys.abiflags = 't'",
}


def unfit(place: Path, python: str, change: str) -> None:
    """A Python that looks like one that cannot serve."""
    place.parent.mkdir(exist_ok=True)
    place.write_text(
        f"#!{python} -ESs\nimport sys, _frozen_importlib_external as external\nabsent = set()\n{change}\n"
        "find = external.PathFinder.find_spec\n"
        "external.PathFinder.find_spec = staticmethod(lambda n, *more: None if n in absent else find(n, *more))\n"
        "sys.builtin_module_names = tuple(n for n in sys.builtin_module_names if n not in absent)\n"
        f"sys.executable = {str(place)!r}\nprogram = sys.argv[sys.argv.index('-c') + 1]\n"
        "sys.argv[:] = ['-c', *sys.argv[sys.argv.index('-c') + 2:]]\nexec(program)\n"
    )
    place.chmod(0o755)


class TestPythonThatCannotServe:
    @pytest.mark.parametrize("name", ["python3.15", "python3"])
    @pytest.mark.parametrize("why", UNFIT)
    def test_the_next_one_is_taken(self, zipapp: Zipapp, python: str, why: str, name: str) -> None:
        unfit(zipapp.folder / "first" / name, python, UNFIT[why])
        links(zipapp.folder / "second", python, name)
        (zipapp.folder / "second" / "od").symlink_to(shutil.which("od") or "")
        path = f"{zipapp.folder / 'first'}:{zipapp.folder / 'second'}"
        code = "import os, sys; print(sys.executable, sorted(name for name in os.environ if 'islock_' in name))"
        zipapp.environment |= {"with-dash": "x"}
        out = zipapp.python(f"{code}; print(os.environ['with-dash'])", PATH=path)
        assert out == f"{zipapp.folder / 'second' / name} []\nx"

    @pytest.mark.parametrize("why", UNFIT)
    def test_it_is_the_only_one(self, zipapp: Zipapp, python: str, why: str) -> None:
        place = zipapp.folder / "only" / "python3.15"
        unfit(place, python, UNFIT[why])
        for tool in ("od", "sh"):
            (place.parent / tool).symlink_to(shutil.which(tool) or "")
        ran = zipapp.run("--version", PATH=str(place.parent))
        named = zipapp.run("--version", DISLOCK_PYTHON=str(place))
        if why == "is free-threaded":
            # It has no natives, and runs where there is a libpq.
            assert (ran.code, named.code) == (0, 0)
            return
        one_line(ran, 2, f"{place} {why.partition(',')[0]}", "no other CPython 3.10 or newer on PATH")
        one_line(named, 2, f"{place} {why}")

    def test_in_front_of_the_file_without_zlib(self, zipapp: Zipapp, python: str) -> None:
        code = (
            "import sys, runpy, _frozen_importlib_external as external, zipimport\n"
            "find = external.PathFinder.find_spec\n"
            "external.PathFinder.find_spec = staticmethod(lambda n, *more: None if n == 'zlib' else find(n, *more))\n"
            "sys.builtin_module_names = tuple(n for n in sys.builtin_module_names if n != 'zlib')\n"
            "sys.modules['zlib'] = None\n"
            "sys.argv[:] = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        one_line(zipapp.run("--version", command=[python, "-c", code]), 2, "lacks zlib")


class TestIsolation:
    @pytest.fixture
    def hostile(self, zipapp: Zipapp) -> Zipapp:
        """Modules that would be taken for the file's own or for Python's, wherever Python could look for some."""
        user = zipapp.folder / "home" / ".local" / "lib"
        folders = [
            zipapp.folder,
            zipapp.folder / "hostile",
            *(user / f"python3.{n}" / "site-packages" for n in range(10, 16)),
        ]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (
                "dislock",
                "psycopg",
                "logging",
                "fcntl",
                "zipfile",
                "_bootstrap",
                "sitecustomize",
                "usercustomize",
            ):
                (folder / f"{name}.py").write_text("import os; os.write(1, b'hostile'); raise SystemExit(99)\n")
        zipapp.environment |= {
            "PYTHONPATH": str(zipapp.folder / "hostile"),
            "PYTHONHOME": "/nowhere",
            "PYTHONSTARTUP": "/nowhere",
            "HOME": str(zipapp.folder / "home"),
            "PYTHONUSERBASE": str(zipapp.folder / "home" / ".local"),
        }
        return zipapp

    def test_as_a_program(self, hostile: Zipapp) -> None:
        for _ in range(2):
            ran = hostile.run("--version")
            assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")

    def test_with_dash_i(self, hostile: Zipapp, python: str) -> None:
        ran = hostile.run("--version", command=[python, "-I"])
        assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")

    def test_a_scripts_imports(self, hostile: Zipapp) -> None:
        script = hostile.folder / "scripts" / "job.py"
        script.parent.mkdir()
        script.write_text("import logging, dislock, psycopg; print(dislock.__file__)")
        ran = hostile.run("--python", str(script))
        assert ran.out.startswith(str(hostile.root)), ran

    def test_python_in_front_needs_no_module_of_the_callers(self, zipapp: Zipapp, python: str) -> None:
        hostile = zipapp.folder / "hostile"
        hostile.mkdir()
        for name in ("dislock", "psycopg"):
            (hostile / f"{name}.py").write_text("raise SystemExit(99)\n")
        assert zipapp.run("--version", command=[python], PYTHONPATH=str(hostile)).code == 0


#: Whatever an environment can hold.
GIVEN = {
    b"PLAIN": b"value",
    b"EMPTY": b"",
    b"LINES": b"one\ntwo\n\nfour\n",
    b"BYTES": b"\xff\xfe\x01 \x7f",
    b"with-dash.and.dot": b"no shell's name",
    b"BASH_FUNC_f%%": b"() {  echo; }",
    b"1st": b"a number",
    b"PYTHONPATH": b"/nowhere",
    b"PYTHONSAFEPATH": b"1",
    b"LC_ALL": b"C",
    b"IFS": b"x",
    b"PS4": b"$",
    b"part": b"7",
    b"python": b"monty",
    b"DISLOCK_ENVIRON_0": b"00",
    b"DISLOCK_SLOT": b"of an outer one",
    b"LARGE": b"0123456789" * 9_000,
}


class TestEnvironment:
    """The command gets it byte for byte, whichever shell is /bin/sh."""

    def environment_of_the_command(
        self, zipapp: Zipapp, shell: list[str], url: str, given: dict[bytes, bytes]
    ) -> dict[bytes, bytes]:
        ours = {"DATABASE_URL": url, "LOCK_KEY": "job", "CRON_SCHEDULE": YEARLY, "CRON_TZ": "UTC", **zipapp.environment}
        environment = {os.fsencode(k): os.fsencode(v) for k, v in ours.items()} | given
        # cat, and no shell, which would change it again.
        done = subprocess.run(
            [*shell, str(zipapp.file), "DATABASE_URL", "cat", "/proc/self/environ"],
            env=environment, cwd=zipapp.folder, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        after = dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)
        assert {name for name in after if name.startswith(b"DISLOCK_")} - environment.keys() <= {
            b"DISLOCK_LOCK_KEY", b"DISLOCK_OWNER", b"DISLOCK_SLOT", b"DISLOCK_FENCING_TOKEN"
        }  # fmt: skip
        assert after.pop(b"DISLOCK_SLOT") != environment.pop(b"DISLOCK_SLOT", None)
        for name in (b"DISLOCK_LOCK_KEY", b"DISLOCK_OWNER", b"DISLOCK_FENCING_TOKEN"):
            del after[name]
        assert after == environment
        return after

    @pytest.mark.integration
    @pytest.mark.parametrize("shell", ["", "dash", "bash --posix", "bash", "busybox sh"])
    def test_it_is_as_it_came(self, zipapp: Zipapp, database_url: str, shell: str) -> None:
        if shell:
            need_program(shell.partition(" ")[0])
        self.environment_of_the_command(zipapp, shell.split(), database_url, GIVEN)

    @pytest.mark.integration
    @pytest.mark.parametrize(
        "given", [{}, {b"PWD": b"/elsewhere", b"OLDPWD": b"x", b"SHLVL": b"7", b"_": b"/usr/bin/cron"}]
    )
    def test_what_shells_set_for_themselves(self, zipapp: Zipapp, database_url: str, given: dict[bytes, bytes]) -> None:
        self.environment_of_the_command(zipapp, [], database_url, given)

    @pytest.mark.integration
    def test_where_it_cannot_be_read(self, zipapp: Zipapp, database_url: str) -> None:
        """Without od it is at least what the shell makes of it."""
        python = os.path.realpath(zipapp.folder / "bin" / "python3.15")
        path = only(zipapp.folder / "few", **{"python3.15": python, "sh": "/bin/sh", "cat": "/bin/cat"})
        ours = {
            "DATABASE_URL": database_url,
            "LOCK_KEY": "job",
            "CRON_SCHEDULE": YEARLY,
            "CRON_TZ": "UTC",
            **zipapp.environment,
            "PATH": path,
        }
        process = start(
            ["unshare", "--mount", "sh", "-ec", f'mount -t tmpfs none /proc; exec "{zipapp.file}" DATABASE_URL env'],
            {**ours, "PATH": f"{path}:{PLAIN_PATH}", "PLAIN": "value"}, zipapp.folder,
        )  # fmt: skip
        ran = finish(process)
        need("permitted" not in ran.err, "file systems cannot be mounted here: needs root with CAP_SYS_ADMIN")
        assert ran.code == 0, ran
        assert ran.told["PLAIN"] == "value"
        assert not [name for name in ran.told if name.startswith("DISLOCK_ENVIRON")]

    def test_a_scripts_environment_too(self, zipapp: Zipapp) -> None:
        given = {"with-dash": "x", "PYTHONPATH": "/nowhere", "SHLVL": "9"}
        zipapp.environment |= given
        assert zipapp.python("import os; print(sorted(os.environ))") == str(sorted(zipapp.environment))


class TestScript:
    """`--python` runs a script with both packages importable."""

    @pytest.fixture
    def script(self, zipapp: Zipapp) -> Path:
        script = zipapp.folder / "my scripts" / "job.py"
        script.parent.mkdir()
        (script.parent / "beside.py").write_text("")
        script.write_text(
            "import sys, beside, dislock, pg_advisory_lock, sqlalchemy, psycopg\n"
            "assert __name__ == '__main__' and sys.argv[0] == __file__ == sys.argv[0]\n"
            "print(psycopg.pq.__impl__, sys.argv[1:], sqlalchemy.__version__ >= '2')\n"
            "sys.exit(7)\n"
        )
        return script

    def test_both_packages(self, zipapp: Zipapp, script: Path) -> None:
        for _ in range(2):
            ran = zipapp.run("--python", str(script), "--version", "b c")
            assert (ran.code, ran.out, ran.err) == (7, "binary ['--version', 'b c'] True\n", "")
        assert any((cache / "sqlalchemy").is_dir() for cache in zipapp.caches())

    def test_zone_data_come_with_it(self, zipapp: Zipapp) -> None:
        code = "import zoneinfo; zoneinfo.reset_tzpath([]); print(zoneinfo.ZoneInfo('Asia/Tokyo'))"
        assert zipapp.python(code) == "Asia/Tokyo"

    def test_a_module_of_the_hosts(self, zipapp: Zipapp) -> None:
        assert zipapp.run("--python", "-m", "this").out.startswith("The Zen of Python")

    def test_there_is_none(self, zipapp: Zipapp) -> None:
        one_line(zipapp.run("--python", "/no/such.py"), 2, "/no/such.py")
        one_line(zipapp.run("--python"), 2, "usage")
        one_line(zipapp.run("--python", "--help"), 2, "usage")

    def test_an_error_in_it_is_its_own(self, zipapp: Zipapp, script: Path) -> None:
        script.write_text("open('/no/such.txt')\n")
        ran = zipapp.run("--python", str(script))
        assert ran.code == 1
        assert "Traceback" in ran.err
        assert "/no/such.txt" in ran.err
