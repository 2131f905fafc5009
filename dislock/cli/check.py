"""``--check``: shows everything that a run looks at, without a lock and without the command."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from textwrap import wrap
from typing import NamedTuple
from zoneinfo import ZoneInfo

from dislock.cli.asked import Operation, Settings
from dislock.cli.asking import DONE, FAILURE, USAGE, emit, question
from dislock.cli.output import complain, one_line
from dislock.cli.schema import differences, missing_rights, readable
from dislock.cli.tables import table
from dislock.cli.values import ADVISORY, SCHEDULE
from dislock.command import described
from dislock.drivers.questions import Questions
from dislock.errors import ConfigurationError
from dislock.journal.rows import clock
from dislock.protocol.questions import CommandRow, CommandsOfKey, LockRow, Locks, Server, ServerRow
from dislock.protocol.refusals import job, slot_is_open
from dislock.protocol.schedule import Schedule
from dislock.protocol.schema import (
    CREATE_LOCKS,
    GRANT_JOURNAL,
    GRANT_LOCKS,
    JOURNAL_COLUMNS,
    LOCK_COLUMNS,
    Form,
    quoted,
)
from dislock.protocol.statements import to_micros, to_moment
from dislock.protocol.zones import find_zone

#: How many of the coming ticks are shown.
TICKS = 5
#: Synchronised clocks differ by less, in seconds.
CLOCK_NOISE = 0.1


class TableSeen(NamedTuple):
    """A table that a run uses."""

    name: str
    trouble: str
    """What keeps a run from using it; "" if nothing does."""
    needed: bool
    """Whether a run cannot start without it."""


class Seen(NamedTuple):
    """What the database says."""

    server: ServerRow
    target: str
    offset: float
    """By how many seconds this host's clock is ahead of the database's."""
    round_trip: float
    tables: list[TableSeen]
    commands: list[CommandRow]
    slot: LockRow | None
    """The row of the slot."""


def check(asked: Operation) -> int:
    """Prints all of it and returns the exit code with which a run would end before its command."""
    settings = asked.settings
    assert settings is not None
    seen = question(asked, lambda ask: _look(ask, settings))
    wrong = [each.trouble for each in seen.tables if each.trouble and each.needed]
    doubts = [*settings.notices]
    lines = ["Settings", *_indented(table(("NAME", "VALUE", "FROM"), asked.origins))]
    lines += ["", "Server", *_indented(_server(seen))]
    if settings.command:
        found = shutil.which(settings.command[0])
        lines += ["", "Command", f"  {found or one_line(settings.command[0]) + ' (not found)'}"]
        if not found:
            wrong.append("the command was not found: cron's PATH is short, so give the command's full path")
    if settings.context.schedule is not None:
        try:
            ticks, more = _ticks(settings, seen)
        except ConfigurationError as error:
            wrong.append(str(error))
        else:
            lines += ["", "Schedule", *_indented(ticks)]
            doubts += more
    doubts += _doubts(seen, settings)
    passing = not wrong
    if seen.server.standby or (seen.server.read_only and ADVISORY not in settings.strategies):
        wrong.append("the server is read-only: name all hosts, with target_session_attrs=read-write")
    for title, texts in (("Doubtful", doubts), ("Wrong", wrong)):
        if texts:
            lines += ["", title]
            for text in texts:
                lines += wrap(one_line(text), 79, initial_indent="  - ", subsequent_indent="    ")
    if emit("\n".join(lines) + "\n") != DONE:
        return FAILURE
    if not wrong:
        return DONE
    complain(f"a run would not start: {wrong[0]}")
    # As a run would: a standby may soon be promoted, but nothing else changes by waiting.
    return FAILURE if passing else USAGE


def _look(ask: Questions, settings: Settings) -> Seen:
    sent, wall = time.monotonic(), time.time()
    server: ServerRow = ask.ask(Server())[0]
    took = time.monotonic() - sent
    context = settings.context
    tables = []
    if ADVISORY not in settings.strategies:
        trouble = _table(ask, context.table_parts, server.role, journal=False)
        tables.append(TableSeen(f"lock table {readable(context.table_parts)}", trouble, needed=True))
    commands: list[CommandRow] = []
    if context.journal_parts:
        trouble = _table(ask, context.journal_parts, server.role, journal=True)
        tables.append(TableSeen(f"journal {readable(context.journal_parts)}", trouble, needed=False))
        if not trouble:
            commands = ask.ask(CommandsOfKey(context.lock_key))
    rows: list[LockRow] = []
    if SCHEDULE in settings.strategies and not tables[0].trouble:
        rows = ask.ask(Locks(context.lock_key))
    slot = next((row for row in rows if row.key == context.schedule_key), None)
    return Seen(server, ask.target, wall + took / 2 - server.now / 1_000_000, took, tables, commands, slot)


def _table(ask: Questions, parts: Sequence[str], role: str, *, journal: bool) -> str:
    """What keeps a run from using the table; "" if nothing does."""
    name = readable(parts)
    columns, needed = (JOURNAL_COLUMNS, GRANT_JOURNAL) if journal else (LOCK_COLUMNS, GRANT_LOCKS)
    if not ask.ask(Form(quoted(parts))):
        how = "--init creates it" if journal else f"--init creates it, or {' '.join(CREATE_LOCKS.split())}"
        return f"the table {name} does not exist in this database: {how.replace('{table}', name)}"
    if problems := differences(ask, parts, columns):
        return f"the table {name} has the wrong form: {'; '.join(problems)}"
    if rights := missing_rights(ask, parts, needed):
        return f"this role may not use the table {name}: GRANT {', '.join(rights)} ON {name} TO {readable([role])}"
    return ""


def _server(seen: Seen) -> str:
    server = seen.server
    direction = "ahead of" if seen.offset > 0 else "behind"
    rows = [
        ("host", seen.target),
        ("version", f"PostgreSQL {server.version}"),
        ("database", server.database),
        ("role", server.role),
        ("zone", server.zone),
        ("clock", f"this host is {abs(seen.offset):.3f} s {direction} it (round trip {seen.round_trip:.3f} s)"),
        *((each.name, "cannot be used, see below" if each.trouble else "can be used") for each in seen.tables),
    ]
    return table(("", ""), rows).lstrip("\n")


def _ticks(settings: Settings, seen: Seen) -> tuple[str, list[str]]:
    context, server = settings.context, seen.server
    assert context.schedule is not None
    schedule = Schedule(context.schedule, context.time_zone)
    zone = find_zone(context.time_zone or server.zone)
    now = to_moment(server.now)
    assert now is not None
    slot = schedule.slot(now, session_zone=server.zone, tolerance=context.slot_tolerance_seconds)
    rows = [("this slot began", *_both(slot.tick, zone)), ("and lasts until", *_both(slot.expires, zone))]
    doubts = []
    if (row := seen.slot) and row.held:
        rows.append(("it is taken until", *_both(to_moment(row.expires), zone)))
        if row.expires != to_micros(slot.expires) and not slot_is_open(slot, row.expires, row.now):
            doubts.append(
                f"the slot is held by {row.owner} until {slot.shown(to_moment(row.expires))}, and not by this "
                "schedule: each start before that is skipped. If the old schedule or the maintenance window is over "
                f"on all hosts: dislock --release {job(context.schedule_key)} --slot {settings.url_variable}"
            )
    moment: datetime | None = slot.expires
    for number in range(1, TICKS + 1):
        if moment is None:
            break
        rows.append((f"next tick {number}", *_both(moment, zone)))
        moment = schedule.next_tick(moment, session_zone=server.zone)
    if context.time_zone is None:
        doubts.append(
            f"no time zone is set, so the database session's zone ({server.zone}) is used: set CRON_TZ or --time-zone "
            "to the zone in which cron fires"
        )
    tolerance = schedule.tolerance(now, session_zone=server.zone, tolerance=context.slot_tolerance_seconds)
    if tolerance < context.slot_tolerance_seconds:
        doubts.append(
            f"the slot tolerance of {context.slot_tolerance_seconds:g} s is cut to {tolerance:g} s, half of the gap "
            "between two ticks"
        )
    # In UTC too, which logs and other hosts use.
    if zone.key == "UTC":
        return table(("", "UTC"), [row[:2] for row in rows]), doubts
    return table(("", zone.key, "UTC"), rows), doubts


def _both(moment: datetime | None, zone: ZoneInfo) -> tuple[str, str]:
    if moment is None:
        return "never", "never"
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}", f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"


def _doubts(seen: Seen, settings: Settings) -> Iterator[str]:
    yield from (f"runs are not recorded: {each.trouble}" for each in seen.tables if each.trouble and not each.needed)
    noise = max(settings.context.slot_tolerance_seconds / 2, CLOCK_NOISE)
    if settings.context.schedule is not None and abs(seen.offset) - seen.round_trip / 2 > noise:
        yield "the clocks of this host and of the database differ: a start can count for the wrong tick"
    programs = {row.command: _last_start(row) for row in seen.commands if row.command}
    # If the other command always comes first, the command of this line is not in the journal.
    if programs and settings.command and (own := described(settings.command, settings.context)):
        programs.setdefault(own, "this line")
    if len(programs) > 1:
        named = ", ".join(f"{name} ({where})" for name, where in sorted(programs.items()))
        yield (
            f"two or more commands have this key: {named}; they exclude each other, so give each job its own key, "
            "unless you want that"
        )
    if settings.context.slot_consumed_by == "success":
        yield (
            "only a success closes a tick (LOCK_SLOT_CONSUMED_BY): all hosts of this key must use the same value, "
            "because a mixture can run a tick twice or not at all"
        )
        if not settings.context.wait_seconds:
            yield (
                f"without --wait, a start within {settings.context.run_ttl_seconds:g} s (the TTL) of a killed run is "
                f"skipped with exit code {settings.skipped or 0}, and the tick stays open"
            )


def _last_start(row: CommandRow) -> str:
    return f"last on {row.host}, {clock(row.last, timezone.utc)} UTC"


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]
