"""Holds a lock, or waits for it with many threads. Runs in a peer's environment.

arguments: "hold" or "wait", library, connection string, name, TTL, how many wait. Times are those of
the machine's monotonic clock.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

from locks import Take, context, taker

#: Between two tries of a library that does not wait by itself.
PAUSE = 0.05
WAIT_SECONDS = 60.0


def hold(take: Take, name: str) -> None:
    with take(name):
        print(json.dumps(time.monotonic()), flush=True)
        sys.stdin.readline()
        began = time.monotonic()
    print(json.dumps(began), flush=True)


def wait(library: str, url: str, name: str, ttl: float, count: int) -> None:
    take, refused = patient(library, url, ttl)
    taken: list[float] = []
    ready = threading.Barrier(count + 1)

    def one() -> None:
        ready.wait()
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            try:
                with take(name):
                    taken.append(time.monotonic())
                    return
            except refused:
                time.sleep(PAUSE)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    # Long enough for every one to have met the holder.
    time.sleep(1.0)
    print(json.dumps("waiting"), flush=True)
    for thread in threads:
        thread.join()
    print(json.dumps(sorted(taken)), flush=True)


def patient(library: str, url: str, ttl: float) -> tuple[Take, type[Exception]]:
    """Waits as the library waits, if it does."""
    take, refused = taker(library, url, ttl)
    if library != "dislock":
        return take, refused
    from dislock import LeaseLock, LockContext

    if "wait_seconds" not in {field.name for field in dataclasses.fields(LockContext)}:
        return take, refused

    def waiting(name: str) -> AbstractContextManager[Any]:
        return LeaseLock(context(url, name, ttl, min(10.0, ttl * 0.3), wait_seconds=WAIT_SECONDS))

    return waiting, refused


def main() -> None:
    what, library, url, name, ttl = *sys.argv[1:5], float(sys.argv[5])
    logging.disable()
    if what == "hold":
        hold(taker(library, url, ttl)[0], name)
    else:
        wait(library, url, name, ttl, int(sys.argv[6]))


if __name__ == "__main__":
    main()
