"""A task of several workers (Celery, for example) that is delivered twice at once, and run once at a time.

A broker delivers a task at least once. A scheduler that runs on two hosts queues it twice. The lock key contains the
task and the customer. So different customers are billed at the same time, but no customer twice at a time.

A lease prevents an overlap, not a repetition: a delivery that comes after the first run has ended is run again. If a
delivery must count once, also record it in the transaction that does the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps

from dislock import LockContext, LockNotAcquiredError, acquire_locks


def exclusive(task: Callable[[str], str]) -> Callable[[str], str]:
    """Skips a delivery if its work is already under way. Put it below the queue's own ``@app.task``."""

    @wraps(task)
    def guarded(customer: str) -> str:
        context = LockContext(url=os.environ["DATABASE_URL"], lock_key=f"{task.__name__}:{customer}")
        try:
            with acquire_locks(context, ["lease"]):
                return task(customer)
        except LockNotAcquiredError:
            return "skipped"

    return guarded


@exclusive
def bill(customer: str) -> str:
    return f"billed {customer}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: DATABASE_URL=postgresql://... python worker_task.py CUSTOMER")
    print(bill(sys.argv[1]))
