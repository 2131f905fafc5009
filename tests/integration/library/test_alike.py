"""What holds in the same way for threads and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dislock import (
    DislockError,
    LeaseLock,
    aio,
)
from tests.integration.library.conftest import MakeContext
from tests.support.proxy import Proxy

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("asynchronous", [False, True])
def test_leaving_takes_at_most_five_seconds_whatever_the_network_does(
    make: MakeContext, database_url: str, proxy: Proxy, asynchronous: bool
) -> None:
    context = make(url=proxy.url(database_url))
    before = [0.0]

    async def block() -> None:
        async with aio.LeaseLock(context):
            proxy.wedge()
            before[0] = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - before[0] < 6

    if asynchronous:
        asyncio.run(block())
        return
    import time

    with LeaseLock(context):
        proxy.wedge()
        before[0] = time.monotonic()
    assert time.monotonic() - before[0] < 6


@pytest.mark.parametrize("kind", [LeaseLock, aio.LeaseLock])
def test_a_second_use_asks_the_database_nothing(make: MakeContext, proxy: Proxy, database_url: str, kind: Any) -> None:
    context = make(url=proxy.url(database_url))
    lock = kind(context)

    def use(within: Callable[[], None]) -> None:
        if kind is LeaseLock:
            with lock:
                within()
            return

        async def block() -> None:
            async with lock:
                # In a thread: it has an event loop of its own.
                await asyncio.to_thread(within)

        asyncio.run(block())

    def again() -> None:
        before = proxy.accepted
        with pytest.raises(DislockError, match="entered before"):
            use(lambda: pytest.fail("entered twice"))
        assert proxy.accepted == before

    use(again)
    again()
