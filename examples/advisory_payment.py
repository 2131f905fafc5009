"""Charges an account correctly, although two requests may try at the same moment.

DATABASE_URL=postgresql+psycopg://... python advisory_payment.py ACCOUNT AMOUNT
"""

from __future__ import annotations

import os
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockTimeout


def charge(session: Session, account: int, amount: int) -> bool:
    """Whether the account had the money. The caller commits: the lock ends with the transaction, and not before."""
    with PgAdvisoryLock(["accounts", account]).held(session, timeout_in_ms=2000):
        balance = session.scalar(text("SELECT balance FROM account WHERE id = :id"), {"id": account}) or 0
        if balance < amount:
            return False
        left = {"id": account, "left": balance - amount}
        session.execute(text("UPDATE account SET balance = :left WHERE id = :id"), left)
        return True


def main() -> None:
    account, amount = map(int, sys.argv[1:])
    engine = create_engine(os.environ["DATABASE_URL"])
    try:
        with Session(engine) as session, session.begin():
            charged = charge(session, account, amount)
    except PgAdvisoryLockTimeout as error:
        # The message says which process is in the way. error.holders has the same as a list.
        sys.exit(f"busy: {error}")
    print("charged" if charged else "not enough money")


if __name__ == "__main__":
    main()
