"""Whether SQLAlchemy's transaction is one on the server too, by what is known without asking the server."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.engine import RootTransaction, TwoPhaseTransaction

from pg_advisory_lock.errors import PgAdvisoryLockError

#: libpq's PQTRANS_IDLE and PQTRANS_ACTIVE, as psycopg and psycopg2 give them: in no transaction; waiting for an answer.
_IDLE, _ACTIVE = 0, 1


def server_is_idle(connection: Connection) -> bool | None:
    """Whether the server's last word was that no transaction is open; None where the driver does not tell.

    SQLAlchemy, and some drivers, remember only that they began one. A COMMIT or ROLLBACK sent as text ends it behind
    their back, and each statement is then a transaction of its own. PostgreSQL says after every statement what the
    state is (ReadyForQuery), and the drivers keep it.
    """
    driver = _driver(connection)
    if (status := _libpq_status(driver)) is not None:
        return status == _IDLE
    # asyncpg.
    if callable(asked := getattr(driver, "is_in_transaction", None)):
        return not asked()
    # pg8000 has no public name for it.
    inside = getattr(driver, "_in_transaction", None)
    return None if inside is None else not inside


def may_be_half_said(connection: Connection) -> bool:
    """Whether the answer to a statement that was broken off may still be to come.

    psycopg and psycopg2 know. asyncpg calls back a statement that nobody waits for any more, and keeps the next one
    until that is done. pg8000 would take the old answer for the next statement's.
    """
    if connection.closed or connection.invalidated:
        return False
    driver = _driver(connection)
    if (status := _libpq_status(driver)) is not None:
        return status == _ACTIVE
    return not hasattr(driver, "is_in_transaction")


def _driver(connection: Connection) -> object:
    # Not the pool's own word for it, which has none for a connection that was detached from its pool.
    dbapi_connection = connection.connection.dbapi_connection
    return None if dbapi_connection is None else connection.dialect.get_driver_connection(dbapi_connection)


def _libpq_status(driver: object) -> int | None:
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else int(status)


def is_prepared(transaction: RootTransaction | None) -> bool:
    """Whether it is the first phase of a two-phase commit that has ended.

    The transaction has then left its connection, and a statement would begin another one there, in which the prepared
    one can be neither committed nor rolled back.
    """
    # No public name tells. Asking the driver would not do: before the first statement it says the same.
    return isinstance(transaction, TwoPhaseTransaction) and transaction._is_prepared


def open_transaction(connection: Connection) -> RootTransaction:
    """The transaction in which the statement before this call ran.

    Raises ``PgAdvisoryLockError`` where there is none to last beyond the statement. It can be told only after a
    statement, because drivers begin with the first one.
    """
    transaction = connection.get_transaction()
    if transaction is None:
        raise PgAdvisoryLockError(
            'a lock cannot be taken while its transaction is only being begun, as in a "begin" event of the engine:'
            " take it after that"
        )
    if server_is_idle(connection):
        raise no_transaction()
    return transaction


def no_transaction() -> PgAdvisoryLockError:
    """What to raise when a statement ran in a transaction of its own."""
    return PgAdvisoryLockError(
        "the transaction was ended by a COMMIT or ROLLBACK sent as text, and the driver begins no other: call"
        " rollback() first, and commit() instead of sending text"
    )
