"""A connection that is given up: what that does to it is not an error of the server."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator

import pytest

from dislock.drivers import aio, connections, shared_threads, threads
from dislock.drivers.clock import clock
from dislock.drivers.targets import Database
from dislock.protocol.statements import ReadClock
from dislock.protocol.steps import Answer, Close, Connect, Done, Execute, Step, Unanswered
from tests.support.proxy import Proxy

pytestmark = pytest.mark.integration


def ask(proxy: Proxy) -> Generator[Step, Answer, Answer]:
    """A statement that is sent into silence."""
    assert isinstance((yield Connect(0, clock() + 10)), Done)
    # Over a connection that there is: a hub opens it for the first statement.
    assert isinstance((yield Execute(ReadClock(), clock() + 10)), Done)
    proxy.wedge()
    answer = yield Execute(ReadClock(), clock() + 0.5)
    yield Close()
    return answer


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

    driver = threads.Threads(Database(proxy.url(database_url), "test"), ["key_value"])
    assert isinstance(driver.run(ask(proxy)), Unanswered)


def test_a_task_that_is_abandoned_is_unanswered_and_says_nothing(
    database_url: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> Answer:
        driver = aio.Tasks(Database(proxy.url(database_url), "test"), ["key_value"])
        return await driver.run(ask(proxy))

    assert isinstance(asyncio.run(work()), Unanswered)
    # An error that nobody has asked for is reported, with a traceback, when it is collected.
    gc.collect()
    assert caplog.messages == []


def test_a_statement_of_a_shared_connection_that_is_abandoned_is_unanswered(
    database_url: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    driver = shared_threads.SharedThreads(Database(proxy.url(database_url), "test"), ["key_value"])
    assert isinstance(driver.run(ask(proxy)), Unanswered)
    gc.collect()
    assert caplog.messages == []
