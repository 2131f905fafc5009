"""A connection that is given up: what that does to it is not an error of the server."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest

from dislock.drivers import connections, threads
from dislock.drivers.clock import clock
from dislock.drivers.targets import Database
from dislock.protocol.statements import ReadClock
from dislock.protocol.steps import Answer, Close, Connect, Done, Execute, Step, Unanswered
from tests.support.proxy import Proxy

pytestmark = pytest.mark.integration


def test_a_statement_that_is_abandoned_is_unanswered(
    database_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = connections.sever

    def sever_and_wait(descriptor: int) -> None:
        """Until the connection's thread has noticed, which is the worst moment to ask it what went wrong."""
        real(descriptor)
        for thread in threading.enumerate():
            if thread.name == "dislock-connection":
                thread.join(5)

    monkeypatch.setattr("dislock.drivers.threads.sever", sever_and_wait)

    def ask() -> Generator[Step, Answer, Any]:
        assert isinstance((yield Connect(0, clock() + 10)), Done)
        proxy.wedge()
        answer = yield Execute(ReadClock(), clock() + 0.5)
        yield Close()
        return answer

    driver = threads.Threads(Database(proxy.url(database_url), "test"), ["key_value"])
    assert isinstance(driver.run(ask()), Unanswered)
