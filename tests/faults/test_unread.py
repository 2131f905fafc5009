"""Standard error that nobody reads: a pager that waits, a terminal that was stopped, a full pipe."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.conftest import LEASE, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.wait import until

pytestmark = pytest.mark.integration


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[int]:
    """The reader's end of a full pipe."""
    os.mkfifo(tmp_path / "unread")
    pipe = os.open(tmp_path / "unread", os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * os.fpathconf(pipe, "PC_PIPE_BUF"))
    yield pipe
    os.close(pipe)


@pytest.fixture
def before(unread: int, tmp_path: Path) -> tuple[str, ...]:
    """Words before a command that make the pipe its standard error."""
    return "sh", "-c", f'exec "$@" 2>{tmp_path}/unread', "sh"


def drain(pipe: int) -> bytes:
    said = bytearray()
    with contextlib.suppress(BlockingIOError):
        while True:
            said.extend(os.read(pipe, 65536))
    return bytes(said)


def test_a_lost_lease_ends_the_command_although_its_line_cannot_be_written(
    start: Start, database_url: str, table: Table, unread: int, before: tuple[str, ...]
) -> None:
    run = start(database_url, LEASE, before=before).up()
    table.ask("DELETE FROM key_value")
    until(lambda: not alive(run.command), PATIENCE, "the end of the command")
    said = drain(unread)
    assert run.code() == 75
    said += drain(unread)
    assert said.lstrip(b"x").count(b"\n") == 1
    assert b"was removed" in said


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_lease_is_renewed_although_its_lines_cannot_be_written(
    start: Start, database_url: str, table: Table, unread: int, before: tuple[str, ...], level: str
) -> None:
    run = start(database_url, LEASE, {"CRONJOB_LOCK_LOG_LEVEL": level}, before=before).up()
    for _ in range(2):
        end = table.ends()
        until(partial(table.renewed, end), PATIENCE, "a renewal")
    assert run.tell().code() == 0
    assert not drain(unread).strip(b"x")
    assert table.live() == {}
