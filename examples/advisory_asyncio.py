"""Twenty coroutines add to one balance. The lock lets them do so one after the other.

DATABASE_URL=postgresql+asyncpg://... python advisory_asyncio.py ACCOUNT
"""

from __future__ import annotations

import asyncio
import os
import sys

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from pg_advisory_lock.aio import PgAdvisoryLock


async def deposit(session: AsyncSession, account: int, amount: int) -> None:
    async with PgAdvisoryLock(["accounts", account]).held(session, timeout_in_ms=30_000):
        balance = await session.scalar(text("SELECT balance FROM account WHERE id = :id"), {"id": account}) or 0
        new = {"id": account, "balance": balance + amount}
        await session.execute(text("UPDATE account SET balance = :balance WHERE id = :id"), new)


async def main() -> None:
    account = int(sys.argv[1])
    engine = create_async_engine(os.environ["DATABASE_URL"])

    async def request() -> None:
        async with AsyncSession(engine) as session, session.begin():
            await deposit(session, account, 1)

    await asyncio.gather(*(request() for _ in range(20)))
    async with engine.connect() as connection:
        print("balance", await connection.scalar(text("SELECT balance FROM account WHERE id = :id"), {"id": account}))
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
