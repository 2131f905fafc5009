"""Many may read the price list at once. Whoever changes it waits for the readers, and they wait for the change.

DATABASE_URL=postgresql+psycopg://... python advisory_readers_and_writer.py
"""

from __future__ import annotations

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock

READING = PgAdvisoryLock(["price_list"], shared=True)
CHANGING = PgAdvisoryLock(["price_list"], raise_on_failure=False)


def main() -> None:
    engine = create_engine(os.environ["DATABASE_URL"])
    with Session(engine) as one, Session(engine) as other, Session(engine) as writer:
        READING.lock(one)
        READING.lock(other)
        print("two read")
        print("changed" if CHANGING.lock(writer, timeout_in_ms=50) else "not changed: somebody reads")
        one.commit()
        other.commit()
        print("changed" if CHANGING.lock(writer, timeout_in_ms=50) else "not changed: somebody reads")
        writer.commit()


if __name__ == "__main__":
    main()
