"""Virtual environments in the checkout, made once and kept as long as what they were made from stays the same."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Raised when the way of making an environment changes, so that old ones are brought up to date.
RECIPE = "1"
INSTALL_SECONDS = 900

#: What a shell may hold and a test must not see: settings of libpq, of Python and its tools, of dislock itself.
FOREIGN = re.compile(
    r"PG[A-Z]+|PYTHON.*|PYTEST_.*|VIRTUAL_ENV.*|MYPY.*|RUFF_.*|SHIV_.*|LOCK_.*|CRON_.*|CRONJOB_.*|RUN_LOCK_.*|DATABASE_URL"
    r"|DISLOCK_(?!TEST_).*|XDG_.*|NOTIFY_SOCKET|LD_PRELOAD|LD_LIBRARY_PATH|FAKETIME.*|TZ|LANG|LANGUAGE|LC_.*"
    r"|COLUMNS|LINES|(FORCE|NO|PY)_COLORS?|GIT_(DIR|WORK_TREE|INDEX_FILE|PREFIX)"
)
#: pip's own settings that would send packages elsewhere. Those that name indexes and certificates stay.
ASTRAY = re.compile(r"PIP_(TARGET|PREFIX|ROOT|USER|PYTHON|REQUIREMENT|EDITABLE|NO_DEPS|DRY_RUN|REQUIRE_VIRTUALENV)")


class CannotMake(Exception):  # noqa: N818 - it says what happened to the environment, and is no fault of the program
    """An environment could not be made; the text says why."""


def clean_environ() -> dict[str, str]:
    """The environment for tests: the caller's, less what would change their outcome, and with English messages."""
    return {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)} | {"LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Environment:
    """A virtual environment called ``name`` in the checkout, for ``python``, with ``packages`` (pip's own words)."""

    name: str
    python: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def _stamp(self) -> str:
        recipe = "\n".join([RECIPE, *self.packages, _requirements()])
        return hashlib.sha256(recipe.encode()).hexdigest()

    def fresh(self) -> bool:
        with contextlib.suppress(OSError):
            return (self.folder / ".made-from").read_text() == self._stamp and _starts(self.interpreter)
        return False

    def make(self, installer: Path | None = None) -> None:
        """Makes it, or brings it up to date; ``installer`` is an interpreter whose pip does it, else its own."""
        with _one_at_a_time(self.name):
            if self.fresh():
                return
            began = time.monotonic()
            print(f"making {self.name} for {self.python} ({' '.join(self.packages)})", flush=True)
            if not _starts(self.interpreter):
                bare = ["--without-pip"] if installer else []
                _run([self.python, "-E", "-s", "-m", "venv", "--clear", *bare, str(self.folder)])
            if installer is None:
                installer = self.interpreter
                if not _succeeds([str(installer), "-m", "pip", "--version"]):
                    _run([str(installer), "-m", "ensurepip"])
                # Dependency groups need pip 25.1.
                _run([str(installer), "-m", "pip", "install", "-q", "--upgrade", "pip>=25.1"])
            pip = [str(installer), "-m", "pip", "--python", str(self.interpreter)]
            _run([*pip, "install", "-q", "--upgrade", "--upgrade-strategy", "only-if-needed", *self.packages])
            (self.folder / ".made-from").write_text(self._stamp)
            print(f"made {self.name} in {time.monotonic() - began:.0f} s", flush=True)


def _requirements() -> str:
    """The sections of pyproject.toml that decide what is installed: a changed lint rule installs nothing anew."""
    sections = re.split(r"(?m)^(?=\[)", (ROOT / "pyproject.toml").read_text())
    wanted = ("[build-system]", "[project]", "[project.", "[dependency-groups]", "[tool.hatch")
    return "".join(section for section in sections if section.startswith(wanted))


def _starts(python: Path) -> bool:
    return python.exists() and _succeeds([str(python), "-E", "-s", "-c", "pass"])


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: Sequence[str]) -> None:
    environ = {name: value for name, value in clean_environ().items() if not ASTRAY.fullmatch(name)}
    # A question would wait for ever, and a notice about a newer pip is no news here.
    environ |= {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotMake(f"{' '.join(command)} took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        raise CannotMake(f"{' '.join(command)} failed:\n{done.stdout.rstrip()}")


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Two test runs in one checkout must not install into the same folder at once."""
    locks = ROOT / ".cache"
    locks.mkdir(exist_ok=True)
    with (locks / f"making{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """``python -m ci.environments NAME PACKAGE...`` makes an environment for the Python that runs it."""
    name, *packages = sys.argv[1:]
    try:
        Environment(name, sys.executable, tuple(packages)).make()
    except CannotMake as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
