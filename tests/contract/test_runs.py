"""A command under its locks: started once, told what it must know, and its end passed on."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.contract import Dislock
from tests.support.wait import until

pytestmark = pytest.mark.integration

#: Tells that it runs, and waits for the end of its input.
HOLD = ("sh", "-c", "echo ready; cat >/dev/null")
#: Prints what dislock tells the command.
TELL = ("sh", "-c", "env | grep ^DISLOCK_")


def set_time_zone(dislock: Dislock, zone: str) -> None:
    """The zone in which new sessions begin."""
    name = dislock.sql("SELECT current_database()")[0][0]
    dislock.sql(f"ALTER DATABASE {name} SET timezone = '{zone}'")


class TestSchedule:
    @pytest.mark.short
    def test_one_start_per_slot_and_silence(self, dislock: Dislock) -> None:
        first, second = (dislock.run("DATABASE_URL", "echo", "ran") for _ in range(2))
        assert (first.code, first.out, first.err) == (0, "ran\n", "")
        assert (second.code, second.out, second.err) == (0, "", "")

    def test_a_refusal_is_told_at_info(self, dislock: Dislock) -> None:
        owner = dislock.run("DATABASE_URL", *TELL).told["DISLOCK_OWNER"]
        ran = dislock.run("DATABASE_URL", "true", CRONJOB_LOCK_LOG_LEVEL="info")
        assert ran.code == 0
        assert ran.err.startswith("dislock: ")
        assert ran.err.count("\n") == 1
        assert "cronjob-lock:schedule:job" in ran.err
        assert owner in ran.err

    def test_the_row_ends_at_the_next_tick(self, dislock: Dislock) -> None:
        told = dislock.run("DATABASE_URL", *TELL).told
        year = datetime.now(timezone.utc).year
        assert told["DISLOCK_SLOT"] == f"{year}-01-01T00:00:00Z"
        assert told["DISLOCK_LOCK_KEY"] == "job"
        row = dislock.rows()["schedule:job"]
        assert row.value == told["DISLOCK_OWNER"]
        assert re.fullmatch(r".+:\d+", row.value)
        assert row.expires == datetime(year + 1, 1, 1, tzinfo=timezone.utc)

    @pytest.mark.short
    def test_the_slot_is_the_zones(self, dislock: Dislock) -> None:
        dislock.run("DATABASE_URL", "true", CRON_TZ="asia/tokyo")
        assert dislock.rows()["schedule:job"].expires.astimezone(timezone.utc).strftime("%m-%d %H") == "12-31 15"

    def test_without_a_zone_it_is_the_sessions(self, dislock: Dislock) -> None:
        del dislock.environment["CRON_TZ"]
        set_time_zone(dislock, "Asia/Tokyo")
        dislock.run("DATABASE_URL", "true")
        assert dislock.rows()["schedule:job"].expires.astimezone(timezone.utc).strftime("%m-%d %H") == "12-31 15"

    def test_another_key_is_another_lock(self, dislock: Dislock) -> None:
        assert dislock.run("DATABASE_URL", "echo", "a").out == "a\n"
        assert dislock.run("--lock-key=other", "DATABASE_URL", "echo", "b").out == "b\n"

    def test_many_at_once_run_once(self, dislock: Dislock) -> None:
        started = [dislock.start("DATABASE_URL", "echo", "ran") for _ in range(8)]
        ended = [dislock.finish(process) for process in started]
        assert [ran.code for ran in ended] == [0] * 8
        assert [ran.out for ran in ended].count("ran\n") == 1
        assert {ran.err for ran in ended} == {""}

    def test_a_slot_that_is_over_is_free(self, dislock: Dislock) -> None:
        dislock.run("DATABASE_URL", "true")
        dislock.sql("UPDATE key_value SET expire_at = now() - interval '1 day'")
        assert dislock.run("DATABASE_URL", "echo", "ran").out == "ran\n"

    @pytest.mark.short
    def test_the_command_takes_the_place_of_the_process(self, dislock: Dislock, on_this_host: None) -> None:
        process = dislock.start("DATABASE_URL", "sh", "-c", "echo $$")
        assert dislock.finish(process).out == f"{process.pid}\n"

    def test_variables_that_are_for_the_command_change_no_slot(self, dislock: Dislock) -> None:
        meant: dict[str, Any] = {
            "PSYCOPG_IMPL": "c",
            "PSYCOPG_WAIT_FUNC": "nonsense",
            "PYTHONTZPATH": "nowhere",
            "PGTZ": "Asia/Tokyo",
            "PGOPTIONS": "-c timezone=Asia/Tokyo",
            "PGDATESTYLE": "nonsense",
            "PGGEQO": "nonsense",
        }
        del dislock.environment["CRON_TZ"]
        set_time_zone(dislock, "America/Lima")
        ran = dislock.run("DATABASE_URL", "env", **meant)
        assert ran.code == 0
        assert meant.items() <= ran.told.items()
        assert ran.told["DISLOCK_SLOT"].endswith("-01-01T05:00:00Z")

    def test_the_connection_string_may_name_the_sessions_zone(self, dislock: Dislock) -> None:
        del dislock.environment["CRON_TZ"]
        url = make_conninfo(dislock.environment["DATABASE_URL"], options="-c timezone=America/Lima")
        ran = dislock.run("DATABASE_URL", *TELL, DATABASE_URL=url)
        assert ran.told["DISLOCK_SLOT"].endswith("-01-01T05:00:00Z")

    def test_a_zone_without_a_name_needs_one(self, dislock: Dislock) -> None:
        del dislock.environment["CRON_TZ"]
        set_time_zone(dislock, "<+03>-03")
        ran = dislock.run("DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (2, "")
        assert "CRON_TZ" in ran.err
        assert ran.err.count("\n") == 1
        assert dislock.rows() == {}
        assert dislock.run("DATABASE_URL", "echo", "ran", CRON_TZ="UTC").out == "ran\n"


class TestLease:
    @pytest.mark.short
    def test_one_run_at_a_time(self, lease: Dislock) -> None:
        first = lease.start("DATABASE_URL", *HOLD, stdin=subprocess.PIPE)
        assert lease.line(first) == "ready"
        row = lease.rows()["lease:job"]
        assert row.live
        assert row.expires - datetime.now(timezone.utc) < timedelta(seconds=61)
        second = lease.run("DATABASE_URL", "echo", "ran")
        assert (second.code, second.out, second.err) == (0, "", "")
        assert lease.finish(first, b"").code == 0
        assert not lease.rows()["lease:job"].live
        assert lease.run("DATABASE_URL", "echo", "ran").out == "ran\n"

    def test_it_is_renewed_as_long_as_the_command_runs(self, lease: Dislock) -> None:
        process = lease.start(
            "--ttl=1.5",
            "--interval=0.1",
            "DATABASE_URL",
            "sh",
            "-c",
            "echo ready; cat >/dev/null",
            stdin=subprocess.PIPE,
        )
        assert lease.line(process) == "ready"
        first = lease.rows()["lease:job"].expires
        # Two TTLs later by the database's clock.
        until(lambda: lease.rows()["lease:job"].expires > first + timedelta(seconds=3))
        ran = lease.finish(process, b"")
        assert (ran.code, ran.err) == (0, "")

    def test_a_row_that_ends_far_away_is_warned_of(self, lease: Dislock) -> None:
        lease.sql("INSERT INTO key_value VALUES ('cronjob-lock:lease:job', 'ghost:1', now() + interval '30 days')")
        ran = lease.run("DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (0, "")
        assert ran.err.startswith("dislock: warning: cronjob-lock:lease:job is held by ghost:1 until ")
        assert "far beyond the TTL of 60 s" in ran.err
        assert ran.err.count("\n") == 1

    def test_a_table_that_discards_the_row_is_no_refusal(self, lease: Dislock) -> None:
        lease.sql(
            "CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER discard BEFORE INSERT ON key_value FOR EACH ROW EXECUTE FUNCTION discard()",
        )
        for options in ([], ["--wait=60"]):
            ran = lease.run(*options, "DATABASE_URL", "echo", "ran")
            assert (ran.code, ran.out) == (1, "")
            assert "was refused although nobody holds it: a trigger" in ran.err
            assert ran.err.count("\n") == 1

    def test_the_token_rises(self, lease: Dislock) -> None:
        tokens = [int(lease.run("DATABASE_URL", *TELL).told["DISLOCK_FENCING_TOKEN"]) for _ in range(4)]
        assert tokens == sorted(set(tokens))

    def test_it_has_no_slot(self, lease: Dislock) -> None:
        told = lease.run("DATABASE_URL", *TELL, DISLOCK_SLOT="of an outer one", DISLOCK_OWNER="outer").told
        assert set(told) == {"DISLOCK_LOCK_KEY", "DISLOCK_OWNER", "DISLOCK_FENCING_TOKEN"}
        assert told["DISLOCK_OWNER"] != "outer"


class TestBoth:
    def test_once_per_slot_and_one_at_a_time(self, dislock: Dislock) -> None:
        dislock.environment["LOCK_STRATEGY"] = " Lease , schedule "
        told = dislock.run("DATABASE_URL", *TELL).told
        assert set(told) == {"DISLOCK_LOCK_KEY", "DISLOCK_OWNER", "DISLOCK_FENCING_TOKEN", "DISLOCK_SLOT"}
        rows = dislock.rows()
        assert rows["schedule:job"].live
        assert not rows["lease:job"].live
        assert dislock.run("DATABASE_URL", "echo", "ran").out == ""

    def test_a_refused_lease_gives_the_slot_back(self, dislock: Dislock) -> None:
        dislock.sql("INSERT INTO key_value VALUES ('cronjob-lock:lease:job', 'somebody:1', now() + interval '1 hour')")
        ran = dislock.run("DATABASE_URL", "echo", "ran", LOCK_STRATEGY="schedule,lease")
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        assert not dislock.rows()["schedule:job"].live
        assert dislock.run("DATABASE_URL", "echo", "ran").out == "ran\n"


class TestCommand:
    @pytest.mark.short
    @pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("exit 255", 255)])
    def test_its_exit_code(self, each: Dislock, script: str, code: int) -> None:
        ran = each.run("DATABASE_URL", "sh", "-c", script)
        assert (ran.code, ran.out, ran.err) == (code, "", "")

    def test_its_death_by_a_signal(self, each: Dislock) -> None:
        # A shell tells both in one way: where the command took the place of the process it died itself.
        assert each.run("DATABASE_URL", "sh", "-c", "kill -TERM $$").code in (143, -15)

    @pytest.mark.short
    @pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc", 126)])
    def test_one_that_cannot_be_started_gives_everything_back(self, each: Dislock, command: str, code: int) -> None:
        ran = each.run("DATABASE_URL", command)
        assert (ran.code, ran.out) == (code, "")
        assert command in ran.err
        assert ran.err.count("\n") == 1
        assert [row.live for row in each.rows().values()] == [False] * len(each.rows())
        assert each.run("DATABASE_URL", "echo", "ran").out == "ran\n"

    def test_its_arguments_arrive(self, each: Dislock) -> None:
        words = ["", " ", "a b", "é", "--help", "--", "$HOME", "*", "'", "two\nlines"]
        assert each.run("DATABASE_URL", "--", "printf", "<%s>", *words).out == "".join(f"<{word}>" for word in words)

    def test_its_arguments_arrive_byte_by_byte(self, each: Dislock, on_this_host: None) -> None:
        ran = each.run("DATABASE_URL", "--", "printf", "<%s>", b"\xff\xfe", b"\xc3\xa9")
        assert ran.out.encode("utf-8", "surrogateescape") == b"<\xff\xfe><\xc3\xa9>"

    @pytest.mark.short
    def test_its_environment_is_as_it_came(self, each: Dislock, on_this_host: None) -> None:
        before = {
            **each.environment, "LC_ALL": "C", "EMPTY": "", "PYTHONPATH": "/nowhere", "PYTHONHASHSEED": "3",
            "BYTES": "\udcff", "LINES_": "two\nlines", "DISLOCK_SLOT": "old",
        }  # fmt: skip
        each.environment = before
        ran = each.run("DATABASE_URL", "sh", "-c", "exec env -0")
        after = dict(entry.split("=", 1) for entry in ran.out.split("\0") if entry)
        ours = {name for name in after if name.startswith("DISLOCK_")}
        assert {"DISLOCK_LOCK_KEY", "DISLOCK_OWNER", "DISLOCK_FENCING_TOKEN"} <= ours
        assert ours <= {"DISLOCK_LOCK_KEY", "DISLOCK_OWNER", "DISLOCK_FENCING_TOKEN", "DISLOCK_SLOT"}
        assert after.get("DISLOCK_SLOT") != "old"
        assert {name: value for name, value in after.items() if name not in ours and name not in ("_", "PWD")} == {
            name: value for name, value in before.items() if name != "DISLOCK_SLOT"
        }

    def test_a_key_beyond_ascii_in_a_locale_without_it(self, each: Dislock) -> None:
        each.environment |= {
            "LC_ALL": "POSIX",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "LOCK_KEY": "B\u00fccher",
        }
        ran = each.run("DATABASE_URL", *TELL)
        assert (ran.code, ran.err) == (0, "")
        assert ran.told["DISLOCK_LOCK_KEY"] == "B\u00fccher"
        assert {key.partition(":")[2] for key in each.rows()} == {"B\u00fccher"}

    def test_its_streams_are_ours(self, each: Dislock) -> None:
        ran = each.run("DATABASE_URL", "sh", "-c", "cat; echo problem >&2", stdin=b"from outside\n")
        assert (ran.code, ran.out, ran.err) == (0, "from outside\n", "problem\n")

    def test_closed_and_full_streams_are_the_commands_own_affair(self, each: Dislock, on_this_host: None) -> None:
        words = " ".join(f"'{word}'" for word in each.command)
        each.command = ["/bin/sh", "-c"]
        ran = each.run(f"{words} DATABASE_URL sh -c 'exit 5' <&- >&- 2>&-")
        assert (ran.code, ran.err) == (5, "")
        # What was closed stays closed.
        ran = each.run(f"{words} --lock-key=b DATABASE_URL sh -c 'cat 2>/dev/null || echo closed' <&-")
        assert (ran.code, ran.out) == (0, "closed\n")


class TestTable:
    @pytest.mark.parametrize(
        ("setting", "name"),
        [
            ("locks", "locks"),
            ("app.locks", "app.locks"),
            ('"my.schema"."Tab.le"', '"my.schema"."Tab.le"'),
            ('app."we""ird"', 'app."we""ird"'),
            ("Mixed", '"Mixed"'),
        ],
    )
    def test_its_name(self, dislock: Dislock, setting: str, name: str) -> None:
        schema = {"l": "public", "M": "public", "a": "app"}.get(setting[0], '"my.schema"')
        dislock.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}", f"CREATE TABLE {name} (LIKE key_value INCLUDING ALL)")
        assert dislock.run("--table", setting, "DATABASE_URL", "echo", "ran").out == "ran\n"
        assert set(dislock.rows(name)) == {"schedule:job"}
        assert dislock.rows() == {}

    def test_it_is_missing(self, each: Dislock) -> None:
        ran = each.run("--table=nowhere", "DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (2, "")
        assert "nowhere" in ran.err
        assert "CREATE TABLE" in ran.err
        assert ran.err.count("\n") == 1

    def test_it_is_not_ours(self, each: Dislock) -> None:
        name = "t" + str(os.getpid())
        each.sql(f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN PASSWORD 'hush-hush'")
        try:
            ran = each.run("DATABASE_URL", "echo", "ran", PGUSER=name, DATABASE_URL=as_user(each.url, name))
        finally:
            each.sql(f"DROP ROLE {name}")
        assert (ran.code, ran.out) == (2, "")
        assert "key_value" in ran.err
        assert "GRANT" in ran.err
        assert ran.err.count("\n") == 1
        assert "hush" not in ran.err


def as_user(url: str, name: str) -> str:
    """The same database for another role."""
    import psycopg.conninfo

    return psycopg.conninfo.make_conninfo(url, user=name, password="hush-hush")


class TestDatabase:
    def test_it_cannot_be_reached(self, each: Dislock) -> None:
        ran = each.run(
            "--connect-timeout=0.3",
            "DATABASE_URL",
            "echo",
            "ran",
            DATABASE_URL="postgresql://me:hush-hush@127.0.0.1:1/d",
        )
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.count("\n") == 1
        assert "hush" not in ran.err

    def test_it_does_not_exist(self, each: Dislock) -> None:
        import psycopg.conninfo

        url = psycopg.conninfo.make_conninfo(each.url, dbname="no_such_database")
        ran = each.run("DATABASE_URL", "echo", "ran", DATABASE_URL=url)
        assert ran.code == 2
        assert "no_such_database" in ran.err
        assert ran.err.count("\n") == 1

    def test_any_way_to_write_its_url(self, dislock: Dislock) -> None:
        for number, url in enumerate((dislock.url, f" {dislock.url}\n")):
            ran = dislock.run(f"--lock-key={number}", "MY_URL", "echo", "ran", MY_URL=url, DATABASE_URL="")
            assert (ran.code, ran.out, ran.err) == (0, "ran\n", "")


def test_an_unknown_log_level_is_a_warning_and_a_run(dislock: Dislock) -> None:
    ran = dislock.run("DATABASE_URL", "echo", "ran", CRONJOB_LOCK_LOG_LEVEL="LOUD")
    assert (ran.code, ran.out) == (0, "ran\n")
    assert ran.err.startswith("dislock: warning: CRONJOB_LOCK_LOG_LEVEL must be")
    assert ran.err.count("\n") == 1


def test_no_secret_even_at_debug(each: Dislock) -> None:
    import psycopg.conninfo

    url = psycopg.conninfo.make_conninfo(each.url, password="hush-hush")
    for command in ("true", "/no/such/command"):
        assert "hush" not in each.run("--log-level=DEBUG", "DATABASE_URL", command, DATABASE_URL=url).err
