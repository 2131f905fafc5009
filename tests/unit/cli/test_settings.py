"""Arguments and environment to settings: precedence, defaults, names in messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dislock.cli.arguments import Help, Version
from dislock.cli.asked import Settings
from dislock.cli.options import OPTIONS, Option
from dislock.cli.settings import load
from dislock.context import LeaseLossPolicy
from dislock.errors import ConfigurationError
from dislock.process.environment import original_environment
from dislock.request import Request

URL = "postgresql://u:p@h/d"
ENVIRON = {"DATABASE_URL": URL, "LOCK_KEY": "job", "CRON_SCHEDULE": "0 3 * * *"}
#: A value of each setting that is not its default, and one that is refused.
SAMPLES = {
    "LOCK_KEY": ("other", "\udcff"),
    "CRON_SCHEDULE": ("@hourly", "61 * * * *"),
    "CRON_TZ": ("Asia/Tokyo", "Mars/Olympus"),
    "LOCK_STRATEGY": ("lease", "leese"),
    "LOCK_TABLE": ("a.b", "a..b"),
    "RUN_LOCK_TTL_SECONDS": ("33", "0"),
    "LOCK_LEASE_INTERVAL": ("7", "0"),
    "LOCK_JITTER_SECONDS": ("1.5", "-1"),
    "LOCK_ON_LEASE_LOSS": ("continue", "stop"),
    "LOCK_KILL_GRACE_SECONDS": ("3", "nan"),
    "LOCK_CONNECT_TIMEOUT_SECONDS": ("0.25", "0"),
    "LOCK_SLOT_TOLERANCE_SECONDS": ("0", "1e9"),
    "LOCK_WAIT_SECONDS": ("300", "-1"),
    "LOCK_SLOT_CONSUMED_BY": ("success", "end"),
    "LOCK_SKIPPED_EXIT_CODE": ("0", "256"),
    "CRONJOB_LOCK_LOG_LEVEL": ("DEBUG", "LOUD"),
    "LOCK_JOURNAL": ("a.runs", "a..b"),
    "LOCK_JOURNAL_KEEP_DAYS": ("7", "-1"),
    "CRONJOB_LOCK_LOG_FORMAT": ("json", "xml"),
    "CRONJOB_LOCK_LOG_TIME": ("on", "maybe"),
}
each_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.variable)


def settings(*argv: str, unset: str = "", **environ: str) -> Settings:
    everything = {**ENVIRON, **environ}
    found = load([*argv, "DATABASE_URL", "true"], {k: v for k, v in everything.items() if k != unset})
    assert isinstance(found, Settings)
    return found


def refusal(*argv: str, unset: str = "", **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings(*argv, unset=unset, **environ)
    return str(caught.value)


def both(option: Option) -> dict[str, str]:
    """What makes the option have an effect."""
    more = {"LOCK_JOURNAL": "runs"} if option.variable == "LOCK_JOURNAL_KEEP_DAYS" else {}
    return more if option.variable == "LOCK_STRATEGY" else {"LOCK_STRATEGY": "schedule,lease", **more}


def test_every_setting_has_a_sample() -> None:
    assert set(SAMPLES) == {option.variable for option in OPTIONS}


def test_defaults() -> None:
    found = settings(LOCK_STRATEGY="schedule,lease")
    context = found.context
    assert (context.url, context.lock_key, context.table_parts) == (URL, "job", ["key_value"])
    assert context.owner == f"{socket.gethostname()}:{os.getpid()}"
    assert (context.schedule, context.time_zone, context.next_run_time) == ("0 3 * * *", None, None)
    assert (context.run_ttl_seconds, context.lease_interval_seconds) == (60.0, None)
    assert (context.jitter_max_seconds, context.slot_tolerance_seconds) == (0.0, 5.0)
    assert (context.connect_timeout_seconds, context.kill_grace_seconds) == (10.0, 10.0)
    assert context.lease_loss_policy is LeaseLossPolicy.TERMINATE
    assert (found.command, found.log_level, found.notices) == (["true"], 30, ())
    assert (context.wait_seconds, context.slot_consumed_by, found.skipped) == (0.0, "start", None)
    assert settings().strategies == ("schedule",)


@each_option
def test_the_option_overrides_the_variable(option: Option) -> None:
    good, _ = SAMPLES[option.variable]
    by_variable = settings(**{**both(option), option.variable: good})
    assert by_variable != settings(**both(option))
    expected = by_variable
    assert settings(f"{option.option}={good}", **both(option)) == expected
    # The value in the environment is not even looked at.
    assert settings(option.option, good, **{**both(option), option.variable: "\udcff"}) == expected


@each_option
def test_a_bad_value_is_named_as_it_was_given(option: Option) -> None:
    _, bad = SAMPLES[option.variable]
    message = refusal(f"{option.option}={bad}", **both(option))
    assert message.startswith(option.option)
    assert option.variable not in message
    if option.variable == "CRONJOB_LOCK_LOG_LEVEL":
        found = settings(**{option.variable: bad})
        assert found.log_level == 30
        assert found.notices[0].startswith("CRONJOB_LOCK_LOG_LEVEL must be DEBUG")
    else:
        message = refusal(**{**both(option), option.variable: bad})
        assert message.startswith(option.variable)
        assert option.option not in message


@each_option
@pytest.mark.parametrize("empty", ["", "  ", "\t"])
def test_empty_is_unset_or_missing(option: Option, empty: str) -> None:
    for argv, environ in (([], {option.variable: empty}), ([f"{option.option}={empty}"], {option.variable: "9"})):
        everything = {**both(option), **environ}
        if option.variable in ("LOCK_KEY", "CRON_SCHEDULE"):
            name = option.option if argv else option.variable
            assert refusal(*argv, **everything).startswith(f"{name} is empty")
        else:
            assert settings(*argv, **everything) == settings(**both(option))


@pytest.mark.parametrize("variable", ["LOCK_KEY", "CRON_SCHEDULE"])
def test_what_is_missing_is_named(variable: str) -> None:
    assert refusal(unset=variable).startswith(f"{variable} (or --")


@pytest.mark.parametrize(
    ("text", "strategies"),
    [
        ("schedule", ("schedule",)),
        (" Lease ", ("lease",)),
        ("schedule, lease", ("schedule", "lease")),
        ("LEASE,Schedule,lease", ("schedule", "lease")),
    ],
)
def test_strategies(text: str, strategies: tuple[str, ...]) -> None:
    assert settings(LOCK_STRATEGY=text).strategies == strategies


@pytest.mark.parametrize("text", ["schedule,", ",", "both", "schedule lease", "schedule;lease", "advisory,lease"])
def test_unknown_strategies(text: str) -> None:
    assert refusal(LOCK_STRATEGY=text).startswith("LOCK_STRATEGY must be schedule, lease, schedule,lease or advisory")


@pytest.mark.parametrize("key", ["job", '["billing", "42"]'])
def test_an_advisory_lock_has_a_plain_or_a_structured_key(key: str) -> None:
    found = settings(LOCK_STRATEGY="advisory", LOCK_KEY=key)
    assert (found.strategies, found.context.lock_key) == (("advisory",), key)
    assert settings(LOCK_KEY="[1").context.lock_key == "[1", "a key of another strategy is a text"


@pytest.mark.parametrize("key", ["[", "[]", '["a", 1]', "[null]", '["a"'])
def test_a_structured_key_is_an_array_of_strings(key: str) -> None:
    assert refusal(LOCK_STRATEGY="advisory", LOCK_KEY=key).startswith("LOCK_KEY begins with")
    assert refusal("--lock-key", key, LOCK_STRATEGY="advisory").startswith("--lock-key begins with")


def test_only_the_settings_of_the_strategies_are_read() -> None:
    settings(RUN_LOCK_TTL_SECONDS="x", LOCK_LEASE_INTERVAL="x")
    lease = settings(LOCK_STRATEGY="lease", CRON_SCHEDULE="x", CRON_TZ="x", LOCK_SLOT_TOLERANCE_SECONDS="x")
    assert (lease.context.schedule, lease.context.time_zone) == (None, None)
    assert settings().context.run_ttl_seconds is None


@pytest.mark.parametrize(
    ("ttl", "interval"),
    [("60", 10.0), ("20", 6.0), ("3", 1.0), ("1", 1.0), ("0.5", 0.5), ("0.1", 0.1), ("2678400", 10.0)],
)
def test_the_interval_follows_the_ttl(ttl: str, interval: float) -> None:
    found = settings(LOCK_STRATEGY="lease", RUN_LOCK_TTL_SECONDS=ttl)
    terms = Request(found.context, found.strategies)._terms
    assert terms is not None
    assert terms.interval == pytest.approx(interval)


def test_an_interval_above_the_ttl_names_both() -> None:
    message = refusal("--ttl=5", LOCK_STRATEGY="lease", LOCK_LEASE_INTERVAL="5.5")
    assert message == "LOCK_LEASE_INTERVAL (5.5) must not be above --ttl (5)"
    assert settings("--ttl=5", "--interval=5", LOCK_STRATEGY="lease").context.lease_interval_seconds == 5


def test_a_wait_is_for_a_lease() -> None:
    message = refusal("--wait=5")
    assert message.startswith("--wait needs the strategy lease")
    # A crontab may set the variable for all of its lines.
    assert settings(LOCK_WAIT_SECONDS="5").context.wait_seconds == 0
    assert settings("--wait=", LOCK_WAIT_SECONDS="5").context.wait_seconds == 0
    for strategy in ("lease", "schedule,lease"):
        assert settings("--wait=5", LOCK_STRATEGY=strategy).context.wait_seconds == 5


@pytest.mark.parametrize("strategy", ["schedule", "lease"])
def test_a_tick_consumed_by_success_needs_both_strategies(strategy: str) -> None:
    for argv, environ, name in (
        (["--slot-consumed-by=success"], {}, "--slot-consumed-by"),
        ([], {"LOCK_SLOT_CONSUMED_BY": "success"}, "LOCK_SLOT_CONSUMED_BY"),
    ):
        message = refusal(*argv, LOCK_STRATEGY=strategy, **environ)
        assert message.startswith(f"{name} success needs the strategies schedule and lease: ")
    assert settings("--slot-consumed-by=START", LOCK_STRATEGY=strategy).context.slot_consumed_by == "start"


@pytest.mark.parametrize("text", ["-1", "1.0", "1e1", "0x1", "true", "1000", "+1", "\u0661"])
def test_what_is_no_exit_code(text: str) -> None:
    assert refusal(LOCK_SKIPPED_EXIT_CODE=text).startswith(
        "LOCK_SKIPPED_EXIT_CODE must be a whole number from 0 to 255"
    )
    assert settings(LOCK_SKIPPED_EXIT_CODE="255").skipped == 255


@pytest.mark.parametrize("text", ["7", " 7 ", "7.0", "+7", "7.", "0.7e1", "70e-1"])
def test_numbers(text: str) -> None:
    assert settings(LOCK_JITTER_SECONDS=text).context.jitter_max_seconds == pytest.approx(7)


@pytest.mark.parametrize(
    "text",
    ["nan", "inf", "-inf", "infinity", "-1", "-0", "-0.0", "1e400", "1_0", "\uff11\uff10", "\u0661", "0x10", "1,5",
     "5s", "1 0", "e5", ".", "2678401", "1e9", "--5", "1e", "true"],
)  # fmt: skip
@pytest.mark.parametrize("option", [o for o in OPTIONS if o.metavar == "SECONDS"], ids=lambda o: o.variable)
def test_what_is_no_number_of_seconds(option: Option, text: str) -> None:
    message = refusal(**{**both(option), option.variable: text})
    assert message.startswith(f"{option.variable} must be ")
    assert message.isascii()


@pytest.mark.parametrize("variable", ["RUN_LOCK_TTL_SECONDS", "LOCK_LEASE_INTERVAL", "LOCK_CONNECT_TIMEOUT_SECONDS"])
@pytest.mark.parametrize("text", ["0", "0.0", "1e-400"])
def test_durations_that_cannot_be_zero(variable: str, text: str) -> None:
    assert refusal(LOCK_STRATEGY="lease", **{variable: text}).startswith(variable)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("locks", ["locks"]),
        (" app . locks ", ["app", "locks"]),
        ('"my.schema"."tab.le"', ["my.schema", "tab.le"]),
        ('app."we""ird"', ["app", 'we"ird']),
        ('" spaced "', [" spaced "]),
        ("Mixed.Case", ["Mixed", "Case"]),
        ("db.app.locks", ["db", "app", "locks"]),
        ("d\u00e9j\u00e0", ["d\u00e9j\u00e0"]),
        ("x; DROP TABLE y", ["x; DROP TABLE y"]),
    ],
)
def test_table_names(text: str, parts: list[str]) -> None:
    assert settings(LOCK_TABLE=text).context.table_parts == parts


@pytest.mark.parametrize(
    "text", [".", "a.", ".a", "a..b", "a.b.c.d", '"a', 'a"b"', '"a"b', '""', '"a".', "x" * 64, "\u00e9" * 32]
)
def test_what_is_no_table_name(text: str) -> None:
    assert refusal(LOCK_TABLE=text).startswith("LOCK_TABLE must ")


def test_a_lock_key_has_a_longest_length() -> None:
    assert settings(LOCK_KEY="x" * 2000).context.lock_key == "x" * 2000
    assert refusal(LOCK_KEY="\u00e9" * 1001) == "LOCK_KEY must be at most 2000 bytes long, not 2002"


def test_a_zone_that_does_not_exist_is_told_from_an_expression_that_is_wrong() -> None:
    assert refusal(CRON_TZ="Mars/Olympus").startswith("CRON_TZ: unknown time zone 'Mars/Olympus'")
    assert refusal("--schedule=R * * * *").startswith("--schedule: the cron expression")


@pytest.mark.parametrize("text", ["CRON_TZ=UTC 0 0 * * *", "TZ=UTC 0 0 * * *", "cron_tz = UTC"])
def test_a_zone_in_front_of_the_expression_is_told_its_place(text: str) -> None:
    for name in ("--schedule", "--time-zone"):
        assert refusal(f"{name}={text}").endswith("the zone alone is the value of CRON_TZ or --time-zone")


class TestUrlVariable:
    @pytest.mark.parametrize("first", [URL, "host=h password=p", "=", "x://", "postgresql+psycopg://u:p@h/d"])
    def test_a_url_in_its_place_is_never_repeated(self, first: str) -> None:
        with pytest.raises(ConfigurationError, match="not the URL itself") as caught:
            load([first, "true"], ENVIRON)
        assert first not in str(caught.value).replace("x://", "")

    def test_unset_and_empty_are_named(self) -> None:
        with pytest.raises(ConfigurationError, match=r"NO_SUCH_URL.* is not set"):
            load(["NO_SUCH_URL", "true"], ENVIRON)
        with pytest.raises(ConfigurationError, match=r"EMPTY.* is empty"):
            load(["EMPTY", "true"], {**ENVIRON, "EMPTY": " "})

    @pytest.mark.parametrize("first", ["u:p@h/d", "a b", "", "-", "\udcff", "\U0001f511"])
    def test_what_cannot_be_a_name_is_not_repeated(self, first: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load([first, "true"], ENVIRON)
        assert "first argument must be the name" in str(caught.value)

    def test_any_name_that_is_set_will_do(self) -> None:
        found = load(["my-app.url", "true"], {**ENVIRON, "my-app.url": f" {URL}\n"})
        assert isinstance(found, Settings)
        assert found.context.url == URL

    def test_a_url_that_is_no_text_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match="DATABASE_URL must be valid UTF-8"):
            settings(DATABASE_URL="postgresql://u:\udcff@h/d")


class TestArguments:
    @pytest.mark.parametrize(
        ("argv", "command"),
        [
            (["DATABASE_URL", "cmd", "--ttl", "5"], ["cmd", "--ttl", "5"]),
            (["DATABASE_URL", "--", "cmd", "--", "x"], ["cmd", "--", "x"]),
            (["--", "DATABASE_URL", "cmd"], ["cmd"]),
            (["--", "DATABASE_URL", "--", "--ttl"], ["--ttl"]),
            (["--jitter", "0", "--", "DATABASE_URL", "cmd"], ["cmd"]),
            (["DATABASE_URL", "cmd", "", "\udcff", "--help"], ["cmd", "", "\udcff", "--help"]),
        ],
    )
    def test_where_the_command_begins(self, argv: list[str], command: list[str]) -> None:
        found = load(argv, ENVIRON)
        assert isinstance(found, Settings)
        assert found.command == command

    def test_the_last_one_of_an_option_counts(self) -> None:
        assert settings("--lock-key=a", "--lock-key", "b").context.lock_key == "b"

    def test_a_value_may_hold_an_equals_sign_or_begin_with_a_dash(self) -> None:
        assert settings("--lock-key=a=b").context.lock_key == "a=b"
        assert settings("--lock-key", "--other").context.lock_key == "--other"
        assert settings("--lock-key=--ttl").context.lock_key == "--ttl"

    @pytest.mark.parametrize("following", ["--ttl", "--strategy=lease", "--lock-key", "--slot", "--help"])
    def test_an_option_is_no_value(self, following: str) -> None:
        """Or a variable of the shell that is empty would make the next option a job's name."""
        with pytest.raises(ConfigurationError, match="--lock-key needs a value"):
            settings("--lock-key", following)

    @pytest.mark.parametrize("word", ["--lock", "--lockkey=x", "--LOCK-KEY=x", "-l", "--lock_key=x", "-lx", "--ttl5"])
    def test_no_abbreviations_and_no_guesses(self, word: str) -> None:
        assert refusal(word).startswith("unknown option")

    def test_an_unknown_option_does_not_tell_its_value(self) -> None:
        assert refusal("--password=hush") == "unknown option --password; see dislock --help"
        assert "hush" not in refusal("--hush://x")

    @pytest.mark.parametrize("argv", [[], ["--"], ["--ttl=5"]])
    def test_nothing_given(self, argv: list[str]) -> None:
        with pytest.raises(ConfigurationError, match=r"URL is missing; usage: "):
            load(argv, ENVIRON)

    @pytest.mark.parametrize("argv", [["DATABASE_URL"], ["DATABASE_URL", "--"]])
    def test_no_command(self, argv: list[str]) -> None:
        with pytest.raises(ConfigurationError, match=r"no command was given; usage: "):
            load(argv, ENVIRON)

    def test_an_option_without_its_value(self) -> None:
        with pytest.raises(ConfigurationError, match="--ttl needs a value"):
            load(["--ttl"], ENVIRON)

    @pytest.mark.parametrize("word", ["--ttl", "--ttl=5", "--help", "--status"])
    @pytest.mark.parametrize("action", [[], ["--check"], ["--release=x"]])
    def test_options_after_the_url_variable_are_no_command(self, action: list[str], word: str) -> None:
        name = word.partition("=")[0]
        with pytest.raises(ConfigurationError, match=f"^{name} belongs in front of the URL variable; usage: "):
            load([*action, "DATABASE_URL", word, "5", "cmd"], ENVIRON)

    @pytest.mark.parametrize("word", ["--help", "-h"])
    def test_help(self, word: str) -> None:
        assert isinstance(load([word, "--nonsense"], {}), Help)
        assert isinstance(load(["--jitter", "x", word], {}), Help)

    def test_version(self) -> None:
        assert isinstance(load(["--version"], {}), Version)


def test_text_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    # As it arrives under a Latin-1 locale: one character for each byte.
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1"))
    assert settings("--lock-key=r\u00c3\u00a9sum\u00c3\u00a9").context.lock_key == "r\u00e9sum\u00e9"


def test_the_original_environment_survives_what_python_does_to_it() -> None:
    given = {b"A": b"1", b"E": b"", b"X": b"a=b", b"BYTES": b"\xff\xfe", b"LC_ALL": b"", b"PATH": os.environb[b"PATH"]}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from dislock.process.environment import *; print(sorted(original_environment().items()))",
        ],
        env=given,
        capture_output=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    if sys.platform == "linux":
        assert done.stdout.decode().strip() == str(sorted(given.items()))
    assert original_environment()[b"PATH"]


def test_an_entry_that_no_program_can_be_given_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"=x\0A=1\0no equals sign\0B==\0")
    assert original_environment() == {b"A": b"1", b"B": b"="}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("LOCK_STRATEGIE", "LOCK_STRATEGY"),
        ("LOCK_TTL_SECONDS", "RUN_LOCK_TTL_SECONDS"),
        ("LOCK_LEASE_INTERVAL_SECONDS", "LOCK_LEASE_INTERVAL"),
        ("LOCK_KILL_GRACE", "LOCK_KILL_GRACE_SECONDS"),
        ("LOCK_LOG_LEVEL", "CRONJOB_LOCK_LOG_LEVEL"),
        ("CRON_TZS", "CRON_TZ"),
        ("LOCKWAIT", "LOCK_WAIT_SECONDS"),
        ("CRONTZ", "CRON_TZ"),
        ("RUNLOCK_TTL", "RUN_LOCK_TTL_SECONDS"),
        ("CRON_TIMEZONE", "CRON_TZ"),
        ("LOCK_TIME_ZONE", "CRON_TZ"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_told(theirs: str, ours: str) -> None:
    (option,) = (each for each in OPTIONS if each.variable == ours)
    (notice,) = settings(**{**both(option), theirs: "1"}).notices
    assert notice == f"{theirs} is not a setting of dislock; did you mean {ours}, which is not set?"
    good, _ = SAMPLES[ours]
    assert not settings(**{**both(option), theirs: "1", ours: good}).notices
    assert not settings(f"{option.option}={good}", **{**both(option), theirs: "1"}).notices


def test_what_the_zipapp_reads_can_be_misspelt_too() -> None:
    (notice,) = settings(DISLOCK_CACH="/x").notices
    assert notice.endswith("did you mean DISLOCK_CACHE, which is not set?")
    assert not settings(DISLOCK_CACH="/x", DISLOCK_CACHE="/y").notices


@pytest.mark.parametrize(
    "name",
    [
        *("LOCK_FILE", "LOCK_TIMEOUT_SECONDS", "LOCK_DIR", "LOCK_PORT", "LOCK_SERVICE_HOST", "LOCKED", "LOCKFILE"),
        *("LOCKPRG", "CRON", "CRON_D", "CRONTAB", "CRON_SECRET", "RUN_ID", "SCHEDULE", "DISLOCK_LOCK_KEY"),
    ],
)
def test_other_programs_have_variables_of_their_own(name: str) -> None:
    assert not settings(**{name: "1"}).notices


@pytest.mark.parametrize("theirs", ["LOCK_KEYS", "LOCKKEY"])
def test_a_missing_setting_is_told_with_what_may_be_a_slip(theirs: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(unset="LOCK_KEY", **{theirs: "job"})
    assert (
        str(caught.value) == f"LOCK_KEY (or --lock-key) is not set; {theirs} is set, but the setting is called LOCK_KEY"
    )
    for theirs, ours in (("LOCK_STRATEGIE", "LOCK_STRATEGY"), ("LOCK_SCHEDULE", "CRON_SCHEDULE")):
        with pytest.raises(ConfigurationError, match=f"{theirs} is set, but the setting is called {ours}"):
            settings(unset="CRON_SCHEDULE", **{theirs: "lease"})


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--lock_key=job", "--lock-key"),
        ("--lock-kye", "--lock-key"),
        ("--stauts", "--status"),
        ("--expct=a", "--expect"),
        ("--hlep", "--help"),
    ],
)
def test_an_unknown_option_is_repeated_with_the_one_that_it_may_mean(word: str, meant: str) -> None:
    name = word.partition("=")[0]
    assert refusal(word) == f"unknown option {name}; did you mean {meant}? See dislock --help"


@pytest.mark.parametrize(
    ("option", "without"),
    [
        ("--ttl=5", "the strategy lease"),
        ("--interval=5", "the strategy lease"),
        ("--journal-keep-days=5", "a journal (--journal)"),
    ],
)
def test_an_option_without_effect_is_a_notice_and_a_variable_a_hint(option: str, without: str) -> None:
    name, _, value = option.partition("=")
    (variable,) = (each.variable for each in OPTIONS if each.option == name)
    by_option, by_variable = settings(option), settings(**{variable: value})
    assert by_option.notices == (f"{name} has no effect without {without}",)
    assert by_option.hints == ()
    assert by_variable.notices == ()
    assert by_variable.hints == (f"{variable} has no effect without {without}",)


def test_a_schedule_without_its_strategy_has_no_effect() -> None:
    found = settings("--schedule=@daily", "--time-zone=UTC", LOCK_STRATEGY="lease")
    assert found.notices == tuple(
        f"{name} has no effect without the strategy schedule" for name in ("--schedule", "--time-zone")
    )
    # The same variables in a crontab are for its other lines.
    assert settings(LOCK_STRATEGY="lease").notices == ()


@pytest.mark.parametrize(
    "argv",
    [
        ["--ttl", "DATABASE_URL", "true"],
        ["--lock-key", "DATABASE_URL", "true"],
        ["--lock-key", "DATABASE_URL"],
        ["--schedule", "DATABASE_URL", "/bin/true"],
        ["--release", "DATABASE_URL"],
        ["--status", "--limit", "DATABASE_URL"],
    ],
)
def test_an_option_that_took_the_urls_variable_is_named(argv: list[str]) -> None:
    option = argv[argv.index("DATABASE_URL") - 1]
    with pytest.raises(ConfigurationError, match=f"{option} took DATABASE_URL as its value: its own value is missing"):
        load(argv, ENVIRON)


def test_an_expression_without_quotes_is_recognised() -> None:
    for words in (["0", "3", "*", "*", "*"], ["0", "*/5", "*", "*", "*"]):
        with pytest.raises(ConfigurationError) as caught:
            load([f"--schedule={words[0]}", *words[1:], "DATABASE_URL", "true"], ENVIRON)
        assert str(caught.value).endswith(f"that is set, not {words[1]}: put the cron expression in quotes")


def test_the_journal_is_a_table_of_its_own() -> None:
    assert settings(LOCK_JOURNAL="a.runs").context.journal_parts == ["a", "runs"]
    assert settings().context.journal_parts is None
    assert refusal(LOCK_JOURNAL="key_value") == "LOCK_JOURNAL names the lock table: the journal needs its own table"
    assert refusal("--journal=x", "--table=x").startswith("--journal names the lock table")
    assert "0 to 36500" in refusal(LOCK_JOURNAL_KEEP_DAYS="1.5")
