"""The operator's commands: each asks the database, prints the answer, and returns an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dislock.cli.asked import Operation, Unanswerable
from dislock.cli.asking import DONE, FAILURE, USAGE, emit, emit_json, question
from dislock.cli.output import complain, one_line, write
from dislock.cli.tables import table
from dislock.drivers.questions import JournalUnusableError, Questions
from dislock.errors import ConfigurationError, DislockError
from dislock.journal import metrics, overdue, runs, status
from dislock.protocol.questions import (
    Count,
    ForgetLocks,
    ForgetRuns,
    FreeLock,
    LockRow,
    Locks,
    NewestRuns,
    RecentRow,
    RecentRuns,
    RunRow,
    RunsOfKey,
    RunsSince,
    Server,
)
from dislock.redaction import blot_out, secrets_of

DAY_MICROS = 86400 * 1_000_000


def operate(asked: Operation | Unanswerable) -> int:
    """Carries out an operator's command and returns its exit code."""
    if isinstance(asked, Unanswerable):
        return _cannot_tell(asked.reason)
    with _ended_by_signals():
        if asked.action == "--overdue":
            try:
                return _overdue(asked)
            except Exception as error:  # noqa: BLE001 - to a monitor any other exit code is the state of the jobs
                return _cannot_tell(f"unexpected {type(error).__name__}")
        try:
            return _ACTIONS[asked.action](asked)
        except ConfigurationError as error:
            complain(_clean(asked, error))
            return USAGE
        except DislockError as error:
            complain(_clean(asked, error))
            return FAILURE


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets signals end this program, as they end any other: the one transaction under way is then undone."""
    numbers = {
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def _clean(asked: Operation, error: Exception) -> str:
    return blot_out(str(error), secrets_of(asked.url))


def _now(ask: Questions) -> int:
    return int(ask.ask(Server())[0].now)


def _status(asked: Operation) -> int:
    def work(ask: Questions) -> tuple[list[LockRow], list[RecentRow] | None]:
        return ask.ask(Locks(asked.only)), ask.ask(RecentRuns(asked.only)) if asked.journal else None

    try:
        rows, recent = question(asked, work)
    except JournalUnusableError as error:
        complain(_clean(asked, error))
        rows, recent = question(asked, lambda ask: ask.ask(Locks(asked.only))), None
    found = status.locks(rows)
    if asked.words["--json"]:
        return emit_json(status.as_json(found, recent))
    if not found:
        return emit("No lock was ever taken.\n" if asked.only is None else "This key has no lock.\n")
    zone = runs.common_zone(row.run for row in recent or ())
    headings = status.HEADINGS + (status.MORE_HEADINGS if recent is not None else ())
    text = table(headings, status.table(found, recent, zone))
    return emit(text + (f"Times are in {zone.key}.\n" if recent is not None else ""))


def _runs(asked: Operation) -> int:
    limit = asked.words["--limit"]

    def work(ask: Questions) -> tuple[list[RunRow], int]:
        statement = NewestRuns(limit) if asked.only is None else RunsOfKey(asked.only, limit)
        return ask.ask(statement), _now(ask)

    found, now = question(asked, work)
    if asked.words["--json"]:
        return emit_json(runs.as_json(found, now))
    if not found:
        return emit("The journal has no run.\n" if asked.only is None else "The journal has no run of this key.\n")
    zone = runs.common_zone(found)
    return emit(table(runs.HEADINGS, runs.table(found, now, zone)) + f"Times are in {zone.key}.\n")


def _findings(asked: Operation, recent: Sequence[RecentRow], now: int) -> list[overdue.Finding]:
    expected = asked.words.get("--expect", ())
    return overdue.overdue(recent, now, late=asked.words["--late"], expected=expected)


def _overdue(asked: Operation) -> int:
    try:
        recent, now = question(asked, lambda ask: (ask.ask(RecentRuns(asked.only)), _now(ask)))
    except DislockError as error:
        return _cannot_tell(_clean(asked, error))
    found = _findings(asked, recent, now)
    level, line = overdue.summary(found)
    if asked.words["--json"]:
        emit_json(
            {
                "level": level,
                "summary": line,
                "jobs": [{**each._asdict(), "word": overdue.WORDS[each.level], "state": each.word} for each in found],
            }
        )
        return level
    lines = [line, *(f"{overdue.WORDS[each.level]}: {each.key}: {each.text}" for each in found)]
    emit("".join(one_line(each) + "\n" for each in lines))
    return level


def _cannot_tell(reason: str) -> int:
    # A monitor reads standard output, and to it any other exit code is the state of the jobs.
    emit(f"DISLOCK UNKNOWN - {one_line(reason)}\n")
    return overdue.NO_ANSWER


def _metrics(asked: Operation) -> int:
    def work(ask: Questions) -> tuple[list[RecentRow], list[LockRow], int]:
        return ask.ask(RecentRuns(asked.only)), ask.ask(Locks(asked.only)), _now(ask)

    recent, rows, now = question(asked, work)
    return emit(metrics.metrics(recent, status.locks(rows), _findings(asked, recent, now)))


def _timeline(asked: Operation) -> int:
    from dislock.journal.timeline import LONGEST_LANE, Span, timeline

    def work(ask: Questions) -> tuple[list[RunRow], int, int]:
        now = _now(ask)
        since = now - asked.words["--days"] * DAY_MICROS
        return ask.ask(RunsSince(asked.only, since, LONGEST_LANE + 1)), since, now

    found, since, now = question(asked, work)
    return emit(timeline(found, Span(since, now, runs.common_zone(found)), late=asked.words["--late"]))


def _release(asked: Operation) -> int:
    assert asked.key is not None
    rows = question(asked, lambda ask: ask.ask(Locks(asked.key)))
    known = status.locks(rows)
    found = [lock for lock in known if not asked.words["--slot"] or lock.kind == "slot"]
    if not found:
        what = "no slot" if known else "no lock"
        raise ConfigurationError(f"{what} of the key {asked.key!r} is in the table: --status lists all keys")
    held = [lock for lock in found if lock.row.held]
    write(1, table(status.HEADINGS, status.table(found, None, runs.common_zone(()))))
    if not held:
        write(1, "Nothing is held: nothing to free.\n")
        return DONE
    if not _confirmed(asked, f"Free {'it' if len(held) == 1 else 'them'}?"):
        return USAGE

    def work(ask: Questions) -> list[bool]:
        return [bool(ask.ask(FreeLock(lock.row.key, lock.row.owner))) for lock in held]

    freed = question(asked, work, write=True)
    for lock, done in zip(held, freed, strict=True):
        end = "is free" if done else "was not freed: that owner does not hold it any more"
        write(1, one_line(f"The {lock.kind} of {lock.key} {end}.") + "\n")
    if any(done and lock.kind == "lease" for lock, done in zip(held, freed, strict=True)):
        write(1, "A holder that is still alive notices at its next renewal, and stops its command.\n")
    return DONE if all(freed) else FAILURE


def _forget(asked: Operation) -> int:
    assert asked.key is not None
    key = asked.key

    def look(ask: Questions) -> tuple[list[LockRow], list[RunRow]]:
        return ask.ask(Locks(key)), ask.ask(RunsOfKey(key, 1)) if asked.journal else []

    rows, newest = question(asked, look)
    if not rows and not newest:
        raise ConfigurationError(f"nothing is known of the key {key!r}: --status lists all keys")
    if not _confirmed(asked, f"Forget all runs of {one_line(key)}, and its locks that nobody holds?"):
        return USAGE

    def work(ask: Questions) -> tuple[list[Count] | None, list[Count] | None]:
        gone = ask.attempt(ForgetRuns(key)) if asked.journal else [Count(0)]
        return gone, ask.attempt(ForgetLocks(key))

    gone, free = question(asked, work, write=True)
    if asked.journal:
        write(1, _deleted(gone))
    if free is None:
        write(1, "The rows of its locks stay: this role may not DELETE from the lock table. They do no harm.\n")
    elif left := len(rows) - free[0].number:
        write(1, "One of its locks is held, and stays.\n" if left == 1 else "Its locks are held, and stay.\n")
    elif rows:
        write(1, "The rows of its locks are deleted.\n")
    return DONE


def _deleted(gone: list[Count] | None) -> str:
    if gone is None:
        return "The runs stay: this role may not DELETE from the journal.\n"
    return "1 run is deleted.\n" if gone[0].number == 1 else f"{gone[0].number} runs are deleted.\n"


def _confirmed(asked: Operation, what: str) -> bool:
    """Whether the operator wants it, by --force or by the answer on a terminal."""
    if asked.words["--force"]:
        return True
    if not os.isatty(0):
        complain(f"{asked.action} has no terminal to ask on, so nothing was changed; with --force it does not ask")
        return False
    write(1, f"{what} [y/N] ")
    answer = sys.stdin.readline()
    if answer.strip().lower() in ("y", "yes"):
        return True
    complain("nothing was changed")
    return False


def _schema(asked: Operation) -> int:
    from dislock.cli.schema import schema

    return emit(schema(asked.table, asked.journal))


def _init(asked: Operation) -> int:
    from dislock.cli.schema import create

    made = question(asked, lambda ask: create(ask, asked.table, asked.journal), write=True)
    return emit("".join(f"{line}\n" for line in made))


def _check(asked: Operation) -> int:
    from dislock.cli.check import check

    return check(asked)


_ACTIONS: dict[str, Callable[[Operation], int]] = {
    "--schema": _schema,
    "--init": _init,
    "--check": _check,
    "--status": _status,
    "--runs": _runs,
    "--metrics": _metrics,
    "--timeline": _timeline,
    "--release": _release,
    "--forget": _forget,
}
