"""Whether SQLAlchemy's transaction also exists on the server, as far as that is known without a statement."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.engine import RootTransaction, TwoPhaseTransaction

from pg_advisory_lock.errors import PgAdvisoryLockError

#: libpq's PQTRANS_IDLE (no transaction) and PQTRANS_ACTIVE (waiting for an answer), as in psycopg and psycopg2.
_IDLE, _ACTIVE = 0, 1


def server_is_idle(connection: Connection) -> bool | None:
    """Whether the server's last answer says that no transaction is open; None if the driver does not know.

    SQLAlchemy, and some drivers, remember only that they began a transaction. They do not notice that a COMMIT or
    ROLLBACK sent as text ends it, and then each statement is a transaction by itself. PostgreSQL reports the state
    after every statement (ReadyForQuery), and the drivers keep it.
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
    """Whether the answer to an interrupted statement may still come.

    psycopg and psycopg2 know. asyncpg cancels a statement that nobody waits for any more, and delays the next one until
    that is done. pg8000 would take the old answer as the answer to the next statement.
    """
    if connection.closed or connection.invalidated:
        return False
    driver = _driver(connection)
    if (status := _libpq_status(driver)) is not None:
        return status == _ACTIVE
    return not hasattr(driver, "is_in_transaction")


def _driver(connection: Connection) -> object:
    # Not the pool's own attribute, which is None for a connection that was detached from its pool.
    dbapi_connection = connection.connection.dbapi_connection
    return None if dbapi_connection is None else connection.dialect.get_driver_connection(dbapi_connection)


def _libpq_status(driver: object) -> int | None:
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else int(status)


def is_prepared(transaction: RootTransaction | None) -> bool:
    """Whether the transaction was prepared: the first phase of a two-phase commit has ended.

    The transaction has then left its connection. A statement would begin another transaction there, in which the
    prepared one can be neither committed nor rolled back.
    """
    # There is no public name for it. The driver is no help, because it says the same before the first statement.
    return isinstance(transaction, TwoPhaseTransaction) and transaction._is_prepared


def open_transaction(connection: Connection) -> RootTransaction:
    """The transaction in which the statement before this call ran.

    Raises ``PgAdvisoryLockError`` if no transaction lasts beyond that statement. This is known only after a statement,
    because drivers begin a transaction with its first statement.
    """
    transaction = connection.get_transaction()
    if transaction is None:
        raise PgAdvisoryLockError(
            'a lock cannot be taken while its transaction is still being begun, as in a "begin" event of the engine:'
            " take it after that"
        )
    if server_is_idle(connection):
        raise no_transaction()
    return transaction


def no_transaction() -> PgAdvisoryLockError:
    """The error to raise if a statement was a transaction by itself."""
    return PgAdvisoryLockError(
        "the transaction was ended by a COMMIT or ROLLBACK sent as text, and the driver does not begin another one:"
        " call rollback() first, and commit() instead of sending text"
    )
