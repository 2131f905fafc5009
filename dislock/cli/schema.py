"""The two tables: their SQL, their creation, and how an existing one differs from what is needed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dislock.drivers.questions import Questions
from dislock.errors import ConfigurationError
from dislock.protocol.schema import (
    CREATE_JOURNAL,
    CREATE_LOCKS,
    GRANT_JOURNAL,
    GRANT_LOCKS,
    INDEX_JOURNAL,
    INDEX_SUCCESSES,
    JOURNAL_COLUMNS,
    LOCK_COLUMNS,
    Column,
    Form,
    Rights,
    RightsRow,
    SerializeInit,
    quoted,
)

Columns = Sequence[tuple[str, str, str]]


def readable(parts: Sequence[str]) -> str:
    """A table's name as it must be written in SQL, without quotes that it does not need."""
    return ".".join(part if re.fullmatch("[a-z_][a-z0-9_]*", part) else quoted([part]) for part in parts)


def schema(table: Sequence[str], journal: Sequence[str] | None) -> str:
    """The SQL that creates what is needed, and grants a role ``cron`` no more than it needs."""
    lines = ["-- The role of the jobs, if it does not exist yet:", "-- CREATE ROLE cron LOGIN;"]
    schemas = dict.fromkeys(readable(parts[-2:-1]) for parts in (table, journal or ()) if len(parts) > 1)
    lines += [f"GRANT USAGE ON SCHEMA {name} TO cron;" for name in schemas]
    name = readable(table)
    lines += ["", f"{CREATE_LOCKS.replace('{table}', name)};", f"GRANT {GRANT_LOCKS} ON {name} TO cron;"]
    if journal:
        name = readable(journal)
        lines += [
            "",
            f"{CREATE_JOURNAL.replace('{table}', name)};",
            f"{INDEX_JOURNAL.replace('{table}', name)};",
            f"{INDEX_SUCCESSES.replace('{table}', name)};",
            "-- DELETE is for runs that are older than LOCK_JOURNAL_KEEP_DAYS; without it they stay.",
            f"GRANT {GRANT_JOURNAL} ON {name} TO cron;",
        ]
    return "\n".join(lines) + "\n"


def create(ask: Questions, table: Sequence[str], journal: Sequence[str] | None) -> list[str]:
    """Creates what is missing, and returns what was done. Raises ``ConfigurationError`` for a table of another form."""
    ask.ask(SerializeInit())
    done = []
    wanted: list[tuple[Sequence[str], str, Sequence[str], Columns]] = [
        (table, "lock table", [CREATE_LOCKS], LOCK_COLUMNS)
    ]
    if journal:
        wanted.append((journal, "journal", [CREATE_JOURNAL, INDEX_JOURNAL, INDEX_SUCCESSES], JOURNAL_COLUMNS))
    for parts, what, definitions, columns in wanted:
        if ask.ask(Form(quoted(parts))):
            if problems := differences(ask, parts, columns):
                raise ConfigurationError(f"the {what} {readable(parts)} has the wrong form: {'; '.join(problems)}")
            done.append(f"The {what} {readable(parts)} exists already.")
            continue
        for definition in definitions:
            ask.define(definition, parts)
        done.append(f"The {what} {readable(parts)} is created.")
    return done


def differences(ask: Questions, parts: Sequence[str], columns: Columns) -> list[str]:
    """How an existing table differs from what is needed. Additional columns do no harm if they can be null."""
    found: dict[str, Column] = {column.name: column for column in ask.ask(Form(quoted(parts)))}
    problems = []
    for name, kind, rest in columns:
        if name not in found:
            problems.append(f"the column {name} {kind} is missing")
        elif found[name].kind != kind:
            problems.append(f"the column {name} is {found[name].kind} and must be {kind}")
        elif not rest and found[name].required:
            problems.append(f"the column {name} is NOT NULL and must allow null")
    rights: RightsRow = ask.ask(Rights(quoted(parts)))[0]
    if rights.kind not in ("r", "p"):
        problems.append("it is not a table")
    elif columns is LOCK_COLUMNS and "key" in found and not rights.unique_key:
        problems.append("the column key is not unique")
    return problems


def missing_rights(ask: Questions, parts: Sequence[str], needed: str) -> list[str]:
    """The needed privileges that this role does not have on the table."""
    rights: RightsRow = ask.ask(Rights(quoted(parts)))[0]
    return [word for word in needed.split(", ") if not getattr(rights, word.lower())]
