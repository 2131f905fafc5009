"""A statement on its way through the simulated network."""

from __future__ import annotations

from typing import Any

from dislock.drivers import memory_table
from dislock.drivers.memory_table import Rows


class Call(memory_table.Call):
    """One statement on its way."""

    __slots__ = ("done", "fate", "link", "process", "rows", "sent", "waits", "warned")

    link: Any
    done: Any
    fate: str

    def __init__(self, statement: Any, process: Any = None) -> None:
        super().__init__(statement)
        self.process = process
        self.sent = 0.0
        self.waits = 0
        #: Its result, while it waits for a standby.
        self.rows: Rows = ()
        #: The server warned in its answer.
        self.warned = False
