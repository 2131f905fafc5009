"""`--check` shows what a run looks at and ends as it would; what asks on a terminal asks."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess

import psycopg
import pytest

from tests.support.contract import Dislock

pytestmark = pytest.mark.integration

SLOT = {"LOCK_KEY": "job", "CRON_SCHEDULE": "30 2 * * *", "CRON_TZ": "Europe/Berlin"}


def test_a_line_of_a_crontab_checks_itself(operator: Dislock) -> None:
    ran = operator.run("--check", "--slot-tolerance=7", "DATABASE_URL", "sh", "-c", "echo no", **SLOT)
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"^  LOCK_KEY +job +LOCK_KEY$", ran.out, re.MULTILINE)
    assert re.search(r"^  LOCK_SLOT_TOLERANCE_SECONDS +7 +--slot-tolerance$", ran.out, re.MULTILINE)
    assert re.search(r"^  LOCK_TABLE +key_value +default$", ran.out, re.MULTILINE)
    assert re.search(r"^  lock table key_value +can be used$", ran.out, re.MULTILINE)
    assert re.search(r"^  journal runs +can be used$", ran.out, re.MULTILINE)
    assert re.search(r"^  clock +this host is -?0\.\d{3} s (ahead of|behind) it", ran.out, re.MULTILINE)
    assert len(re.findall(r"^  next tick \d +[\d-]{10} 02:30:00  [\d-]{10} 0[01]:30:00$", ran.out, re.M)) == 5
    assert "Doubtful" not in ran.out
    assert "Wrong" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    # It locks nothing and runs nothing.
    assert operator.rows() == {}
    assert operator.sql("SELECT count(*) FROM runs") == [(0,)]


def test_it_reminds_of_what_all_hosts_must_set_alike(operator: Dislock) -> None:
    ran = operator.run(
        "--check", "--strategy=schedule,lease", "--slot-consumed-by=success", "DATABASE_URL", "true", **SLOT
    )
    assert (ran.code, ran.err) == (0, "")
    assert "all hosts of this key must use the same value" in " ".join(ran.out.partition("Doubtful")[2].split())


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--skipped-exit-code=99"], 99), (["--wait=600"], None)])
def test_it_reminds_of_a_killed_run_that_nobody_waits_for(
    operator: Dislock, options: list[str], code: int | None
) -> None:
    given = {**SLOT, "LOCK_STRATEGY": "schedule,lease", "LOCK_SLOT_CONSUMED_BY": "success"}
    ran = operator.run("--check", "--ttl=30", *options, "DATABASE_URL", "true", **given)
    assert (ran.code, ran.err) == (0, "")
    doubts = " ".join(ran.out.partition("Doubtful")[2].split())
    said = f"without --wait, a start within 30 s (the TTL) of a killed run is skipped with exit code {code}"
    assert (said in doubts) == (code is not None)
    assert ("killed run" in doubts) == (code is not None)


def test_a_command_that_never_ran_is_compared_with_those_that_did(operator: Dislock) -> None:
    operator.run("DATABASE_URL", "echo", "one", LOCK_KEY="job", LOCK_STRATEGY="lease")
    said = {
        word: operator.run("--check", "DATABASE_URL", "echo", word, LOCK_KEY="job", LOCK_STRATEGY="lease").out
        for word in ("one", "two")
    }
    doubt = " ".join(said["two"].partition("Doubtful")[2].split())
    moment = r"\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(rf"this key: echo \w{{12}} \((last on \S+, {moment}|this line)\), echo \w{{12}} \(", doubt)
    assert ("this line" in doubt, socket.gethostname() in doubt) == (True, True)
    assert "Doubtful" not in said["one"]


@pytest.mark.parametrize(("strategy", "says"), [("schedule", True), ("schedule,lease", True), ("lease", False)])
def test_a_slot_that_another_schedule_holds_is_named_with_its_end_and_its_release(
    operator: Dislock, strategy: str, says: bool
) -> None:
    given = {**SLOT, "CRON_SCHEDULE": "0 0 1 1 *", "CRON_TZ": "UTC", "LOCK_STRATEGY": strategy}
    operator.sql("INSERT INTO key_value VALUES ('cronjob-lock:schedule:job', 'h:1', '2999-07-01T00:00Z')")
    said = " ".join(operator.run("--check", "DATABASE_URL", **given).out.split())
    assert ("it is taken until 2999-07-01 00:00:00" in said) == says
    assert ("the slot is held by h:1 until 2999-07-01 00:00:00+00:00, and not by this schedule" in said) == says
    assert ("dislock --release job --slot DATABASE_URL" in said) == says


def test_a_slot_that_this_schedule_has_taken_is_shown_and_no_doubt(operator: Dislock) -> None:
    assert operator.run("DATABASE_URL", "true", **SLOT, LOCK_JOURNAL="").code == 0
    said = operator.run("--check", "DATABASE_URL", **SLOT).out
    assert re.search(r"^  it is taken until +[\d-]{10} 02:30:00  ", said, re.MULTILINE)
    assert "Doubtful" not in said


def test_what_is_doubtful_is_said_and_changes_no_exit_code(operator: Dislock) -> None:
    for word in ("one", "two"):
        operator.run("DATABASE_URL", "echo", word, LOCK_KEY="job", LOCK_STRATEGY="lease")
    ran = operator.run(
        "--check", "--ttl=5", "--schedule=* * * * * */2", "DATABASE_URL", LOCK_KEY="job", LOCK_STRATEGY="schedule"
    )
    assert (ran.code, ran.err) == (0, "")
    doubts = " ".join(ran.out.partition("Doubtful")[2].split())
    assert "--ttl has no effect without the strategy lease" in doubts
    assert "no time zone is set, so the database session's zone (UTC) is used" in doubts
    assert "the slot tolerance of 5 s is cut to 1 s" in doubts
    assert "two or more commands have this key: echo" in doubts


@pytest.mark.parametrize(
    ("statement", "code", "reason"),
    [
        ("DROP TABLE key_value", 2, "the table key_value does not exist in this database: --init creates it"),
        ("ALTER DATABASE {} SET default_transaction_read_only = on", 1, "the server is read-only"),
    ],
)
def test_what_is_wrong_ends_as_a_run_would(operator: Dislock, statement: str, code: int, reason: str) -> None:
    (name,) = operator.sql("SELECT current_database()::text")[0]
    operator.sql(statement.format(name))
    ran = operator.run("--check", "DATABASE_URL", **SLOT)
    assert (ran.code, ran.err.count("\n")) == (code, 1)
    assert reason in ran.err
    assert reason in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("statement", "given", "doubt"),
    [
        ("DROP TABLE key_value", {"LOCK_STRATEGY": "advisory"}, ""),
        ("ALTER DATABASE {} SET default_transaction_read_only = on", {"LOCK_STRATEGY": "advisory"}, ""),
        ("DROP TABLE runs", {}, "runs are not recorded: the table runs does not exist in this database"),
        ("", {"LOCK_STRATEGY": "schedule,lease", "LOCK_SLOT_CONSUMED_BY": "success"}, "all hosts of this key must"),
    ],
)
def test_what_a_run_can_do_without_is_not_wrong(
    operator: Dislock, statement: str, given: dict[str, str], doubt: str
) -> None:
    (name,) = operator.sql("SELECT current_database()::text")[0]
    if statement:
        operator.sql(statement.format(name))
    given = {**SLOT, **given}
    ran = operator.run("--check", "DATABASE_URL", "true", **given)
    assert (ran.code, ran.err) == (0, "")
    assert "Wrong" not in ran.out
    assert doubt in " ".join(ran.out.split())
    assert operator.run("DATABASE_URL", "true", **given).code == 0


def test_missing_privileges_and_a_missing_command_are_named(operator: Dislock) -> None:
    operator.sql("CREATE ROLE check_cron LOGIN", "GRANT SELECT, INSERT ON key_value TO check_cron")
    try:
        url = psycopg.conninfo.make_conninfo(operator.url, user="check_cron")
        ran = operator.run("--check", "DATABASE_URL", "no-such-command", **{**SLOT, "DATABASE_URL": url})
        assert ran.code == 2
        assert "the table key_value: GRANT UPDATE ON key_value TO check_cron" in " ".join(ran.out.split())
        assert "the command was not found" in ran.out
        assert re.search(r"^  lock table key_value +cannot be used, see below$", ran.out, re.MULTILINE)
    finally:
        operator.sql("DROP OWNED BY check_cron", "DROP ROLE check_cron")


@pytest.mark.parametrize(("answer", "code", "held"), [("y\n", 0, False), ("n\n", 2, True), ("\n", 2, True)])
def test_on_a_terminal_release_asks(operator: Dislock, answer: str, code: int, held: bool) -> None:
    operator.sql("INSERT INTO key_value VALUES ('cronjob-lock:lease:job', 'h:1', now() + interval '1 hour')")
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*operator.command, "--release", "job", "DATABASE_URL"], env=operator.environment, cwd=operator.folder,
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        os.write(ours, answer.encode())
        out, err = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == code
    assert "Free it? [y/N]" in out
    assert ("nothing was changed" in err) == held
    assert operator.rows()["lease:job"].live == held
