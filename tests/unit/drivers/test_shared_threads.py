"""The thread that all locks of a table share: who is woken, and what happens if it cannot begin."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dislock.drivers import shared, shared_courier
from dislock.drivers.clock import clock
from dislock.drivers.shared_threads import SharedLeave, SharedThreads, _Job
from dislock.drivers.targets import Database
from dislock.errors import DatabaseUnavailableError
from dislock.protocol.steps import Steps, Wait

DATABASE = Database("postgresql://127.0.0.1:1/x", "t")


def lock() -> SharedThreads:
    return SharedThreads(DATABASE, ["t"])


def waiting(seconds: float) -> Steps[str]:
    yield Wait(clock() + seconds)
    return "result"


def test_one_that_ends_is_told_although_another_begins_at_that_moment() -> None:
    second, leave = lock(), SharedLeave()
    job = _Job(second, waiting(3600), leave)

    def first() -> Steps[str]:
        yield Wait(clock())
        # As another thread may do: nothing was left to do, and now there is something again.
        job.start()
        return "result"

    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(lock().run(first())))
    thread.start()
    thread.join(20)
    assert results == ["result"]
    second.request(leave)
    job.join(20)
    assert job.ended


def test_without_a_file_descriptor_it_is_an_error_and_not_a_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(shared_courier, "_Loop", refused)
        with pytest.raises(DatabaseUnavailableError, match="Too many open files"):
            lock().run(waiting(0))
    assert lock().run(waiting(0)) == "result"


def test_other_threads_may_open_and_close_their_loops_meanwhile() -> None:
    def elsewhere(closed: Callable[[], bool]) -> Any:
        where: Any = (os.getpid(), type("Loop", (), {"is_closed": lambda _: closed()})(), ("x", "t"))
        shared._groups[where] = shared.Group(DATABASE, ["t"])
        return where

    def closes() -> bool:
        shared._groups.pop(other, None)
        return True

    elsewhere(closes)
    other = elsewhere(lambda: True)
    assert asyncio.run(shared.SharedTasks(DATABASE, ["t"]).run(waiting(0))) == "result"
    assert not shared._groups
