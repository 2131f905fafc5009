"""Guards a coroutine with a lease. The coroutine is cancelled when the lease is lost."""

from __future__ import annotations

import asyncio
import os

from dislock import LeaseLostError, LockContext, LockNotAcquiredError, aio

context = LockContext(
    url=os.environ["DATABASE_URL"],
    lock_key="import",
    schedule="0 3 * * *",
    time_zone="Europe/Berlin",
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
