"""Starting the driver, and waiting for what its commands do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

DRIVER = str(Path(__file__).with_name("driver.py"))
ROOT = str(Path(__file__).parents[3])
PATIENCE = 30.0

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str = "condition") -> T:
    """The first true value of ``probe``; fails when none comes."""
    end = time.monotonic() + PATIENCE
    while not (value := probe()):
        assert time.monotonic() < end, f"no {what} within {PATIENCE:g} s"
        time.sleep(0.005)
    return value


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def words(path: Path) -> list[str]:
    return _text(path).split()


def wait_words(path: Path, *wanted: str) -> list[str]:
    """The words in the file, once all those wanted are there."""
    return eventually(lambda: found if set(wanted) <= set(found := words(path)) and found else None, f"{wanted}")


def wait_pid(path: Path) -> int:
    """The process number that a command wrote into the file, newline and all."""
    return int(eventually(lambda: text if (text := _text(path)).endswith("\n") else None))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid: int) -> None:
    eventually(lambda: not alive(pid), f"end of {pid}")


def driver(*command: str, **options: Any) -> list[str]:
    options = {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}
    return [sys.executable, DRIVER, json.dumps(options), *command]


@contextmanager
def running(argv: list[str], **popen: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a session of its own, so that no terminal of the tester's takes part; killed at the end."""
    popen.setdefault("start_new_session", True)
    environment = {**os.environ, "PYTHONPATH": ROOT, **popen.pop("env", {})}
    with subprocess.Popen(argv, env=environment, **popen) as process:
        try:
            yield process
        finally:
            process.kill()


def run(argv: list[str], **popen: Any) -> tuple[int, str]:
    """Exit code and output of the program."""
    with running(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **popen) as process:
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output.decode(errors="surrogateescape")


def reported(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(eventually(lambda: _text(path)))
    return result
