"""Single questions to a database: one connection, one transaction, and one deadline for everything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from dislock.drivers.clock import clock
from dislock.drivers.connections import decline_signals, options, sever
from dislock.drivers.failures import EXPECTED, about_journal
from dislock.drivers.sql import compose, parameters
from dislock.drivers.targets import Database
from dislock.errors import ConfigurationError, DatabaseUnavailableError, DislockError
from dislock.protocol.questions import Question
from dislock.protocol.statements import rows_of

T = TypeVar("T")


class JournalUnusableError(ConfigurationError):
    """The journal is missing or not permitted."""


class Questions:
    """The statements of one transaction. They raise psycopg's errors, which the function ``ask`` explains."""

    def __init__(
        self, connection: psycopg.Connection[Any], target: str, table: Sequence[str], journal: Sequence[str]
    ) -> None:
        self._connection = connection
        self._table, self._journal = table, journal
        self.target = target
        """The host that answered, for people."""

    def ask(self, statement: Question) -> list[Any]:
        """The rows of a statement, as the named tuples that answer it."""
        query = compose(statement, self._table, self._journal)
        return list(rows_of(statement, self._connection.execute(query, parameters(statement)).fetchall()))

    def attempt(self, statement: Question) -> list[Any] | None:
        """The same; None if this role may not do that. What the transaction did before stays."""
        try:
            with self._connection.transaction():
                return self.ask(statement)
        except psycopg.errors.InsufficientPrivilege:
            return None

    def define(self, definition: str, parts: Sequence[str]) -> None:
        """Carries out a definition (DDL) with the name of a table in it."""
        name = psycopg.sql.Identifier(*parts)
        # Only text of this package; psycopg looks for placeholders only if there are parameters.
        try:
            self._connection.execute(psycopg.sql.SQL(definition).format(table=name))
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"this role may not create the table {'.'.join(parts)} ({error.diag.message_primary}): use a role that "
                "may create tables there, or let such a role run the SQL that --schema prints"
            ) from None


def ask(
    database: Database,
    work: Callable[[Questions], T],
    *,
    seconds: float,
    table: Sequence[str],
    journal: Sequence[str] = (),
    write: bool = False,
    reads: bool = False,
) -> T:
    """Does ``work`` in one transaction with the first server that can be reached, within ``seconds``.

    ``reads``: the whole command needs no more than to read, and messages ask for no more. Raises
    ``DatabaseUnavailableError``, or ``ConfigurationError`` if trying again does not help.
    """
    attempt = _Attempt(database, work, clock() + seconds, (table, journal), write=write, reads=reads)
    # A separate thread, as for locks: looking up a name and authentication have no deadline.
    try:
        thread = threading.Thread(target=attempt.run, name="dislock-question", daemon=True)
        thread.start()
    except RuntimeError as error:
        raise DislockError(f"no thread for a connection: {error}") from None
    thread.join(seconds + 0.2)
    if thread.is_alive():
        attempt.abandon()
        raise DatabaseUnavailableError(f"no answer within {seconds:g} s{attempt.trouble}")
    if attempt.error is not None:
        raise attempt.error
    return attempt.result  # type: ignore[no-any-return]  # without an error it is what ``work`` returned


class _Attempt:
    def __init__(
        self,
        database: Database,
        work: Callable[[Questions], Any],
        by: float,
        tables: tuple[Sequence[str], Sequence[str]],
        *,
        write: bool,
        reads: bool,
    ) -> None:
        self._database, self._work, self._by = database, work, by
        self._tables, self._write, self._reads = tables, write, reads
        self._connection: psycopg.Connection[Any] | None = None
        self._failures: list[str] = []
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def trouble(self) -> str:
        return "".join(f"; {text}" for text in dict.fromkeys(self._failures))

    def run(self) -> None:
        decline_signals()
        try:
            name = self._connect()
            assert self._connection is not None
            with self._connection:
                self.result = self._ask(self._connection, name)
        except DislockError as error:
            self.error = error
        except EXPECTED as error:
            table, journal = self._tables
            if about_journal(error, table, journal):
                said = self._database.journal_failure(error, journal, broken=False, reads=self._reads).text
                self.error = JournalUnusableError(f"the journal cannot be used: {said}")
                return
            failure = self._database.failure(error, table, broken=False, reads=self._reads)
            kind = ConfigurationError if failure.permanent else DatabaseUnavailableError
            self.error = kind(failure.text)
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits for it
            self.error = error

    def _connect(self) -> str:
        targets = self._database.targets
        permanent = True
        for index, target in enumerate(targets):
            share = (self._by - clock()) / (len(targets) - index)
            try:
                self._connection = psycopg.connect(**options(target.parameters, share))
            except EXPECTED as error:
                failure = self._database.failure(error, self._tables[0], broken=True)
                self._failures.append(failure.text)
                permanent = permanent and failure.permanent
            else:
                return target.name
        text = "; ".join(dict.fromkeys(self._failures))
        if permanent:
            raise ConfigurationError(text)
        raise DatabaseUnavailableError(text)

    def _ask(self, connection: psycopg.Connection[Any], name: str) -> Any:
        limit = f"{max(1, int((self._by - clock()) * 1000))}ms"
        with connection.transaction():
            # All questions see the same moment: a run that ends between two of them must not look dead.
            kind = "READ COMMITTED" if self._write else "REPEATABLE READ READ ONLY"
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {kind}".encode())
            connection.execute(
                "SELECT set_config('statement_timeout', %(limit)s, true), set_config('lock_timeout', %(limit)s, true)",
                {"limit": limit},
            )
            return self._work(Questions(connection, name, *self._tables))

    def abandon(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            with suppress(psycopg.Error):
                sever(connection.fileno())
