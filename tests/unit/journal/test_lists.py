"""The lists: runs and locks, as tables, as JSON, and for Prometheus."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from dislock.cli.tables import table, width
from dislock.journal import runs, status
from dislock.journal.metrics import metrics
from dislock.journal.overdue import overdue
from tests.unit.journal.rows import HOUR, MINUTE, NOW, SECOND, at, failed, lock, recent, run

BERLIN = ZoneInfo("Europe/Berlin")
LEASE = {"strategy": "lease", "schedule": None, "time_zone": None, "tick": None}


def test_a_run_is_a_line_in_the_zone_of_its_schedule() -> None:
    tick = at("20 02:00")
    rows = [
        run(tick + 2 * SECOND, 3 * MINUTE, tick=tick, time_zone="Europe/Berlin"),
        failed(at("19 02:00"), 137, tick=at("19 02:00") + 30 * SECOND, time_zone="Europe/Berlin"),
        run(at("19 12:00"), None, key="import", live=True, **LEASE),
        # Started by hand the next day, still of that tick.
        run(at("19 23:30"), tick=at("19 02:00"), time_zone="Europe/Berlin"),
    ]
    zone = runs.common_zone(rows)
    assert zone.key == "Europe/Berlin"
    assert runs.table(rows, NOW, zone) == [
        ("report", "01-20 03:00", "host7", "03:00:02", "3m 00s", "success"),
        ("report", "01-19 03:00:30", "host7", "03:00:00", "1m 00s", "signal KILL"),
        ("import", "-", "host7", "01-19 13:00:00", "21h 00m", "running"),
        ("report", "01-19 03:00", "host7", "01-20 00:30:00", "1m 00s", "success"),
    ]


def test_schedules_of_different_zones_are_told_in_utc() -> None:
    assert runs.common_zone([run(NOW), run(NOW, time_zone="Europe/Berlin")]).key == "UTC"
    assert runs.common_zone([]).key == "UTC"
    # A name that this host does not know is no reason to fail.
    assert runs.common_zone([run(NOW, time_zone="Mars/Olympus")]).key == "UTC"


def test_json_has_all_of_a_run() -> None:
    (found,) = runs.as_json([run(at("20 03:00"), 90 * SECOND)], NOW)
    assert found == {
        "id": at("20 03:00"), "key": "report", "strategy": "schedule,lease", "schedule": "0 3 * * *",
        "time_zone": "UTC", "tick": "2026-01-20T03:00:00Z", "owner": "host7:4711", "host": "host7",
        "token": at("20 03:00"), "command": "report 0a1b2c", "started_at": "2026-01-20T03:00:00Z",
        "ended_at": "2026-01-20T03:01:30Z", "took_seconds": 90.0, "exit_code": 0, "state": "success",
    }  # fmt: skip


def test_locks_are_listed_by_job_and_kind() -> None:
    rows = [
        lock("cronjob-lock:schedule:report"),
        lock("cronjob-lock:lease:report", left=-MINUTE),
        lock("somebody-else's"),
    ]
    found = status.locks(rows)
    assert status.table(found, None, BERLIN) == [
        ("report", "slot", "host7:4711", "1h 00m"),
        ("report", "lease", "host7:4711", "free"),
    ]
    assert status.as_json(found, None)[0] == {
        "key": "report", "kind": "slot", "held": True, "owner": "host7:4711", "ends_at": "2026-01-20T10:00:00Z",
    }  # fmt: skip


def test_with_a_journal_locks_say_since_when_and_how_the_last_run_ended() -> None:
    rows = recent(failed(at("19 03:00")), run(at("20 03:00"), None, live=True))
    held = status.locks([lock("cronjob-lock:lease:report"), lock("cronjob-lock:lease:new", owner="other:1")])
    assert status.table(held, rows, BERLIN) == [
        ("report", "lease", "host7:4711", "1h 00m", "04:00:00", "exit 1"),
        ("new", "lease", "other:1", "1h 00m", "-", "-"),
    ]
    first, second = status.as_json(held, rows)
    assert first["since"] == "2026-01-20T03:00:00Z"
    assert first["last_run"] == {"ended_at": "2026-01-19T03:01:00Z", "state": "failure"}
    assert (second["since"], second["last_run"]) == (None, None)


def test_a_lock_that_never_ends_says_so() -> None:
    (found,) = status.locks([lock("cronjob-lock:lease:a")._replace(expires=2**63 - 1)])
    assert status.table([found], None, BERLIN)[0][-1] == "forever"
    assert status.as_json([found], None)[0]["ends_at"] is None


def test_metrics() -> None:
    rows = recent(
        failed(at("20 03:00"), 3, key='a"b\\c\n'),
        run(at("20 04:00"), None, live=True, key='a"b\\c\n', **LEASE),
        success=at("19 03:01"),
    )
    text = metrics(rows, status.locks([lock("cronjob-lock:lease:x")]), overdue(rows, NOW, late=300.0))
    label = '{key="a\\"b\\\\c\\n"}'
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        f"dislock_last_start_timestamp_seconds{label} {at('20 04:00') / 1e6:.3f}",
        f"dislock_last_success_timestamp_seconds{label} {at('19 03:01') / 1e6:.3f}",
        f"dislock_last_exit_code{label} 3",
        f"dislock_last_duration_seconds{label} 60.000",
        'dislock_held{key="x",kind="lease"} 1',
        f"dislock_overdue{label} 2",
    ]
    assert text.count("# HELP ") == text.count("# TYPE ") == 6
    assert metrics([], [], []) == ""


def test_tables_are_as_wide_as_their_content() -> None:
    text = table(("KEY", "OWNER"), [("a", "host:1"), ("\u65e5\u672c", "b\x1b[2J"), ("e\u0301", "c")])
    assert text == "KEY   OWNER\na     host:1\n\u65e5\u672c  b\\x1b[2J\ne\u0301     c\n"
    assert width("\u65e5\u672ce\u0301") == 5


def test_what_is_usual_fits_eighty_columns() -> None:
    usual = {"key": "nightly-report", "owner": "db1.example.com:12345"}
    rows = [
        run(at("20 03:00"), 59 * MINUTE + 59 * SECOND, outcome="not started", exit_code=126, **usual),
        run(at("20 03:00") + HOUR, None, live=True, **usual),
    ]
    assert max(map(len, table(runs.HEADINGS, runs.table(rows, NOW, BERLIN)).splitlines())) <= 80
    held = status.locks([lock("cronjob-lock:schedule:nightly-report", owner="db1.example.com:12345")])
    lines = table(status.HEADINGS + status.MORE_HEADINGS, status.table(held, recent(*rows), BERLIN)).splitlines()
    assert max(map(len, lines)) <= 80
