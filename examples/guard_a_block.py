"""Guards a block of Python code with a lease. The block stops at a safe point when the lease is lost."""

from __future__ import annotations

import os

from dislock import LeaseLostError, LockContext, LockNotAcquiredError, acquire_locks

context = LockContext(url=os.environ["DATABASE_URL"], lock_key="import")


def write(batch: int, token: int) -> None:
    print(f"batch {batch} written with token {token}")


def main() -> int:
    try:
        with acquire_locks(context, ["lease"]) as session:
            for batch in range(3):
                session.check()  # raises LeaseLostError when the lease is lost
                write(batch, session.fencing_token)
    except LockNotAcquiredError as held:
        print(f"nothing to do: {held.holder} holds the lease until {held.expires_at}")
        return 0
    except LeaseLostError as lost:
        print(f"stopped: {lost}")
        return 75
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
