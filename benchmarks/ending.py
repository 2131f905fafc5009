"""How long a wrapper stays after its command has ended."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench import PATIENCE, PUBLISHED, Bench
from benchmarks.overhead import STRATEGIES

#: Long enough for a wrapper to have nothing left to do for its start.
COMMAND_SECONDS = 0.3


def measure(bench: Bench) -> None:
    table = bench.table("ending", "From the command's end to the wrapper's", "after", PUBLISHED)
    url = bench.database()
    for number in range(bench.rounds(10)):
        for case, strategy in STRATEGIES.items():
            wrappers = list(bench.wrappers().items())
            cut = number % len(wrappers)
            for name, argv0 in wrappers[cut:] + wrappers[:cut]:
                table.add(case, name, "after", "ms", _after(bench, [argv0, "DATABASE_URL"], url, strategy) * 1000)
        lock = [*("flock", f"{bench.folder}/lock")]
        table.add("limits", "`flock`", "after", "ms", _after(bench, lock, url, "lease") * 1000)
    table.notes.append("With `schedule` alone the wrapper has become the command, and there is nothing to wait for.")


def _after(bench: Bench, wrapper: list[str], url: str, strategy: str) -> float:
    """Seconds between the kernel's closing of what the command had open, and the wrapper's end."""
    fifo = bench.folder / f"alive-{time.monotonic_ns()}"
    os.mkfifo(fifo)
    # The command alone has it open for writing, so its end is what the reader sees.
    command = ["/bin/sh", "-c", 'exec sleep "$0" 9>"$1"', str(COMMAND_SECONDS), str(fifo)]
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        process = subprocess.Popen(
            [*wrapper, *command], env=bench.environment(url, strategy), stdout=subprocess.DEVNULL, cwd="/"
        )
        _wait_for(lambda: _hung_up(reader, fifo, process), process)
        ended = time.perf_counter()
        code = process.wait(PATIENCE)
        took = time.perf_counter() - ended
    finally:
        os.close(reader)
        fifo.unlink()
    if code:
        sys.exit(f"{' '.join(wrapper)}: exit code {code}")
    return took


def _hung_up(reader: int, fifo: Path, process: subprocess.Popen[bytes]) -> bool:
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    # Before anybody has opened it for writing there is no hang-up either.
    for _, event in poll.poll(100):
        if event & select.POLLHUP:
            return True
    if process.poll() is not None:
        raise RuntimeError(f"{fifo.name} was never opened")
    return False


def _wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > end:
            process.kill()
            raise RuntimeError("the command did not end")
