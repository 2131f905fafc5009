"""What each shell that /bin/sh may be makes of the unusual: PATH, broken interpreters, large environments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.artifact.support import PLAIN_PATH, SHELLS, Zipapp, finish, one_line, shell, start
from tests.support.contract import YEARLY
from tests.support.need import need


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("path", ["", ":", "/nonexistent:", ":/usr/bin", ".", "/nonexistent::/usr/bin:/bin"])
def test_no_program_out_of_the_working_directory(zipapp: Zipapp, name: str, path: str) -> None:
    for program in ("od", "python", "python3", *(f"python3.{minor}" for minor in range(10, 16)), "shopt", "mine"):
        evil = zipapp.folder / program
        evil.write_text('#!/bin/sh\necho evil; echo "$0" >>evil\n')
        evil.chmod(0o755)
    for named in ({}, {"DISLOCK_PYTHON": "mine"}, {"DISLOCK_PYTHON": "/nonexistent/python"}):
        done = subprocess.run(
            [*shell(name), str(zipapp.file), "--version"],
            env={**zipapp.environment, "PATH": path, **named}, cwd=zipapp.folder, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 2)
        assert b"evil" not in done.stdout
    assert not (zipapp.folder / "evil").exists()


class TestInterpreter:
    @pytest.mark.parametrize("name", SHELLS)
    def test_a_named_one_that_cannot_be_started(self, zipapp: Zipapp, name: str) -> None:
        broken = zipapp.folder / "broken"
        broken.write_text("#!/no/such/interpreter\n")
        broken.chmod(0o755)
        for path in ("/tmp", "/etc/passwd", "/no/such", "bin", "no-such-name"):
            ran = zipapp.run("--version", command=shell(name), DISLOCK_PYTHON=path)
            one_line(ran, 2, f"DISLOCK_PYTHON is {path}", "no such program")
        ran = zipapp.run("--version", command=shell(name), DISLOCK_PYTHON=str(broken))
        assert ran.code == 2
        # Before it, the shell has its say.
        assert ran.err.splitlines()[-1] == f"dislock: DISLOCK_PYTHON is {broken}, which cannot be started"

    @pytest.mark.parametrize("name", SHELLS)
    def test_one_on_path_that_cannot_be_started(self, zipapp: Zipapp, python: str, name: str) -> None:
        folder = zipapp.folder / "both"
        folder.mkdir()
        (folder / "python3.15").write_text("#!/no/such/interpreter\n")
        (folder / "python3.15").chmod(0o755)
        (folder / "python3.10").symlink_to(python)
        for arguments in (["--version"], ["--python", "-c", "import sys; print('dislock', sys.argv)", "a b", ""]):
            ran = zipapp.run(*arguments, command=shell(name), PATH=str(folder))
            assert (ran.code, ran.out[:8]) == (0, "dislock ")
        assert ran.out == "dislock ['-c', 'a b', '']\n"
        (folder / "python3.10").unlink()
        ran = zipapp.run("--version", command=shell(name), PATH=str(folder))
        assert ran.code == 2
        assert ran.err.splitlines()[-1].startswith("dislock: no CPython 3.10 or newer on PATH")


class TestLargeEnvironment:
    COUNT = """
import os
large = sum(len(value) for name, value in os.environ.items() if name.startswith("LARGE"))
print(large, "DISLOCK_ENVIRON_0" in os.environ)
"""

    @pytest.mark.parametrize("name", SHELLS)
    @pytest.mark.parametrize("thousands", [300, 400, 600, 1000, 1500])
    def test_it_is_handed_on(self, zipapp: Zipapp, name: str, thousands: int) -> None:
        zipapp.environment |= {f"LARGE_{number}": "x" * 50_000 for number in range(thousands // 50)}
        ran = zipapp.run("--python", "-c", self.COUNT, command=shell(name))
        assert (ran.code, ran.out, ran.err) == (0, f"{thousands}000 False\n", "")

    @pytest.mark.parametrize("name", SHELLS)
    def test_with_many_arguments(self, zipapp: Zipapp, name: str) -> None:
        large = {f"LARGE_{number}": "x" * 50_000 for number in range(6)}
        many = ["x" * 100_000] * 14
        done = subprocess.run(
            [*shell(name), str(zipapp.file), "--python", "-c", self.COUNT, *many],
            env={**zipapp.environment, **large}, capture_output=True, check=False, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "300000 False\n"), done


ENVIRONMENT = "import os; print(sorted(os.environb.items()))"
#: Starts a program with an environment that no Python would make.
NAMELESS = """
import ctypes, os, sys
strings = lambda given: (ctypes.c_char_p * (len(given) + 1))(*given, None)
environment = [name + b"=" + value for name, value in os.environb.items()] + [b"=x", b"=C:=y"]
arguments = [os.fsencode(argument) for argument in sys.argv[1:]]
ctypes.CDLL(None).execve(arguments[0], strings(arguments), strings(environment))
"""


@pytest.mark.parametrize("name", SHELLS)
class TestOddEnvironment:
    def test_nothing_in_it(self, pyz: Path, name: str) -> None:
        need(any(Path(f"{folder}/python3").exists() for folder in PLAIN_PATH.split(":")), "no Python in /usr/bin")
        ran = finish(start([*shell(name), str(pyz), "--python", "-c", ENVIRONMENT], {}, Path("/")))
        assert (ran.code, ran.out, ran.err) == (0, "[]\n", "")

    @pytest.mark.integration
    def test_a_name_that_is_empty(self, zipapp: Zipapp, python: str, database_url: str, name: str) -> None:
        job = {"DATABASE_URL": database_url, "LOCK_KEY": "job", "CRON_SCHEDULE": YEARLY, "CRON_TZ": "UTC"}
        zipapp.environment |= job | {"with-dash": "x"}
        command = [python, "-c", NAMELESS, *shell(name)]
        ran = zipapp.run("DATABASE_URL", "printenv", "with-dash", command=command)
        assert (ran.code, ran.out, ran.err) == (0, "x\n", "")

    @pytest.mark.parametrize("said", ["gibberish", "zz", "", "00 4"])
    def test_an_od_that_is_another_program(self, zipapp: Zipapp, name: str, said: str) -> None:
        folder = zipapp.folder / "first"
        folder.mkdir()
        (folder / "od").write_text(f"#!/bin/sh\necho '{said}'\n")
        (folder / "od").chmod(0o755)
        path = f"{folder}:{zipapp.environment['PATH']}"
        code = "import os; print(os.environ['PLAIN'], [name for name in os.environ if 'ENVIRON' in name])"
        ran = zipapp.run("--python", "-c", code, command=shell(name), PATH=path, PLAIN="value")
        assert (ran.code, ran.out, ran.err) == (0, "value []\n", "")

    def test_a_function_called_od(self, zipapp: Zipapp, name: str) -> None:
        zipapp.environment |= {"BASH_FUNC_od%%": "() {  echo 41; }", "with-dash": "x"}
        ran = zipapp.run("--python", "-c", "import os; print(os.environ['with-dash'])", command=shell(name))
        assert (ran.code, ran.out, ran.err) == (0, "x\n", "")

    def test_the_launchers_variables_where_it_cannot_be_copied(self, zipapp: Zipapp, name: str) -> None:
        names = ("absolute", "folder", "python", "name", "part", "bytes")
        zipapp.environment |= dict.fromkeys(names, "mine") | {f"LARGE_{n}": "x" * 50_000 for n in range(9)}
        code = f"import os; print([os.environ[name] for name in {names}])"
        ran = zipapp.run("--python", "-c", code, command=shell(name))
        assert (ran.code, ran.out, ran.err) == (0, f"{['mine'] * len(names)}\n", "")

    def test_bashs_variable(self, zipapp: Zipapp, python: str, name: str) -> None:
        """Which shell it is cannot be told by that: what a shell does without the first Python is still done."""
        folder = zipapp.folder / "both"
        folder.mkdir()
        (folder / "python3.15").write_text("#!/no/such/interpreter\n")
        (folder / "python3.15").chmod(0o755)
        ran = zipapp.run("--version", command=shell(name), BASH_VERSION="5.2")
        assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")
        (folder / "python3.10").symlink_to(python)
        ran = zipapp.run("--version", command=shell(name), PATH=str(folder), BASH_VERSION="5.2")
        assert (ran.code, ran.out[:8]) == (0, "dislock ")
        assert "shopt" not in ran.err


def test_a_shell_that_finds_the_file_on_path(zipapp: Zipapp) -> None:
    path = f"{zipapp.folder}:{os.environ['PATH']}"
    process = start([*shell("bash"), "dislock.pyz", "--version"], {**zipapp.environment, "PATH": path}, Path("/"))
    one_line(finish(process), 2, "cannot find itself as dislock.pyz")
