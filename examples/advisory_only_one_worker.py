"""Does a piece of work in one process. The others find that it is taken, and continue with something else.

DATABASE_URL=postgresql+psycopg://... python advisory_only_one_worker.py NAME
"""

from __future__ import annotations

import os
import sys

from sqlalchemy import create_engine, text

from pg_advisory_lock import PgAdvisoryLock


def main() -> None:
    (name,) = sys.argv[1:]
    locker = PgAdvisoryLock(["only_one_worker", name], raise_on_failure=False)
    engine = create_engine(os.environ["DATABASE_URL"])
    with engine.begin() as connection:
        if not locker.lock_immediate(connection):
            print("taken by", *(holder.pid for holder in locker.holders(connection)))
            return
        connection.execute(text("UPDATE account SET balance = balance + 1"))
        print("done")


if __name__ == "__main__":
    main()
