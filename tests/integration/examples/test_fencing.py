"""A job that is frozen past its lease, comes back, and writes: the example's table refuses it."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from dislock import LockContext, acquire_locks
from tests.faults.conftest import LEASE
from tests.faults.wrapper import PATIENCE, Run
from tests.integration.examples.test_examples import EXAMPLES
from tests.support.wait import until

pytestmark = pytest.mark.integration
FENCING = EXAMPLES / "fencing"


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        # A role belongs to the whole server, and an earlier test may have made it.
        connection.execute(
            "DO $$ BEGIN CREATE ROLE cron; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
        connection.execute((FENCING / "setup.sql").read_text())
        yield connection


def job(stack: ExitStack, folder: Path, url: str, lines: int, seconds: float) -> Run:
    command = [sys.executable, str(FENCING / "report.py"), str(lines), str(seconds)]
    return stack.enter_context(Run(folder, url, {**LEASE, "LOCK_KEY": "report"}, command=command))


def test_a_frozen_job_that_comes_back_is_refused(
    database_url: str, connection: psycopg.Connection[tuple[object, ...]], tmp_path: Path
) -> None:
    def lines() -> list[tuple[object, ...]]:
        return connection.execute("SELECT line, body FROM report ORDER BY line").fetchall()

    with ExitStack() as stack:
        frozen = job(stack, tmp_path / "frozen", database_url, 1000, 0.5)
        until(lines, PATIENCE, "the first line")
        (command,) = psutil.Process(frozen.pid).children()
        frozen.send(signal.SIGSTOP)
        command.suspend()
        freed = "SELECT 1 FROM key_value WHERE expire_at <= clock_timestamp()"
        until(lambda: connection.execute(freed).fetchall(), PATIENCE, "the end of the frozen job's lease")
        after = job(stack, tmp_path / "after", database_url, 3, 0.0)
        assert after.ended() == (0, "")
        written = lines()
        assert len(written) == 3
        # The job wakes up before dislock can end it, which is the case that no lock can prevent.
        command.resume()
        until(lambda: "refused" in frozen.err, PATIENCE, "the refusal")
        frozen.send(signal.SIGCONT)
        code, err = frozen.ended()
        assert code == 75
        assert "refused: stale fencing token" in err
        assert lines() == written


def test_a_run_that_was_overtaken_before_its_first_write_is_refused_too(
    connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    connection.execute("SET ROLE cron")
    connection.execute("INSERT INTO fence VALUES ('report', 5)")
    connection.execute("INSERT INTO report VALUES (1, 'first', 5)")
    # The next one has begun and written nothing yet.
    connection.execute("UPDATE fence SET token = 6")
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 5") as refused:
        connection.execute("UPDATE report SET body = 'late' WHERE line = 1")
    assert refused.value.sqlstate == "DL075"


def test_the_guarded_update_of_the_page_writes_once_and_refuses_an_earlier_run(database_url: str) -> None:
    page = (EXAMPLES.parent / "docs" / "concepts.md").read_text().partition("## Fencing tokens\n")[2]
    (column,) = re.findall(r"^ALTER TABLE .*;$", page, re.MULTILINE)
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    context = LockContext(url=database_url, lock_key="report")
    names = {"psycopg": psycopg, "acquire_locks": acquire_locks, "context": context, "url": database_url}
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE report (id int PRIMARY KEY, body text)")
        connection.execute("INSERT INTO report VALUES (7)")
        connection.execute(column)
        exec(code, dict(names))
        connection.execute("UPDATE report SET body = 'later', token = token + 86400000000")
        with pytest.raises(RuntimeError, match="a later run"):
            exec(code, dict(names))
        assert connection.execute("SELECT body FROM report").fetchall() == [("later",)]
