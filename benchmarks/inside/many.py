"""Holds many leases in one process. Runs in a peer's environment.

arguments: library, "sync" or "async", how many, TTL, interval, connection string. Says how many it got and why
not more; then holds them until its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from typing import Any

from locks import context, taker

#: How long one more lease may take before that counts as the limit.
PATIENCE = 5.0


def say(held: int, wanted: int, began: float, error: BaseException | None) -> None:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300] if held < wanted else ""
    print(json.dumps({"held": held, "seconds": time.monotonic() - began, "reason": reason}), flush=True)


def more(library: str) -> dict[str, Any]:
    """A context of ours takes a limit for how long to try; the published one cannot."""
    import dataclasses

    from dislock import LockContext

    del library
    known = {field.name for field in dataclasses.fields(LockContext)}
    return {"connect_timeout_seconds": PATIENCE} if "connect_timeout_seconds" in known else {}


def threads(library: str, count: int, ttl: float, interval: float, url: str) -> None:
    began, held, error = time.monotonic(), 0, None
    with contextlib.ExitStack() as stack:
        try:
            if library == "dislock":
                from dislock import LeaseLock

                extra = more(library)
                for number in range(count):
                    stack.enter_context(LeaseLock(context(url, f"many-{number}", ttl, interval, **extra)))
                    held += 1
            else:
                take, _ = taker(library, url, ttl)
                for number in range(count):
                    stack.enter_context(take(f"many-{number}"))
                    held += 1
        except Exception as failure:  # noqa: BLE001 - how far it got is the figure
            error = failure
        say(held, count, began, error)
        sys.stdin.read()


async def tasks(library: str, count: int, ttl: float, interval: float, url: str) -> None:
    from dislock.aio import LeaseLock

    began, held, error = time.monotonic(), 0, None
    extra = more(library)
    async with contextlib.AsyncExitStack() as stack:
        try:
            for number in range(count):
                await stack.enter_async_context(LeaseLock(context(url, f"many-{number}", ttl, interval, **extra)))
                held += 1
        except Exception as failure:  # noqa: BLE001 - how far it got is the figure
            error = failure
        say(held, count, began, error)
        # A thread for the reading would be counted as the library's: it waits in the loop.
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, over.set)
        await over.wait()


def main() -> None:
    library, kind, count, url = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[6]
    ttl, interval = float(sys.argv[4]), float(sys.argv[5])
    logging.disable()
    if kind == "async":
        asyncio.run(tasks(library, count, ttl, interval, url))
    else:
        threads(library, count, ttl, interval, url)


if __name__ == "__main__":
    main()
