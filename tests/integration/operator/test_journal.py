"""A run with a journal is recorded, and what is wrong with the journal never keeps a job from running."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dislock
from dislock import LockContext, LockNotAcquiredError, aio, run_with_locks, with_locks
from tests.support.contract import YEARLY, Dislock
from tests.support.postgres import Postgres
from tests.support.statements import SETTINGS, Traffic, watch
from tests.support.wait import until

pytestmark = pytest.mark.integration

LEASE = {"LOCK_KEY": "job", "LOCK_STRATEGY": "lease"}
SLOT = {"LOCK_KEY": "job", "CRON_SCHEDULE": YEARLY, "CRON_TZ": "Europe/Berlin"}
BOTH = {**SLOT, "LOCK_STRATEGY": "schedule,lease"}
KINDS = pytest.mark.parametrize("settings", [LEASE, SLOT, BOTH], ids=["lease", "schedule", "both"])


def recorded(tested: Dislock) -> list[dict[str, Any]]:
    """The runs in the journal, oldest first."""
    found: list[dict[str, Any]] = json.loads(tested.run("--runs", "--json", "DATABASE_URL").out)
    return found[::-1]


def ended(run: Mapping[str, Any]) -> tuple[str, int | None]:
    return run["state"], run["exit_code"]


@KINDS
def test_each_end_is_recorded(operator: Dislock, settings: dict[str, str]) -> None:
    commands = {
        "good": ["true"],
        "bad": ["sh", "-c", "exit 3"],
        "killed": ["sh", "-c", "kill -KILL $$"],
        "none": ["no-such"],
    }
    for key, command in commands.items():
        operator.run("DATABASE_URL", *command, **{**settings, "LOCK_KEY": key})
    runs = {run["key"]: run for run in recorded(operator)}
    assert {key: ended(run) for key, run in runs.items()} == {
        "good": ("success", 0), "bad": ("failure", 3), "killed": ("failure", 137), "none": ("not started", 127),
    }  # fmt: skip
    for run in runs.values():
        assert run["strategy"] == settings.get("LOCK_STRATEGY", "schedule")
        assert (run["schedule"], run["time_zone"]) == ((None, None) if settings is LEASE else (YEARLY, "Europe/Berlin"))
        assert (run["tick"] is None) == (settings is LEASE)
        assert run["token"] > 0
        assert run["took_seconds"] >= 0


def test_the_arguments_of_a_command_are_not_recorded(operator: Dislock) -> None:
    for word in ("hush-hush", "hush-hush", "other"):
        operator.run("DATABASE_URL", "/bin/echo", word, **LEASE)
    first, second, third = [run["command"] for run in recorded(operator)]
    assert first == second != third
    assert [text.split()[0] for text in (first, third)] == ["echo", "echo"]
    assert "hush" not in str(operator.sql("SELECT * FROM runs"))


def test_what_is_refused_is_not_recorded(operator: Dislock) -> None:
    for _host in range(2):
        assert operator.run("DATABASE_URL", "true", **SLOT).code == 0
    assert len(recorded(operator)) == 1


@KINDS
def test_a_run_is_there_while_it_goes_on(operator: Dislock, settings: dict[str, str]) -> None:
    process = operator.start("DATABASE_URL", "sh", "-c", "echo up; read -r _", environ=settings, stdin=-1)
    assert operator.line(process) == "up"
    (run,) = until(lambda: recorded(operator))
    assert run["state"] == ("unknown" if settings is SLOT else "running")
    assert operator.finish(process, b"\n").code == 0
    assert [ended(run) for run in recorded(operator)] == [("success", 0)]


def test_a_run_that_dies_with_its_host_died_when_its_lease_is_over(operator: Dislock) -> None:
    settings = {**LEASE, "RUN_LOCK_TTL_SECONDS": "2"}
    process = operator.start("DATABASE_URL", "sh", "-c", "echo up; exec sleep 30", environ=settings)
    assert operator.line(process) == "up"
    until(lambda: recorded(operator))
    process.send_signal(signal.SIGKILL)
    assert until(lambda: [run for run in recorded(operator) if run["state"] == "died"])


def test_a_lost_lease_is_recorded(operator: Dislock) -> None:
    settings = {**LEASE, "LOCK_LEASE_INTERVAL": "0.2"}
    process = operator.start("DATABASE_URL", "sh", "-c", "echo up; exec sleep 30", environ=settings)
    assert operator.line(process) == "up"
    operator.sql("UPDATE key_value SET value = 'thief:1'")
    assert operator.finish(process).code == 75
    assert [ended(run) for run in recorded(operator)] == [("lost", 75)]


def test_a_freed_run_can_be_run_again(operator: Dislock) -> None:
    assert operator.run("DATABASE_URL", "false", **SLOT).code == 1
    assert operator.run("DATABASE_URL", "echo", "again", **SLOT).out == ""
    assert operator.run("--release", "job", "--slot", "--force", "DATABASE_URL").code == 0
    assert operator.run("DATABASE_URL", "echo", "again", **SLOT).out == "again\n"
    first, second = recorded(operator)
    assert first["tick"] == second["tick"]
    assert operator.run("--overdue", "DATABASE_URL").code == 0


def test_old_runs_of_the_same_key_are_deleted(operator: Dislock) -> None:
    operator.sql(
        """INSERT INTO runs (key, strategy, owner, started_at, ended_at, outcome)
           SELECT key, 'lease', 'h:1', now() - days * interval '1 day', now(), 'success'
           FROM unnest(ARRAY['job', 'other']) AS key, unnest(ARRAY[200, 91, 89, 10]) AS days"""
    )
    operator.run("DATABASE_URL", "true", **LEASE)
    count = "SELECT key, count(*) FROM runs GROUP BY key ORDER BY key"
    assert operator.sql(count) == [("job", 3), ("other", 4)]
    operator.run("DATABASE_URL", "true", LOCK_JOURNAL_KEEP_DAYS="0", **LEASE)
    assert operator.sql(count) == [("job", 4), ("other", 4)]
    operator.run("DATABASE_URL", "true", LOCK_JOURNAL_KEEP_DAYS="30", **LEASE)
    assert operator.sql(count) == [("job", 4), ("other", 4)]


def test_messages_as_json_are_one_object_a_line(operator: Dislock) -> None:
    words = ("--log-level=INFO", "--log-format=json", "DATABASE_URL", "sh", "-c", "exit 3")
    ran = operator.run(*words, LOCK_JOURNAL="no_such", **LEASE)
    assert (ran.code, ran.out) == (3, "")
    said = [json.loads(line) for line in ran.err.splitlines()]
    assert sorted((each["event"], each["level"]) for each in said) == [
        ("command ended", "info"), ("record failed", "info"), ("record failed", "warning"), ("released", "info"),
        ("taken", "info"),
    ]  # fmt: skip
    (ended_event,) = [each for each in said if each["event"] == "command ended"]
    assert (ended_event["exit_code"], ended_event["key"]) == (3, "job")
    assert all(each["message"] and each["time"] for each in said)


# Bad days of the journal


@pytest.fixture
def trouble(operator: Dislock, request: pytest.FixtureRequest) -> str:
    """Something is wrong with the journal; what a run says of it."""
    statements, reason = request.param
    operator.sql(*statements)
    return str(reason)


TROUBLES = {
    "missing": (["DROP TABLE runs"], 'relation "runs" does not exist: --init creates it'),
    "another form": (["ALTER TABLE runs DROP COLUMN strategy"], 'column "strategy"'),
    "a column of its own": (["ALTER TABLE runs ADD note text NOT NULL"], 'null value in column "note"'),
    "full": (
        [
            """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$""",
            "CREATE TRIGGER full_disk BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION full_disk()",
        ],
        "could not extend file",
    ),
    "a view": (["ALTER TABLE runs RENAME TO other", "CREATE VIEW runs AS SELECT count(*) FROM other"], 'column "key"'),
}


@KINDS
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES, indirect=True)
def test_what_is_wrong_with_the_journal_is_one_warning(
    operator: Dislock, settings: dict[str, str], trouble: str
) -> None:
    for key, code in (("a", 0), ("b", 5)):
        ran = operator.run("DATABASE_URL", "sh", "-c", f"echo ran; exit {code}", **{**settings, "LOCK_KEY": key})
        assert (ran.code, ran.out) == (code, "ran\n")
        assert ran.err.startswith("dislock: warning: the run is not recorded in the journal (")
        assert trouble in ran.err
        assert ran.err.count("\n") == 1
    assert all(not row.live for key, row in operator.rows().items() if key.startswith("lease"))


def test_without_the_privilege_a_job_runs(operator: Dislock) -> None:
    operator.sql("CREATE ROLE journal_cron LOGIN", "GRANT SELECT, INSERT, UPDATE ON key_value TO journal_cron")
    try:
        url = psycopg.conninfo.make_conninfo(operator.url, user="journal_cron")
        ran = operator.run("DATABASE_URL", "echo", "ran", **{**LEASE, "DATABASE_URL": url})
        assert (ran.code, ran.out, ran.err.count("\n")) == (0, "ran\n", 1)
        assert (
            "permission denied for table runs: GRANT SELECT, INSERT, UPDATE, DELETE ON runs TO journal_cron" in ran.err
        )
        # Without DELETE old rows stay, and nobody is told.
        operator.sql("GRANT SELECT, INSERT, UPDATE ON runs TO journal_cron")
        ran = operator.run("DATABASE_URL", "echo", "ran", **{**LEASE, "DATABASE_URL": url})
        assert (ran.code, ran.out, ran.err) == (0, "ran\n", "")
        assert [ended(run) for run in recorded(operator)] == [("success", 0)]
    finally:
        operator.sql("DROP OWNED BY journal_cron", "DROP ROLE journal_cron")


@KINDS
def test_a_journal_that_somebody_has_locked_does_not_hold_a_job_up(operator: Dislock, settings: dict[str, str]) -> None:
    with psycopg.connect(operator.url) as other:
        # As VACUUM FULL does.
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        process = operator.start("DATABASE_URL", "sh", "-c", "echo up; read -r _", environ=settings, stdin=-1)
        # The command does not wait for the record of its start.
        assert operator.line(process) == "up"
        ran = operator.finish(process, b"\n")
    assert ran.code == 0
    assert ran.err.count("\n") == 1
    assert "the run is not recorded in the journal (" in ran.err
    assert not any(row.live for key, row in operator.rows().items() if key.startswith("lease"))


def test_a_start_that_was_not_recorded_is_made_up_for_at_the_end(operator: Dislock) -> None:
    with psycopg.connect(operator.url) as other:
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        process = operator.start("DATABASE_URL", "sh", "-c", "echo up; read -r _", environ=LEASE, stdin=-1)
        assert operator.line(process) == "up"
        assert "not recorded" in operator.line(process, error=True)
    ran = operator.finish(process, b"\n")
    assert (ran.code, ran.err) == (0, "")
    assert [ended(run) for run in recorded(operator)] == [("success", 0)]
    assert recorded(operator)[0]["took_seconds"] > 0


# The library


def context(operator: Dislock, **changes: Any) -> LockContext:
    values: dict[str, Any] = {
        "url": operator.url,
        "table_parts": ["key_value"],
        "lock_key": "job",
        "owner": "host:1",
        "run_ttl_seconds": 60.0,
        "lease_interval_seconds": 10.0,
        "journal_parts": ["runs"],
        "schedule": YEARLY,
        "time_zone": "UTC",
    }
    return LockContext(**{**values, **changes})


def test_a_command_of_the_library_is_recorded(operator: Dislock) -> None:
    assert run_with_locks(["sh", "-c", "exit 6"], context(operator), ["lease"]) == 6
    assert run_with_locks(["true"], context(operator), ["schedule"]) == 0
    assert [ended(run) for run in recorded(operator)] == [("failure", 6), ("success", 0)]


@pytest.mark.parametrize("strategies", [["lease"], ["schedule"], ["schedule", "lease"]])
def test_decorated_functions_are_recorded(operator: Dislock, strategies: list[str]) -> None:
    @with_locks(context(operator, lock_key="sync"), strategies)
    def work() -> None:
        raise ValueError("no")

    @aio.with_locks(context(operator, lock_key="async"), strategies)
    async def work_too() -> int:
        return 7

    with pytest.raises(ValueError, match="no"):
        work()
    assert asyncio.run(work_too()) == 7
    first, second = recorded(operator)
    assert (first["key"], *ended(first)) == ("sync", "failure", None)
    assert (second["key"], *ended(second)) == ("async", "success", None)
    assert first["command"].endswith("test_decorated_functions_are_recorded.<locals>.work")


def test_a_block_is_not_recorded_and_a_refused_call_neither(operator: Dislock) -> None:
    with dislock.acquire_locks(context(operator), ["lease"]):

        @with_locks(context(operator, owner="host:2"), ["lease"])
        def work() -> None:
            raise AssertionError("must not run")

        with pytest.raises(LockNotAcquiredError):
            work()
    assert recorded(operator) == []


def test_a_start_is_recorded_also_without_a_thread_for_it(operator: Dislock, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "dislock-renewal":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)

    @with_locks(context(operator), ["schedule"])
    def work() -> None:
        assert operator.sql("SELECT count(*) FROM runs WHERE ended_at IS NULL") == [(1,)]

    work()
    assert [ended(run) for run in recorded(operator)] == [("success", None)]


def test_a_journal_out_of_order_does_not_reach_the_function(
    operator: Dislock, caplog: pytest.LogCaptureFixture
) -> None:
    @aio.with_locks(context(operator, journal_parts=["no_such"]), ["schedule", "lease"])
    async def work() -> int:
        return 7

    assert asyncio.run(work()) == 7
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.dislock.name == "record failed"  # type: ignore[attr-defined] # the documented attribute


# What it costs


@pytest.fixture(scope="module")
def watched() -> Iterator[Postgres]:
    with Postgres(SETTINGS) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"
            )
        yield server


def traffic(bare: Dislock, server: Postgres, settings: Mapping[str, str], **more: str) -> Traffic:
    bare.environment["DATABASE_URL"] = server.url()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("TRUNCATE key_value")
    with watch(server, "postgres") as seen:
        ran = bare.run("DATABASE_URL", "true", **settings, **more)
    assert (ran.code, ran.err) == (0, "")
    return seen


@KINDS
def test_what_a_run_costs_without_and_with_a_journal(
    bare: Dislock, watched: Postgres, settings: dict[str, str], tmp_path: Path
) -> None:
    without = traffic(bare, watched, settings)
    assert not any("runs" in statement or "journal" in statement for statement in without.statements)
    bare.environment["DATABASE_URL"] = watched.url()
    assert bare.run("--init", "--journal=runs", "DATABASE_URL").code == 0
    recording = traffic(bare, watched, settings, LOCK_JOURNAL="runs")
    own = [statement for statement in recording.statements if '"runs"' in statement]
    # Start, end, and the deletion of old runs.
    assert len(own) == 3
    assert len([each for each in recording.statements if each not in own]) == len(without.statements)
    assert recording.connections - without.connections == (1 if settings is SLOT else 0)
