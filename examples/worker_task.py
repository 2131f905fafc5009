"""A task of a worker fleet (Celery and the like): delivered twice, run once.

A broker delivers at least once, and a beat that runs on two hosts enqueues twice. The lock's key is the task and what
it works on, so different customers are billed side by side and one customer never twice at a time.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import wraps

from dislock import LockContext, LockNotAcquiredError, acquire_locks


def exclusive(task: Callable[[str], str]) -> Callable[[str], str]:
    """Skips a delivery whose work somebody is doing already; put it below the queue's own ``@app.task``."""

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
