"""Takes and gives back locks for a while, in threads or tasks, and counts. Runs in a peer's environment.

arguments: library, "sync" or "async", how many at once, connection string. Order: seconds. Answer: count and seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

from locks import context, taker


def slice_of_threads(library: str, url: str, parallel: int):  # type: ignore[no-untyped-def]
    take, _ = taker(library, url, 60.0)

    def one(number: int, until: float, counts: list[int]) -> None:
        name = f"rate-{number}"
        while time.monotonic() < until:
            with take(name):
                counts[number] += 1

    def run(seconds: float) -> int:
        counts = [0] * parallel
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=one, args=(number, until, counts)) for number in range(parallel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    return run


def slice_of_tasks(url: str, parallel: int):  # type: ignore[no-untyped-def]
    from dislock.aio import LeaseLock

    async def one(number: int, until: float) -> int:
        count = 0
        while time.monotonic() < until:
            async with LeaseLock(context(url, f"rate-{number}")):
                count += 1
        return count

    async def all_of_them(seconds: float) -> int:
        until = time.monotonic() + seconds
        return sum(await asyncio.gather(*(one(number, until) for number in range(parallel))))

    # One loop for all slices, as an application has one.
    loop = asyncio.new_event_loop()
    return lambda seconds: loop.run_until_complete(all_of_them(seconds))


def main() -> None:
    library, kind, parallel, url = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    run = slice_of_tasks(url, parallel) if kind == "async" else slice_of_threads(library, url, parallel)
    run(0.05)
    print(json.dumps("ready"), flush=True)
    for order in sys.stdin:
        began, processor = time.monotonic(), time.process_time()
        count = run(float(order))
        took, used = time.monotonic() - began, time.process_time() - processor
        print(json.dumps({"count": count, "seconds": took, "processor": used}), flush=True)


if __name__ == "__main__":
    main()
