"""What each shell that /bin/sh may be makes of the unusual: PATH, broken interpreters, large environments."""

from __future__ import annotations

import subprocess

import pytest

from tests.artifact.support import SHELLS, Zipapp, one_line, shell


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
