"""What each of the operator's commands prints, does, and exits with."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import psycopg
import pytest

from dislock.cli.asking import READING
from tests.integration.operator.conftest import Record
from tests.support.contract import Dislock

pytestmark = pytest.mark.integration

OPEN = {"ended_at": None, "exit_code": None, "outcome": None}


def hold(tested: Dislock, kind: str, key: str = "report", owner: str = "host7:4711") -> None:
    tested.sql(f"INSERT INTO key_value VALUES ('cronjob-lock:{kind}:{key}', '{owner}', now() + interval '1 hour')")


# Creating tables


def test_what_schema_prints_is_what_init_creates(bare: Dislock, database_url: str) -> None:
    ran = bare.run("--schema", "--table=jobs.locks", "--journal=jobs.runs")
    assert (ran.code, ran.err) == (0, "")
    bare.url = database_url
    bare.sql("CREATE SCHEMA jobs; CREATE ROLE schema_cron LOGIN")
    bare.sql(re.sub(r"\bcron\b", "schema_cron", ran.out))
    bare.environment |= {"DATABASE_URL": database_url}
    again = bare.run("--init", "--table=jobs.locks", "--journal=jobs.runs", "DATABASE_URL")
    assert (again.code, again.out.count("exists already")) == (0, 2)
    other = bare.run("--init", "--table=locks", "--journal=runs", "DATABASE_URL")
    assert (other.code, other.out.count("is created")) == (0, 2)
    columns = """SELECT attname, format_type(atttypid, atttypmod), attnotnull, attidentity FROM pg_attribute
        WHERE attrelid = '{}'::regclass AND attnum > 0 ORDER BY attnum"""
    for name in ("locks", "runs"):
        assert bare.sql(columns.format(name)) == bare.sql(columns.format(f"jobs.{name}"))
    # The role can do what a run does, and no more.
    rights = """SELECT string_agg(privilege_type, ' ' ORDER BY privilege_type) FROM information_schema.role_table_grants
        WHERE grantee = 'schema_cron' AND table_name = '{}'"""
    assert bare.sql(rights.format("locks")) == [("INSERT SELECT UPDATE",)]
    assert bare.sql(rights.format("runs")) == [("DELETE INSERT SELECT UPDATE",)]
    bare.sql("DROP OWNED BY schema_cron", "DROP ROLE schema_cron")


def test_several_inits_at_one_time(bare: Dislock, database_url: str) -> None:
    bare.url = database_url
    bare.environment |= {"DATABASE_URL": database_url, "LOCK_TABLE": "locks", "LOCK_JOURNAL": "runs"}
    started = [bare.start("--init", "DATABASE_URL") for _ in range(4)]
    ended = [bare.finish(process) for process in started]
    assert [(ran.code, ran.err) for ran in ended] == [(0, "")] * 4
    assert sum(ran.out.count("is created") for ran in ended) == 2


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("ALTER TABLE runs DROP COLUMN tick", "the column tick timestamp with time zone is missing"),
        ("ALTER TABLE runs ALTER exit_code TYPE text", "the column exit_code is text and must be integer"),
        ("ALTER TABLE runs ALTER ended_at SET NOT NULL", "the column ended_at is NOT NULL"),
        ("ALTER TABLE key_value DROP CONSTRAINT key_value_pkey", "the column key is not unique"),
        (
            "ALTER TABLE key_value ALTER expire_at TYPE timestamp",
            "expire_at is timestamp without time zone and must be",
        ),
    ],
)
def test_a_table_of_another_form_is_named_with_the_difference(operator: Dislock, change: str, difference: str) -> None:
    operator.sql(change)
    for action in ("--init", "--check"):
        ran = operator.run(
            action,
            "--lock-key=job" if action == "--check" else "--table=key_value",
            "--connect-timeout=9",
            "DATABASE_URL",
            LOCK_STRATEGY="lease",
        )
        # A journal keeps no run from starting.
        doubtful = action == "--check" and "runs" in change
        assert ran.code == (0 if doubtful else 2)
        assert difference in (" ".join(ran.out.split()) if doubtful else ran.err)


def test_a_role_that_may_not_create_tables_is_told_so(bare: Dislock, database_url: str) -> None:
    bare.url = database_url
    bare.sql("CREATE ROLE init_cron LOGIN", "REVOKE CREATE ON SCHEMA public FROM public")
    try:
        url = psycopg.conninfo.make_conninfo(database_url, user="init_cron")
        ran = bare.run("--init", "--table=locks", "DATABASE_URL", DATABASE_URL=url)
        assert (ran.code, ran.out) == (2, "")
        assert "this role may not create the table locks (permission denied for schema public)" in ran.err
        assert "GRANT" not in ran.err
    finally:
        bare.sql("DROP OWNED BY init_cron", "DROP ROLE init_cron")


@pytest.mark.parametrize(
    ("change", "reason", "locks"),
    [
        ("DROP TABLE runs", 'the journal cannot be used: relation "runs" does not exist: --init creates it', True),
        (
            "REVOKE ALL ON runs FROM reading_cron",
            "the journal cannot be used: permission denied for table runs: GRANT SELECT ON runs TO reading_cron",
            True,
        ),
        ("DROP TABLE key_value", "the table key_value does not exist", False),
        (
            "REVOKE ALL ON key_value FROM reading_cron",
            "permission denied for table key_value): GRANT SELECT ON key_value TO reading_cron",
            False,
        ),
    ],
)
def test_of_the_two_tables_the_one_in_the_way_is_named(
    operator: Dislock, change: str, reason: str, locks: bool
) -> None:
    hold(operator, "lease")
    operator.sql("CREATE ROLE reading_cron LOGIN", "GRANT SELECT ON key_value, runs TO reading_cron", change)
    try:
        url = psycopg.conninfo.make_conninfo(operator.url, user="reading_cron")
        for action in ("--status", "--runs"):
            ran = operator.run(action, "DATABASE_URL", DATABASE_URL=url)
            # Without the journal, --status still has the locks to show.
            shown = locks and action == "--status"
            assert (ran.code, "host7:4711" in ran.out, ran.err.count("\n")) == (0 if shown else 2, shown, 1)
            assert reason in ran.err
    finally:
        operator.sql("DROP OWNED BY reading_cron", "DROP ROLE reading_cron")


def test_reading_needs_no_more_than_select(operator: Dislock, record: Record) -> None:
    record()
    operator.sql("CREATE ROLE monitor_cron LOGIN", "GRANT SELECT ON key_value, runs TO monitor_cron")
    try:
        url = psycopg.conninfo.make_conninfo(operator.url, user="monitor_cron")
        for action in READING:
            ran = operator.run(action, "DATABASE_URL", DATABASE_URL=url)
            assert (ran.code, ran.err) == (0, "")
    finally:
        operator.sql("DROP OWNED BY monitor_cron", "DROP ROLE monitor_cron")


def test_columns_of_ones_own_do_no_harm(operator: Dislock) -> None:
    operator.sql("ALTER TABLE runs ADD COLUMN note text")
    assert operator.run("--init", "DATABASE_URL").code == 0


# Reading


def test_an_empty_journal(operator: Dislock) -> None:
    said = {action: operator.run(action, "DATABASE_URL") for action in READING}
    assert {action: ran.err for action, ran in said.items()} == dict.fromkeys(READING, "")
    assert said["--status"].out == "No lock was ever taken.\n"
    assert said["--runs"].out == "The journal has no run.\n"
    assert "The journal has no run in this time." in said["--timeline"].out
    assert said["--metrics"].out == ""
    assert said["--overdue"].out.startswith("DISLOCK UNKNOWN - the journal has no run")
    assert [ran.code for ran in said.values()] == [0, 0, 3, 0, 0]
    for action in ("--status", "--runs"):
        assert json.loads(operator.run(action, "--json", "DATABASE_URL").out) == []


def test_status(operator: Dislock, record: Record) -> None:
    hold(operator, "lease")
    operator.sql("INSERT INTO key_value VALUES ('cronjob-lock:schedule:old', 'h:1', now()), ('other', 'x', now())")
    record(exit_code=3, outcome="failure", started_at=datetime.now(timezone.utc) - timedelta(hours=3))
    record(**OPEN)
    ran = operator.run("--status", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    assert re.split("  +", ran.out.splitlines()[0]) == ["KEY", "KIND", "OWNER", "ENDS IN", "SINCE", "LAST RUN"]
    assert re.match(r"old +slot +h:1 +free +- +-$", ran.out.splitlines()[1])
    assert re.match(r"report +lease +host7:4711 +(59m \d\ds|1h 00m) +[\d: -]+ +exit 3$", ran.out.splitlines()[2])
    assert ran.out.splitlines()[-1] == "Times are in UTC."
    without = operator.run("--status", "DATABASE_URL", LOCK_JOURNAL="")
    assert without.out.splitlines()[0].split() == ["KEY", "KIND", "OWNER", "ENDS", "IN"]
    only = json.loads(operator.run("--status", "--lock-key=report", "--json", "DATABASE_URL").out)
    assert [(each["key"], each["kind"], each["held"]) for each in only] == [("report", "lease", True)]


def test_runs_are_listed_newest_first(operator: Dislock, record: Record) -> None:
    for number in range(25):
        record(key="a" if number % 5 else "b", exit_code=number, outcome="failure" if number else "success")
    ran = operator.run("--runs", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) == 22
    assert lines[1].endswith("exit 24")
    assert len(operator.run("--runs", "--limit=3", "DATABASE_URL").out.splitlines()) == 5
    found = json.loads(operator.run("--runs", "--json", "--lock-key", "b", "DATABASE_URL").out)
    assert sorted(each["exit_code"] for each in found) == [0, 5, 10, 15, 20]
    assert {each["key"] for each in found} == {"b"}
    # The variable is no filter: a crontab may set it for its other lines.
    assert len(operator.run("--runs", "DATABASE_URL", LOCK_KEY="b").out.splitlines()) == 22
    assert operator.run("--runs", "--lock-key=no", "DATABASE_URL").out == "The journal has no run of this key.\n"


def test_a_run_whose_lease_is_over_died_and_one_of_its_lease_is_running(operator: Dislock, record: Record) -> None:
    hold(operator, "lease", "alive")
    hold(operator, "lease", "taken", "other:1")
    for key in ("alive", "taken", "gone"):
        record(key=key, **OPEN)
    # The one before, of the same owner string, died: the lease is that of the newest.
    record(key="alive", **{**OPEN, "started_at": datetime.now(timezone.utc) - timedelta(hours=1)})
    record(key="freed", token=1_700_000_000_000_000, **OPEN)
    operator.sql(
        "INSERT INTO key_value VALUES ('cronjob-lock:lease:freed', 'host7:4711', 'epoch'::timestamptz + interval "
        "'1700000000.000001 s')"
    )
    found = json.loads(operator.run("--runs", "--json", "DATABASE_URL").out)
    assert sorted((each["key"], each["state"]) for each in found) == [
        ("alive", "died"), ("alive", "running"), ("freed", "unknown"), ("gone", "died"), ("taken", "died"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "code", "line"),
    [
        ({}, 0, "DISLOCK OK - 1 job well"),
        ({"exit_code": 1, "outcome": "failure"}, 2, "DISLOCK CRITICAL - 1 of 1 job not well: report (exit 1)"),
        (OPEN, 2, "DISLOCK CRITICAL - 1 of 1 job not well: report (died)"),
    ],
)
def test_overdue(operator: Dislock, record: Record, columns: dict[str, object], code: int, line: str) -> None:
    record(**columns)
    ran = operator.run("--overdue", "DATABASE_URL")
    assert (ran.code, ran.err, ran.out.splitlines()[0]) == (code, "", line)
    assert json.loads(operator.run("--overdue", "--json", "DATABASE_URL").out)["level"] == code


def test_overdue_reads_ticks_how_late_and_what_is_expected(operator: Dislock, record: Record) -> None:
    hours = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    record(strategy="schedule", schedule="@hourly", time_zone="UTC", tick=hours, started_at=hours, ended_at=hours)
    ran = operator.run("--overdue", "DATABASE_URL")
    assert (ran.code, ran.out.splitlines()[0].endswith("report (missed)")) == (2, True)
    assert operator.run("--overdue", "--late=14400", "DATABASE_URL").code == 0
    expecting = operator.run("--overdue", "--late=14400", "--expect=report", "--expect", "backup", "DATABASE_URL")
    assert (expecting.code, expecting.out.splitlines()[0].endswith(": backup (never ran)")) == (2, True)


@pytest.mark.parametrize("bad", ["postgresql://127.0.0.1:1/d", "nonsense", ""])
def test_overdue_says_unknown_where_it_cannot_tell(operator: Dislock, bad: str) -> None:
    ran = operator.run("--overdue", "--connect-timeout=5", "DATABASE_URL", DATABASE_URL=bad)
    assert (ran.code, ran.err) == (3, "")
    assert re.match("DISLOCK UNKNOWN - [^\n]+\n$", ran.out)


@pytest.mark.parametrize("argv", [["--nonsense", "DATABASE_URL"], ["--limit=3", "DATABASE_URL"], [], ["NO_SUCH"]])
def test_overdue_that_was_asked_wrongly_is_unknown(operator: Dislock, argv: list[str]) -> None:
    ran = operator.run("--overdue", *argv)
    assert (ran.code, ran.err) == (3, "")
    assert re.match("DISLOCK UNKNOWN - [^\n]+\n$", ran.out)


def test_overdue_without_the_table_is_unknown(operator: Dislock) -> None:
    operator.sql("DROP TABLE runs")
    ran = operator.run("--overdue", "DATABASE_URL")
    assert (ran.code, "does not exist" in ran.out) == (3, True)


def test_metrics_are_read_whole_or_not_at_all(operator: Dislock, record: Record) -> None:
    record(key='a "quoted"\nkey')
    hold(operator, "lease")
    ran = operator.run("--metrics", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    assert 'dislock_overdue{key="a \\"quoted\\"\\nkey"} 0\n' in ran.out
    assert 'dislock_held{key="report",kind="lease"} 1\n' in ran.out
    expecting = operator.run("--metrics", "--expect=report", "--expect=never", "DATABASE_URL")
    assert 'dislock_overdue{key="never"} 2\n' in expecting.out
    broken = operator.run("--metrics", "--connect-timeout=5", "DATABASE_URL", DATABASE_URL="postgresql://127.0.0.1:1/d")
    assert (broken.code, broken.out, broken.err.count("\n")) == (1, "", 1)


def test_a_key_is_text_in_the_timeline(operator: Dislock, record: Record) -> None:
    record(key="<script>alert(1)</script>", owner='"><img src=x>:1', exit_code=1, outcome="failure")
    ran = operator.run("--timeline", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    assert "<script" not in ran.out
    assert "<img" not in ran.out
    assert "&lt;script&gt;" in ran.out
    assert "http" not in ran.out.replace("http-equiv", "")


# Freeing and forgetting


def test_release_frees_what_was_shown(operator: Dislock) -> None:
    hold(operator, "lease")
    hold(operator, "schedule")
    hold(operator, "lease", "other")
    ran = operator.run("--release", "report", "--force", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    assert "The slot of report is free.\nThe lease of report is free.\n" in ran.out
    assert {key: row.live for key, row in operator.rows().items()} == {
        "lease:report": False, "schedule:report": False, "lease:other": True,
    }  # fmt: skip
    again = operator.run("--release", "report", "--force", "DATABASE_URL")
    assert (again.code, "nothing to free" in again.out) == (0, True)


def test_release_of_the_slot_alone(operator: Dislock) -> None:
    hold(operator, "lease")
    hold(operator, "schedule")
    assert operator.run("--release=report", "--slot", "--force", "DATABASE_URL").code == 0
    assert {key: row.live for key, row in operator.rows().items()} == {"lease:report": True, "schedule:report": False}


@pytest.mark.parametrize("action", ["--release", "--forget"])
def test_without_a_terminal_and_without_force_nothing_changes(operator: Dislock, record: Record, action: str) -> None:
    hold(operator, "lease")
    record()
    for stdin in (None, b"y\n"):
        ran = operator.run(action, "report", "DATABASE_URL", stdin=stdin)
        assert ran.code == 2
        assert "nothing was changed" in ran.err
    assert operator.rows()["lease:report"].live
    assert operator.sql("SELECT count(*) FROM runs") == [(1,)]


@pytest.mark.parametrize("action", ["--release", "--forget"])
def test_a_key_that_nobody_knows_is_an_error(operator: Dislock, action: str) -> None:
    ran = operator.run(action, "no-such", "--force", "DATABASE_URL")
    assert (ran.code, "'no-such'" in ran.err) == (2, True)


def test_release_needs_no_more_than_a_run_does(operator: Dislock, server_url: str) -> None:
    hold(operator, "lease")
    operator.sql(
        "CREATE ROLE release_cron LOGIN",
        "GRANT SELECT, INSERT, UPDATE ON key_value TO release_cron",
        "GRANT SELECT, INSERT, UPDATE ON runs TO release_cron",
    )
    try:
        url = psycopg.conninfo.make_conninfo(operator.url, user="release_cron")
        ran = operator.run("--release", "report", "--force", "DATABASE_URL", DATABASE_URL=url)
        assert (ran.code, ran.err) == (0, "")
        forgotten = operator.run("--forget", "report", "--force", "DATABASE_URL", DATABASE_URL=url)
        assert forgotten.code == 0
        assert "may not DELETE from the journal" in forgotten.out
        assert "may not DELETE from the lock table" in forgotten.out
    finally:
        operator.sql("DROP OWNED BY release_cron", "DROP ROLE release_cron")


def test_forget_deletes_runs_and_free_rows(operator: Dislock, record: Record) -> None:
    hold(operator, "lease")
    hold(operator, "schedule")
    record()
    record(key="other")
    operator.run("--release", "report", "--slot", "--force", "DATABASE_URL")
    ran = operator.run("--forget", "report", "--force", "DATABASE_URL")
    assert (ran.code, ran.out) == (0, "1 run is deleted.\nOne of its locks is held, and stays.\n")
    assert set(operator.rows()) == {"lease:report"}
    assert operator.sql("SELECT key FROM runs") == [("other",)]


# Usage


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--runs"], "URL is missing"),
        (["--runs", "DATABASE_URL", "true"], "runs no command"),
        (["--runs", "--status", "DATABASE_URL"], "cannot be given together"),
        (["--runs", "--slot", "DATABASE_URL"], "does not read --slot"),
        (["--runs=1", "DATABASE_URL"], "takes no value"),
        (["--runs", "--limit=0", "DATABASE_URL"], "--limit must be a whole number from 1"),
        (["--runs", "--limit", "x", "DATABASE_URL"], "--limit must be"),
        (["--json", "DATABASE_URL", "true"], "--json is read only with --status"),
        (["--release", "DATABASE_URL"], "--release took DATABASE_URL as its value"),
        (["--release", "--slot", "job", "--force", "DATABASE_URL"], "--release needs a value"),
        (["--release", "job", "--slot", "DATABASE_URL", "--force"], "--force belongs in front of the URL variable"),
        (["--release", "", "DATABASE_URL"], "needs the key"),
        (["--init", "--lock-key=x", "DATABASE_URL"], "does not read --lock-key"),
        (["--runs", "--journal=", "DATABASE_URL"], "reads the journal"),
        (["--timeline", "--days=0", "DATABASE_URL"], "--days must be"),
    ],
)
def test_usage_errors(operator: Dislock, argv: list[str], reason: str) -> None:
    ran = operator.run(*argv)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert reason in ran.err


@pytest.mark.parametrize("action", ["--status", "--runs", "--metrics", "--timeline", "--check", "--init"])
def test_trouble_is_one_line_without_the_password(operator: Dislock, action: str) -> None:
    for url, code in (
        ("postgresql://me:hush-hush@127.0.0.1:1/d", 1),
        ("postgresql://me:hush-hush@127.0.0.1:port/d", 2),
        (psycopg.conninfo.make_conninfo(operator.url, dbname="no_such_db", password="hush-hush"), 2),
    ):
        ran = operator.run(
            action, "--connect-timeout=5", "DATABASE_URL", DATABASE_URL=url, LOCK_KEY="a", LOCK_STRATEGY="lease"
        )
        assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
        assert "hush" not in ran.err


def test_a_locked_table_is_waited_for_no_longer_than_asked(operator: Dislock) -> None:
    with psycopg.connect(operator.url) as other:
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        ran = operator.run("--runs", "--connect-timeout=1", "DATABASE_URL")
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)


def test_a_full_disk_is_an_error_and_a_reader_that_left_is_none(operator: Dislock) -> None:
    words = " ".join(f"'{word}'" for word in operator.command)
    operator.command = ["/bin/sh", "-c"]
    full = operator.run(
        f"{words} --metrics DATABASE_URL >/dev/full; {words} --timeline DATABASE_URL >/dev/full; echo $?"
    )
    assert (full.code, full.out, full.err.count("standard output: No space left on device")) == (0, "1\n", 1)
    left = operator.run(f"{{ {words} --timeline DATABASE_URL; echo $? >&2; }} | true")
    assert left.err in ("0\n", "")


# The index is used


def test_no_view_reads_the_whole_journal(operator: Dislock) -> None:
    from dislock.drivers.sql import compose
    from dislock.protocol.questions import NewestRuns, RecentRuns, RunsOfKey, RunsSince

    operator.sql(
        """INSERT INTO runs (key, strategy, owner, started_at, ended_at, outcome)
           SELECT 'job-' || n % 5, 'lease', 'h:1', t, t, CASE n % 5 WHEN 0 THEN 'failure' ELSE 'success' END
           FROM generate_series(1, 20000) AS n, LATERAL (SELECT now() - n * interval '1 min' AS t) AS x""",
        "ANALYZE runs",
    )
    with psycopg.connect(operator.url) as connection:
        for statement in (NewestRuns(20), RunsOfKey("job-0", 20), RecentRuns(None), RecentRuns("job-0"),
                          RunsSince(None, 0, 100)):  # fmt: skip
            query = psycopg.sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) ") + compose(statement, ["key_value"], ["runs"])
            (plan,) = connection.execute(query, statement._asdict()).fetchone() or ({},)
            text = json.dumps(plan)
            assert '"Relation Name": "runs"' in text
            nodes = re.findall(r'"Node Type": "([^"]*Scan)", [^{]*?"Relation Name": "runs"', text)
            assert "Seq Scan" not in nodes
            assert sum(map(int, re.findall(r'"Rows Removed by Filter": (\d+)', text))) < 100
