"""Runs one command with its output in a log file, tells how far it is, and ends it when it takes too long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.environments import ROOT, clean_environ

LOGS = ROOT / ".cache" / "test"
PROGRESS_SECONDS = 30.0
#: For what a test run has open (servers, containers) to be taken down.
TEARDOWN_SECONDS = 30.0
#: How much of a log a failure shows.
SHOWN_LINES = 120


class Overdue(Exception):  # noqa: N818 - a limit that was reached, and no fault of this program
    """The command took longer than it may."""


def run(name: str, command: Sequence[str], limit: float, environ: Mapping[str, str] | None = None) -> tuple[int, Path]:
    """Returns the exit code and the log; raises ``Overdue`` after ``limit`` seconds. ``environ`` comes on top."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    # A file of its own: another run in this checkout may still write to the one of that name.
    log.unlink(missing_ok=True)
    with log.open("xb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environ() | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return _wait(name, process, log, limit), log
    finally:
        _end(process)


def _wait(name: str, process: subprocess.Popen[bytes], log: Path, limit: float) -> int:
    began = time.monotonic()
    while True:
        try:
            return process.wait(timeout=PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - began
            if elapsed > limit:
                raise Overdue(
                    f"not over after {limit:.0f} s; the last line of {shown(log)}: {_last_line(log)}"
                ) from None
            print(f"{name:<13} {elapsed:5.0f} s  {_last_line(log)}", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts first, so that fixtures take down their servers, then kills what is left of the group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=TEARDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def shown(path: Path) -> Path:
    return path.relative_to(ROOT)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((" ".join(line.split())[:120] for line in reversed(lines) if line.strip()), "")


def explain(log: Path) -> str:
    """The part of a log that says what failed: from pytest's first report of a failure on, or its end."""
    lines = log.read_text(errors="replace").rstrip().split("\n")
    titles = (" ERRORS ", " FAILURES ")
    start = next((i for i, line in enumerate(lines) if line.startswith("===") and any(t in line for t in titles)), 0)
    part = lines[start:]
    if len(part) > SHOWN_LINES:
        part = [*part[: SHOWN_LINES // 2], f"[... {len(part) - SHOWN_LINES} lines ...]", *part[-SHOWN_LINES // 2 :]]
    return "\n".join(part)
