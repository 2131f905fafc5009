"""What the operator's commands share: a question to the database, and a result on standard output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TypeVar

from dislock.cli.asked import Operation
from dislock.cli.output import complain
from dislock.drivers.questions import Questions, ask
from dislock.drivers.targets import Database
from dislock.errors import ConfigurationError

T = TypeVar("T")

DONE, FAILURE, USAGE = 0, 1, 2
#: Commands that need no more privileges than SELECT.
READING = ("--status", "--runs", "--overdue", "--metrics", "--timeline")


def question(asked: Operation, work: Callable[[Questions], T], *, write: bool = False) -> T:
    """The answer to ``work``, in one transaction."""
    try:
        database = Database(asked.url, "dislock operator")
    except ConfigurationError as error:
        raise ConfigurationError(f"{asked.url_variable}: {error}") from None
    return ask(
        database,
        work,
        seconds=asked.timeout,
        table=asked.table,
        journal=asked.journal or (),
        write=write,
        reads=asked.action in READING,
    )


def emit(text: str) -> int:
    """Prints a result. It is a failure if that is impossible, unless the reader has closed the pipe."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        return DONE
    except OSError as error:
        complain(f"standard output: {error.strerror}")
        return FAILURE
    return DONE


def emit_json(value: object) -> int:
    return emit(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
