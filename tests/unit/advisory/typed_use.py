"""The public interface as a typed program uses it. It is never run: mypy, in its strictest mode, is the test.

What must be refused is marked as ignored, and in that mode an ignored line without an error is an error.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from typing_extensions import assert_type

from pg_advisory_lock import LockHolder, PgAdvisoryLock, PgAdvisoryLockTimeout, advisory_key, aio


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)


def sync(session: Session, account_id: int, some: list[str], pair: tuple[str, int]) -> None:
    locker = PgAdvisoryLock([Account.__tablename__, account_id])
    PgAdvisoryLock(some)
    PgAdvisoryLock(pair, raise_on_failure=False, shared=True)
    PgAdvisoryLock((uuid.uuid4(), "a", 1))
    assert_type(locker.lock(session, timeout_in_ms=5), bool)
    assert_type(locker.lock_immediate(session), bool)
    assert_type(locker.holders(session), list[LockHolder])
    with locker.held(session) as nothing:
        assert_type(nothing, None)
    assert_type(advisory_key(["accounts", 7]), int)
    assert_type(locker.lock_key, int)
    try:
        locker.lock(session)
    except PgAdvisoryLockTimeout as error:
        assert_type(error.holders, tuple[LockHolder, ...])
        assert_type(error.holders[0].since, datetime | None)


PgAdvisoryLock("payments")  # type: ignore[arg-type] # must be refused
advisory_key("payments")  # type: ignore[arg-type] # must be refused
PgAdvisoryLock([None])  # type: ignore[list-item] # must be refused
PgAdvisoryLock(["accounts", 1.5])  # type: ignore[list-item] # must be refused
PgAdvisoryLock(["accounts"], False, True)  # type: ignore[call-arg] # must be refused


async def asynchronous(session: AsyncSession) -> None:
    locker = aio.PgAdvisoryLock(["accounts", 7])
    assert_type(await locker.lock(session), bool)
    async with locker.held(session):
        pass
    aio.PgAdvisoryLock("payments")  # type: ignore[arg-type] # must be refused
