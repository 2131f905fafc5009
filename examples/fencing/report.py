"""Writes a report line by line. The database refuses a run if a later run has begun meanwhile.

dislock --lock-key=report --strategy=lease DATABASE_URL python3 report.py LINES SECONDS_FOR_EACH
"""

from __future__ import annotations

import os
import sys
import time

import psycopg

# This comes first. From now on every run with a smaller token is refused, even before this one has written anything.
RAISE = """
    INSERT INTO fence AS old VALUES ('report', %s)
    ON CONFLICT (job) DO UPDATE SET token = excluded.token WHERE old.token <= excluded.token
"""
WRITE = """
    INSERT INTO report VALUES (%s, %s, %s)
    ON CONFLICT (line) DO UPDATE SET body = excluded.body, token = excluded.token
"""


def main(lines: int, seconds: float) -> int:
    token = int(os.environ["DISLOCK_FENCING_TOKEN"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        if not connection.execute(RAISE, [token]).rowcount:
            print("refused: a later run has begun", file=sys.stderr)
            return 1
        for line in range(lines):
            time.sleep(seconds)
            try:
                connection.execute(WRITE, [line, os.environ["DISLOCK_OWNER"], token])
            except psycopg.DatabaseError as error:
                if error.sqlstate != "DL075":
                    raise
                print(f"refused: {error.diag.message_primary}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), float(sys.argv[2])))
