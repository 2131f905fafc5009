"""Guards a coroutine with a lease. The coroutine is cancelled when the lease is lost."""

from __future__ import annotations

import asyncio
import os
import socket

from dislock import LeaseLostError, LockContext, LockNotAcquiredError, aio

context = LockContext(
    url=os.environ["DATABASE_URL"],
    table_parts=["key_value"],
    lock_key="import",
    owner=f"{socket.gethostname()}:{os.getpid()}",
    schedule="0 3 * * *",
    time_zone="Europe/Berlin",
    run_ttl_seconds=60.0,
    lease_interval_seconds=10.0,
)


@aio.with_locks(context, ["schedule", "lease"])
async def nightly() -> str:
    await asyncio.sleep(0.1)
    return "imported"


async def main() -> int:
    try:
        print(await nightly())
    except LockNotAcquiredError as held:
        print(f"nothing to do: {held}")
    except LeaseLostError as lost:
        print(f"cancelled: {lost}")
        return 75
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
