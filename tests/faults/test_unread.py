"""Standard error that nobody reads: a pager that waits, a terminal that was stopped, a full pipe."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.faults.conftest import LEASE, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.wait import until

pytestmark = pytest.mark.integration


def test_a_lost_lease_ends_the_command_although_its_line_cannot_be_written(
    start: Start, database_url: str, table: Table, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "unread")
    pipe = os.open(tmp_path / "unread", os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * os.fpathconf(pipe, "PC_PIPE_BUF"))
    run = start(database_url, LEASE, before=("sh", "-c", f'exec "$@" 2>{tmp_path}/unread', "sh")).up()
    table.ask("DELETE FROM key_value")
    until(lambda: not alive(run.command), PATIENCE, "the end of the command")
    said = bytearray()

    def read() -> bool:
        with contextlib.suppress(BlockingIOError):
            said.extend(os.read(pipe, 65536))
        return run.process.poll() is not None

    until(read, PATIENCE, "the end of the wrapper")
    read()
    os.close(pipe)
    assert run.code() == 75
    assert said.lstrip(b"x").count(b"\n") == 1
    assert b"was removed" in said
