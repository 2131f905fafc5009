"""The runtime folder on a host, for what can only be seen from the same host."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dislock.drivers.targets import CERTIFICATE_FILES
from tests.artifact.test_cache import in_mounts
from tests.image import engine

START = engine.ROOT / "build" / "folder" / "inside" / "start.py"


def output(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.integration
def test_the_environment_byte_by_byte(folder: Path, variables: dict[str, str]) -> None:
    odd = {b"EMPTY": b"", b"BYTES": b"\xff\xfe", b"LINES": b"a\nb=c", b"PYTHONHOME": b"/nowhere", b"LC_ALL": b"C"}
    loader = {b"LD_PRELOAD": b"", b"LD_AUDIT": b"", b"LD_LIBRARY_PATH": b"/nowhere", b"GLIBC_TUNABLES": b"x"}
    given = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()} | odd | loader
    done = subprocess.run(
        [folder / "dislock", "DATABASE_URL", "/usr/bin/env", "-0"], env=given, capture_output=True, check=True
    )
    got = dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)
    ours = {b"DISLOCK_LOCK_KEY", b"DISLOCK_OWNER", b"DISLOCK_FENCING_TOKEN"}
    assert {name: value for name, value in got.items() if name not in ours} == given
    assert got.keys() >= ours


def test_it_works_through_a_link_and_after_a_move(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "dislock"
    link.symlink_to(folder / "dislock")
    assert output(link, "--version").startswith("dislock ")
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved, symlinks=True)
    assert output(moved / "dislock", "--version") == output(link, "--version")


def test_a_place_that_the_loader_cannot_take(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "a:b"
    place.mkdir()
    shutil.copy2(folder / "dislock", place)
    done = subprocess.run([place / "dislock"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("dislock: the loader cannot take a folder")
    assert done.stderr.count("\n") == 1


def test_its_python(folder: Path) -> None:
    python = folder / "bin" / "python3"
    assert output(python, "-c", "import sys; print(sys.executable, sys.prefix)") == f"{python} {folder}\n"
    again = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'print(1)'], text=True))"
    assert output(python, "-c", again) == "1\n\n"
    assert output(python, "-c", "import pg_advisory_lock, psycopg; print(psycopg.pq.__impl__)") == "binary\n"


def test_a_script_with_both_packages(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, dislock, pg_advisory_lock; print(sys.argv[1:])")
    assert output(folder / "dislock", "--python", str(script), "a", "-b") == "['a', '-b']\n"


def test_a_script_gets_the_environment_as_it_came(folder: Path) -> None:
    # Empty, so that the script's own loader has nothing to say of it either.
    hidden = {"LD_PRELOAD": "", "LD_AUDIT": "", "LD_LIBRARY_PATH": "/nowhere"}
    code = "import os; print(sorted(n for n in os.environ if n.endswith(('_PRELOAD', '_AUDIT', '_PATH'))))"
    assert output(folder / "dislock", "--python", "-c", code, **hidden) == f"{sorted(hidden)}\n"


@pytest.mark.parametrize("place", ["new", "new/and/deeper"])
def test_an_installation_is_readable_for_everybody(folder: Path, tmp_path: Path, place: str) -> None:
    target = tmp_path / place
    subprocess.run([folder / "dislock", "--install", target], umask=0o077, check=True, timeout=60)
    made = {path: path.stat().st_mode & 0o777 for path in [*tmp_path.rglob("*")]}
    assert {oct(mode) for path, mode in made.items() if path.is_dir()} == {"0o755"}
    assert {oct(mode) for path, mode in made.items() if not path.is_dir()} == {"0o644", "0o755"}
    assert output(target / "dislock", "--version").startswith("dislock ")


def test_an_installation_keeps_the_mode_of_a_folder_that_was_there(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir(mode=0o700)
    output(folder / "dislock", "--install", target)
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif("os.geteuid() != 0", reason="needs root to mount a file system")
def test_an_installation_that_cannot_be_started_is_a_failure(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "noexec"
    place.mkdir()
    mounts = f'mount -t tmpfs -o noexec none "{place}"'
    command = [*in_mounts(mounts), str(folder / "dislock"), "--install", str(place / "dislock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"dislock: cannot install into {place}/dislock: [Errno 13] Permission denied")
    assert done.stderr.count("\n") == 1


def test_arguments_by_the_thousand(folder: Path) -> None:
    many = [str(number) for number in range(100_000)]
    count = "import sys; print(len(sys.argv) - 1)"
    assert output(folder / "bin" / "python3", "-c", count, *many) == "100000\n"


def test_no_library_of_the_host_is_loaded(folder: Path) -> None:
    code = (
        "import ctypes, psycopg, socket, ssl, sqlite3\n"
        "socket.getaddrinfo('localhost', 1)\n"
        "print(*{line.split(maxsplit=5)[5] for line in open('/proc/self/maps') if '.so' in line}, sep='', end='')"
    )
    loaded = output(folder / "bin" / "python3", "-c", code).splitlines()
    assert len(loaded) > 10
    assert [path for path in loaded if not path.startswith(str(folder))] == []


@pytest.mark.integration
def test_its_start_costs_no_more_than_the_zipapps(folder: Path, variables: dict[str, str], tmp_path: Path) -> None:
    if not (engine.ROOT / "dist" / "dislock.pyz").exists():
        engine.make_zipapp()
    own = {"DISLOCK_PYTHON": sys.executable, "XDG_CACHE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    programs = {folder / "dislock": variables, engine.ROOT / "dist" / "dislock.pyz": {**variables, **own}}
    # Processor time and the best of many, in turns: so that what else this machine does has little to say.
    taken = [[processor_time(program, environment) for program, environment in programs.items()] for _ in range(12)]
    of_folder, of_zipapp = (min(column) for column in zip(*taken, strict=True))
    assert of_folder <= 1.1 * of_zipapp


def processor_time(program: Path, environment: dict[str, str]) -> float:
    process = subprocess.Popen([program, "DATABASE_URL", "true"], env={"PATH": os.environ["PATH"], **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_certificates_are_looked_for_where_dislock_does() -> None:
    assigned = {
        node.targets[0].id: node.value
        for node in ast.parse(START.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(assigned["CERTIFICATES"]) == CERTIFICATE_FILES


@pytest.mark.integration
def test_its_name_in_the_process_list(folder: Path, variables: dict[str, str]) -> None:
    told = output(folder / "dislock", "DATABASE_URL", "/bin/sh", "-c", "cat /proc/$PPID/comm", **variables, PATH="/bin")
    assert told == "dislock\n"
