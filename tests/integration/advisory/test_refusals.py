"""What would hold nothing is refused before any statement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockError
from tests.integration.advisory.actors import EACH_LIBRARY, Actor, sqlalchemy_url
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]


def refused(actor: Actor) -> None:
    """Every way of taking the lock is refused, and the server hears nothing of it."""
    with actor.counting() as statements:
        for take in (actor.lock, actor.lock_immediate, lambda: actor.held().__enter__()):
            with pytest.raises(PgAdvisoryLockError, match="AUTOCOMMIT mode") as caught:
                take()
            assert type(caught.value) is PgAdvisoryLockError
    assert statements == []


@pytest.mark.parametrize("way", EACH_LIBRARY)
def test_autocommit_of_the_engine(enter: Enter, way: str) -> None:
    refused(enter(way, isolation_level="AUTOCOMMIT"))


def test_autocommit_of_the_engine_s_options(enter: Enter, way: str) -> None:
    refused(enter(way, execution_options={"isolation_level": "AUTOCOMMIT"}))


def test_autocommit_of_the_connection(enter: Enter, driver: str) -> None:
    one = enter(f"{driver}-connection")
    changed = one.handle.execution_options(isolation_level="AUTOCOMMIT")
    one.do(changed)
    refused(one)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_refused_connection_can_still_be_given_another_isolation_level(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-connection", isolation_level="AUTOCOMMIT"), enter()
    refused(one)
    assert not one.handle.in_transaction()
    one.do(one.handle.execution_options(isolation_level="READ COMMITTED"))
    assert one.lock()
    assert not other.can_lock()


def test_a_refused_session_can_be_given_another_isolation_level_after_a_rollback(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-session", isolation_level="AUTOCOMMIT"), enter()
    refused(one)
    one.rollback()
    one.do(one.handle.connection(execution_options={"isolation_level": "READ COMMITTED"}))
    assert one.lock()
    assert not other.can_lock()


def test_autocommit_of_the_session_s_first_connection(enter: Enter, driver: str) -> None:
    one = enter(f"{driver}-session")
    one.do(one.handle.connection(execution_options={"isolation_level": "AUTOCOMMIT"}))
    refused(one)


def test_autocommit_of_the_driver(enter: Enter) -> None:
    refused(enter("psycopg-session", connect_args={"autocommit": True}))
    refused(enter("psycopg_async-session", connect_args={"autocommit": True}))


def test_autocommit_by_an_event_of_the_pool(enter: Enter, driver: str) -> None:
    one = enter(f"{driver}-session")

    @event.listens_for(one.sync_engine, "connect", insert=True)
    def switch(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.autocommit = True

    refused(one)


def test_other_isolation_levels_are_welcome(enter: Enter, way: str) -> None:
    one, other = enter(way, isolation_level="SERIALIZABLE"), enter(way)
    assert one.lock()
    assert not other.can_lock()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_session_that_may_not_begin_can_after_begin(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-session"), enter(f"{driver}-session")
    kind = AsyncSession if one.is_async else Session
    one.handle = kind(one.engine, autobegin=False)
    with one.counting() as statements:
        for take in (one.lock, one.lock_immediate, lambda: one.held().__enter__(), one.holders):
            with pytest.raises(PgAdvisoryLockError, match=r"session\.begin\(\)"):
                take()
    assert statements == []
    begin = one.handle.begin()
    one.do(begin.__aenter__()) if one.is_async else begin
    assert one.lock()
    assert not other.can_lock()


def test_a_session_with_a_database_for_each_class_can_pass_its_connection(conninfo: str) -> None:
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))

    class Model:
        pass

    with Session(binds={Model: engine}) as session:
        with pytest.raises(PgAdvisoryLockError, match="bind_arguments"):
            PgAdvisoryLock(["users"]).lock(session)
        connection = session.connection(bind_arguments={"bind": engine})
        assert PgAdvisoryLock(["users"]).lock(connection)
    engine.dispose()


class Routed(Session):
    """Chooses a database in its own way."""

    def __init__(self, choose: Callable[[], Engine]) -> None:
        super().__init__()
        self._choose = choose

    def get_bind(self, *_args: Any, **_kwargs: Any) -> Engine:
        return self._choose()


def test_a_session_that_fails_to_choose_its_database_is_refused() -> None:
    def fail() -> Engine:
        raise KeyError("the mapper is None")

    for take in ("lock", "lock_immediate", "holders"):
        with Routed(fail) as session, pytest.raises(PgAdvisoryLockError, match="bind_arguments") as caught:
            getattr(PgAdvisoryLock(["users"]), take)(session)
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_session_that_chooses_among_databases_locks_in_the_one_that_was_looked_at(conninfo: str) -> None:
    lite, engine = create_engine("sqlite://"), create_engine(sqlalchemy_url(conninfo, "psycopg"))
    choices = [engine, lite]
    with Routed(lambda: choices.pop(0)) as session:
        assert PgAdvisoryLock(["users"]).lock(session)
    assert choices == [lite]
    engine.dispose()
    lite.dispose()


def test_a_closed_connection_is_sqlalchemy_s_own_error(conninfo: str) -> None:
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))
    connection = engine.connect()
    connection.close()
    with pytest.raises(ResourceClosedError):
        PgAdvisoryLock(["users"]).lock(connection)
    engine.dispose()


class Follower(Postgres):
    """A server that believes that it follows another, and so is in recovery."""

    def fill(self, base: Path | None) -> None:
        super().fill(base)
        (self.data / "standby.signal").touch()


def test_a_server_in_recovery_is_refused() -> None:
    with Follower() as server:
        engine = create_engine(sqlalchemy_url(server.url(), "psycopg"))
        locker = PgAdvisoryLock(["users", 1], raise_on_failure=False)
        with Session(engine) as session, Session(engine) as other:
            for take in (locker.lock, locker.lock_immediate, lambda handle: locker.held(handle).__enter__()):
                for handle in (session, other):
                    with pytest.raises(PgAdvisoryLockError, match="the server is a standby") as caught:
                        take(handle)
                    assert type(caught.value) is PgAdvisoryLockError
        engine.dispose()


def test_postgresql_under_another_name_is_postgresql(conninfo: str) -> None:
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))
    engine.dialect.name = "timescaledb"
    with Session(engine) as session:
        assert PgAdvisoryLock(["users"]).lock(session)
    # Its functions of the same names lock nothing.
    engine.dialect.name = "cockroachdb"
    with Session(engine) as session, pytest.raises(PgAdvisoryLockError, match="the database is cockroachdb"):
        PgAdvisoryLock(["users"]).lock(session)
    engine.dispose()
