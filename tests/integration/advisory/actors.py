"""Programs in one: an actor has an engine, a handle and a transaction of its own, with any driver, sync or async.

Tests are written once against this class. An async actor carries each call out in an event loop of its own, in
whichever thread calls, so that two actors can wait at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import pg_advisory_lock
from pg_advisory_lock import aio

SYNC_DRIVERS = ["psycopg", "psycopg2", "pg8000"]
ASYNC_DRIVERS = ["psycopg_async", "asyncpg"]
DRIVERS = [*SYNC_DRIVERS, *ASYNC_DRIVERS]

# A rule that SQLAlchemy, the server or this package decides is tried once. Where the driver decides (how it tells of an
# error, of a transaction, of a lost connection, of a value), it is tried with each; what psycopg does is the same in
# both of its halves.
EACH_DRIVER = [f"{driver}-session" for driver in DRIVERS]
EACH_LIBRARY = [f"{driver}-session" for driver in (*SYNC_DRIVERS, "asyncpg")]
SYNC_AND_ASYNC = ["psycopg-session", "asyncpg-session"]
#: Each driver, each method, each kind of handle and each end of a transaction.
EACH_WAY_TO_LOCK = [
    *((way, "lock", "commit") for way in EACH_DRIVER),
    ("psycopg-session", "lock_immediate", "commit"),
    *((way, "lock", "commit") for way in ("psycopg-connection", "asyncpg-connection")),
    ("psycopg-session", "lock", "rollback"),
]


def sqlalchemy_url(conninfo: str, driver: str) -> URL:
    words = conninfo_to_dict(conninfo)
    return URL.create(
        f"postgresql+{driver}",
        username=words.get("user"),
        password=words.get("password"),
        host=words.get("host"),
        port=int(words.get("port") or 5432),
        database=words.get("dbname"),
    )


class Actor:
    """``way`` is a driver, a hyphen, and ``session`` or ``connection``; further arguments go to ``create_engine``."""

    def __init__(self, conninfo: str, way: str = "psycopg-session", **engine_arguments: Any) -> None:
        self.driver, self.kind = way.split("-")
        self.is_async = self.driver in ASYNC_DRIVERS
        self._loop = asyncio.new_event_loop() if self.is_async else None
        create = create_async_engine if self.is_async else create_engine
        self.engine: Any = create(sqlalchemy_url(conninfo, self.driver), **engine_arguments)
        self.sync_engine = self.engine.sync_engine if self.is_async else self.engine
        self._joined: Any = None
        if self.kind == "session":
            self.handle: Any = AsyncSession(self.engine) if self.is_async else Session(self.engine)
        else:
            self.handle = (
                self.do(self.engine.connect()) if not self.is_async else self.do(self.engine.connect().start())
            )

    def do(self, result: Any) -> Any:
        """The result of a call, awaited if need be."""
        if self._loop is None or not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            return await result

        return self._loop.run_until_complete(wait())

    def sql(self, statement: str, **parameters: object) -> Any:
        """The first value of the first row, or None where there is no row."""
        result = self.do(self.handle.execute(text(statement), parameters))
        row = result.first() if result.returns_rows else None
        return None if row is None else row[0]

    def locker(self, *args: Any, **options: Any) -> Any:
        module = aio if self.is_async else pg_advisory_lock
        return module.PgAdvisoryLock(list(args) or ["users", 1], **options)

    def lock(self, *args: Any, timeout_in_ms: int = 1000, **options: Any) -> bool:
        return self.do(self.locker(*args, **options).lock(self.handle, timeout_in_ms=timeout_in_ms))

    def lock_immediate(self, *args: Any, **options: Any) -> bool:
        return self.do(self.locker(*args, **options).lock_immediate(self.handle))

    def can_lock(self, *args: Any, **options: Any) -> bool:
        """Tries, without waiting, and takes back what it took."""
        taken = self.lock_immediate(*args, raise_on_failure=False, **options)
        self.rollback()
        return taken

    def holders(self, *args: Any) -> list[pg_advisory_lock.LockHolder]:
        return self.do(self.locker(*args).holders(self.handle))

    @contextmanager
    def held(self, *args: Any, timeout_in_ms: int = 1000, **options: Any) -> Iterator[None]:
        block = self.locker(*args, **options).held(self.handle, timeout_in_ms=timeout_in_ms)
        if not self.is_async:
            with block:
                yield
            return
        self.do(block.__aenter__())
        try:
            yield
        except BaseException as error:
            if not self.do(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.do(block.__aexit__(None, None, None))

    @contextmanager
    def savepoint(self) -> Iterator[Any]:
        """``begin_nested()``: rolled back when the block ends by an exception or did so itself."""
        nested = self.handle.begin_nested()
        self.do(nested.__aenter__() if self.is_async else nested.__enter__())
        leave = nested.__aexit__ if self.is_async else nested.__exit__
        try:
            yield nested
        except BaseException as error:
            self.do(leave(type(error), error, error.__traceback__))
            raise
        else:
            self.do(leave(None, None, None))

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """The statements that go to the driver, savepoints included, while the block runs."""
        seen: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            seen.append(statement)

        event.listen(self.sync_engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            event.remove(self.sync_engine, "before_cursor_execute", note)

    @property
    def pid(self) -> int:
        return int(self.sql("SELECT pg_backend_pid()"))

    def commit(self) -> None:
        self.do(self.handle.commit())

    def rollback(self) -> None:
        self.do(self.handle.rollback())

    def join(self, mode: str) -> None:
        """Goes on with a session that joins the transaction of the connection."""
        self._joined = self.handle
        kind: Any = AsyncSession if self.is_async else Session
        self.handle = kind(self.handle, join_transaction_mode=mode)

    def close(self) -> None:
        self.do(self.handle.close())
        if self._joined is not None:
            self.do(self._joined.close())
        self.do(self.engine.dispose())
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
