"""A task of several workers (Celery, for example) that may be delivered twice and is not run twice at a time.

A broker delivers a task at least once. A scheduler that runs on two hosts queues it twice. The lock key contains the
task and the customer. So different customers are billed at the same time, but no customer twice at a time.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import wraps

from dislock import LockContext, LockNotAcquiredError, acquire_locks


def exclusive(task: Callable[[str], str]) -> Callable[[str], str]:
    """Skips a delivery if its work is already under way. Put it below the queue's own ``@app.task``."""

    @wraps(task)
    def guarded(customer: str) -> str:
        context = LockContext(
            url=os.environ["DATABASE_URL"],
            table_parts=["key_value"],
            lock_key=f"{task.__name__}:{customer}",
            owner=f"{socket.gethostname()}:{os.getpid()}",
            run_ttl_seconds=120.0,
            lease_interval_seconds=10.0,
        )
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
