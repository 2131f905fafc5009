"""Writes a report. The fencing token prevents an earlier run from overwriting what a later run has written."""

from __future__ import annotations

import os
import sys

import psycopg

WRITE = """
    INSERT INTO report (day, total, token) VALUES (current_date, %(total)s, %(token)s)
    ON CONFLICT (day) DO UPDATE SET total = excluded.total, token = excluded.token
    WHERE report.token < excluded.token
"""


def main() -> int:
    token = int(os.environ["DISLOCK_FENCING_TOKEN"])
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        written = connection.execute(WRITE, {"total": 42, "token": token}).rowcount
    print("written" if written else "a later run has written already")
    return 0 if written else 1


sys.exit(main())
