"""Help, and settings that are refused before anything is opened."""

from __future__ import annotations

import pytest

from tests.support.contract import Dislock

pytestmark = pytest.mark.integration

URL = "postgresql://me:hush-hush@127.0.0.1:1/nowhere"
VARIABLES = {
    "LOCK_KEY": "--lock-key",
    "CRON_SCHEDULE": "--schedule",
    "CRON_TZ": "--time-zone",
    "LOCK_STRATEGY": "--strategy",
    "LOCK_TABLE": "--table",
    "RUN_LOCK_TTL_SECONDS": "--ttl",
    "LOCK_LEASE_INTERVAL": "--interval",
    "LOCK_JITTER_SECONDS": "--jitter",
    "LOCK_ON_LEASE_LOSS": "--on-lease-loss",
    "LOCK_KILL_GRACE_SECONDS": "--kill-grace",
    "LOCK_CONNECT_TIMEOUT_SECONDS": "--connect-timeout",
    "LOCK_SLOT_TOLERANCE_SECONDS": "--slot-tolerance",
    "LOCK_JOURNAL": "--journal",
    "LOCK_JOURNAL_KEEP_DAYS": "--journal-keep-days",
    "CRONJOB_LOCK_LOG_LEVEL": "--log-level",
    "CRONJOB_LOCK_LOG_FORMAT": "--log-format",
    "CRONJOB_LOCK_LOG_TIME": "--log-time",
}
GOOD = {"DATABASE_URL": URL, "LOCK_KEY": "job", "CRON_SCHEDULE": "0 3 * * *", "LOCK_STRATEGY": "schedule,lease"}


def refused(bare: Dislock, *argv: str | bytes, **environ: str) -> str:
    """The one line that says why."""
    bare.environment |= {**GOOD, **environ}
    ran = bare.run(*argv)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dislock: ")
    assert ran.err.count("\n") == 1
    assert "hush" not in ran.err
    return ran.err


def test_help_names_all_settings_and_exit_codes(bare: Dislock) -> None:
    ran = bare.run("--help")
    assert (ran.code, ran.err) == (0, "")
    for variable, option in VARIABLES.items():
        assert variable in ran.out
        assert option in ran.out
    for code in ("75", "126", "127", "128+N"):
        assert code in ran.out


@pytest.mark.short
def test_version(bare: Dislock) -> None:
    ran = bare.run("--version")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("dislock ")


@pytest.mark.parametrize("variable", VARIABLES)
def test_what_is_wrong_is_named(bare: Dislock, variable: str) -> None:
    bad = "\udcff" if variable in ("LOCK_KEY", "CRON_SCHEDULE", "LOCK_TABLE", "LOCK_JOURNAL") else "nan"
    option = VARIABLES[variable]
    assert option in refused(bare, f"{option}={bad}", "DATABASE_URL", "true")
    if variable != "CRONJOB_LOCK_LOG_LEVEL":
        assert variable in refused(bare, "DATABASE_URL", "true", **{variable: bad})


@pytest.mark.parametrize("text", ["inf", "0", "-1", "1e400", "1_0", "\uff11\uff10", "0x10", "9999999"])
def test_numbers_that_are_none(bare: Dislock, text: str) -> None:
    assert "RUN_LOCK_TTL_SECONDS must be" in refused(bare, "DATABASE_URL", "true", RUN_LOCK_TTL_SECONDS=text)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "URL is missing"),
        (["DATABASE_URL"], "no command"),
        (["DATABASE_URL", "--"], "no command"),
        (["--lock", "x", "DATABASE_URL", "true"], "unknown option"),
        (["DATABASE_URL", "--ttl", "5", "true"], "in front of"),
        (["NO_SUCH_URL", "true"], "NO_SUCH_URL"),
        (["LOCK_EMPTY", "true"], "LOCK_EMPTY"),
        ([URL, "true"], "not the URL itself"),
        (["host=127.0.0.1 password=hush-hush", "true"], "not the URL itself"),
        (["--ttl", URL, "DATABASE_URL", "true"], "--ttl"),
        ([b"\xff\xfe", "true"], "first argument"),
        (["--ttl=5", "--interval=6", "DATABASE_URL", "true"], "--interval"),
    ],
)
def test_usage_errors(bare: Dislock, argv: list[str | bytes], reason: str) -> None:
    assert reason in refused(bare, *argv, LOCK_EMPTY=" ")


@pytest.mark.parametrize(
    "url",
    ["hush-hush", "postgresql://me:hush-hush@127.0.0.1:port/d", "postgresql://me:hush-hush@[::1/d",
     "host=h pass word=hush-hush", "postgresql://me:hush%zz@h/d", "mysql://me:hush-hush@h/d", "postgresql://h/d?nonsense=hush-hush"],
)  # fmt: skip
def test_a_malformed_url_is_not_repeated(bare: Dislock, url: str) -> None:
    refused(bare, "DATABASE_URL", "true", DATABASE_URL=url)


@pytest.mark.parametrize("name", ["LOCK_KEY", "CRON_SCHEDULE"])
def test_what_has_no_default_must_be_there(bare: Dislock, name: str) -> None:
    assert name in refused(bare, "DATABASE_URL", "true", **{name: " "})


def test_standard_error_on_a_full_disk_changes_nothing(bare: Dislock, on_this_host: None) -> None:
    words = " ".join(f"'{word}'" for word in bare.command)
    bare.command = ["/bin/sh", "-c"]
    for ending, code in (("--help >/dev/full", 0), ("--nonsense 2>/dev/full", 2), ("--nonsense 2>&-", 2)):
        ran = bare.run(f"{words} {ending}")
        assert (ran.code, ran.err) == (code, "")
