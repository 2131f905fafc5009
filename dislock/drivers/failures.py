"""Explains an error of a connection or a statement: one line without secrets, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from psycopg import DataError, Error, IntegrityError, NotSupportedError, ProgrammingError

from dislock.protocol.steps import Failure
from dislock.redaction import blot_out

#: What a connection or a statement may raise. Anything else is a fault of this program.
EXPECTED = (Error, OSError, UnicodeError)
NO_HOST = "a host that cannot exist: a part between its dots is empty or too long"


def explain(
    error: BaseException,
    table_parts: Sequence[str],
    secrets: Sequence[str],
    *,
    broken: bool,
    reads: bool = False,
    role: str = "",
) -> Failure:
    """The failure that an error of a connection or a statement means for a lock. ``reads``: nothing is written."""
    said = " ".join(str(error).split()) or type(error).__name__
    text = blot_out(said, secrets)
    state = getattr(error, "sqlstate", None)
    table = ".".join(_quoted(part) for part in table_parts)
    place, other = ("this database", "another one") if len(table_parts) > 1 else _BY_SEARCH_PATH
    if state in _ADVICE:
        closer = next((a for (s, word), a in _CLOSER.items() if s == state and word in said), _ADVICE[state])
        grant = _grant("SELECT" if reads else "SELECT, INSERT, UPDATE", table, role)
        text = closer.format(table=table, place=place, other=other, text=text, grant=grant)
        return Failure(text, state in _PERMANENT, broken, timed_out=state == _LOCK_TIMEOUT)
    if isinstance(error, UnicodeError):
        # Python raises it when it encodes the name of a host, and does not say which host.
        return Failure(f"the database URL names {NO_HOST}", permanent=True, broken=broken)
    # A pooler reports its own refusals as protocol violations (08P01).
    if state in (None, "08P01") and (advice := next((a for p, a in _CONNECTING if re.search(p, said)), None)):
        return Failure(f"{text}: {advice}", permanent=True, broken=broken)
    # Trying again does not help with a wrong statement or value.
    permanent = isinstance(error, (ProgrammingError, DataError, IntegrityError, NotSupportedError))
    return Failure(text, permanent=permanent, broken=broken)


def explain_journal(
    error: BaseException,
    journal_parts: Sequence[str],
    secrets: Sequence[str],
    *,
    broken: bool,
    reads: bool = False,
    role: str = "",
) -> Failure:
    """The failure of a statement about the journal. It never affects a lock, so it is only reported."""
    # The primary message does not quote the SQL.
    primary = error.diag.message_primary if isinstance(error, Error) else None
    said = " ".join((primary or str(error)).split()) or type(error).__name__
    hint = _JOURNAL_ADVICE.get(getattr(error, "sqlstate", None) or "", "")
    table = ".".join(_quoted(part) for part in journal_parts)
    grant = _grant("SELECT" if reads else "SELECT, INSERT, UPDATE, DELETE", table, role)
    return Failure(blot_out(said, secrets) + hint.format(grant=grant), broken=broken)


def about_journal(error: BaseException, table_parts: Sequence[str], journal_parts: Sequence[str]) -> bool:
    """Whether the server refuses the journal and not the lock table: its message names one of them, in any language."""
    if not journal_parts or not isinstance(error, Error) or error.sqlstate not in ("42P01", "42501"):
        return False
    # The message about a missing privilege names the table without its schema.
    from_part = 0 if error.sqlstate == "42P01" else -1
    journal, table = ".".join(journal_parts[from_part:]), ".".join(table_parts[from_part:])
    said = error.diag.message_primary or ""
    return journal != table and re.search(rf"(?<![\w.]){re.escape(journal)}(?![\w.])", said) is not None


def _grant(privileges: str, table: str, role: str) -> str:
    return f"GRANT {privileges} ON {table} TO {_quoted(role) if role else 'this role'}"


def _quoted(name: str) -> str:
    """A name as it must be written in SQL."""
    if re.fullmatch("[a-z_][a-z0-9_]*", name):
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


_CREATE = "CREATE TABLE {table} (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"
_WANTED = "the lock table needs " + _CREATE.replace("CREATE TABLE {table} ", "")
# The table may exist in a schema that is not on the search_path.
_BY_SEARCH_PATH = ("a schema of this session's search_path", "the schema that it is in, as schema.table")
_JOURNAL_ADVICE = {
    "42P01": ": --init creates it",
    "42703": ": --init says what it needs",
    "42501": ": {grant}",
}
_LOCK_TIMEOUT = "55P03"
# By SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_ADVICE = {
    "42P01": "the table {table} does not exist in {place}: create it with " + _CREATE + ", or name {other}",
    "3F000": "the schema of the table {table} does not exist in this database ({text})",
    "0A000": "the server cannot do what a lock on {table} needs ({text}): it must be PostgreSQL 12 or newer, and the "
    "table an ordinary one",
    "42601": "the server does not understand what a lock needs ({text}): it must be PostgreSQL 12 or newer, and not "
    "only speak its protocol",
    "42501": "this role may not use the table {table} ({text}): {grant}, and USAGE on its schema",
    "25006": "the server is read-only, by default_transaction_read_only or as a standby ({text}): add "
    "target_session_attrs=read-write and all hosts to the database URL",
    "42703": "the table {table} lacks a column ({text}): " + _WANTED,
    "42P10": "the column key of the table {table} is not unique ({text}): " + _WANTED,
    "42804": "a column of the table {table} has another type ({text}): " + _WANTED,
    "42883": "a column of the table {table} has another type ({text}): " + _WANTED,
    "22001": "a column of the table {table} is too narrow ({text}): " + _WANTED,
    "22P02": "a column of the table {table} has another type ({text}): " + _WANTED,
    "42809": "{table} is not a table ({text})",
    _LOCK_TIMEOUT: "another transaction has locked the table {table} or the row, see pg_locks ({text})",
}
# For errors whose text says more than their SQLSTATE.
_CLOSER = {
    ("0A000", "cross-database"): "the table name {table} does not fit this database ({text})",
    ("42703", "tableoid"): "{table} is a view: the lock table must be a table",
    ("42501", "row-level security"): "the row-level security of the table {table} keeps this role from its rows "
    "({text}): it needs a policy for all of them",
}
# A read-only server may soon be promoted, and a lock may be released.
_PERMANENT = _ADVICE.keys() - {"25006", _LOCK_TIMEOUT}
# libpq gives no SQLSTATE for a refused connection, only a text: the server's, a pooler's, or its own. For these texts
# trying again does not help. After any other text, also a translated one, it is tried again while there is time.
_URL = "check the database URL"
_USER = "check the user and the password"
_DATABASE = "check the database's name in the database URL"
_CONNECTING = (
    (r'FATAL: +(database ".*" does not exist|no such database)', _DATABASE),
    (r"FATAL: +(password authentication failed|SASL authentication failed|role .* does not exist)", _USER),
    (r"FATAL: +(Peer|certificate) authentication failed", "pg_hba.conf or pg_ident.conf does not let this account in"),
    (
        r"FATAL: +(no pg_hba\.conf entry|pg_hba\.conf rejects|login rejected)",
        "the server's pg_hba.conf does not let this host or user in",
    ),
    (r"FATAL: +role .* is not permitted to log in", "ALTER ROLE … LOGIN, or use another user"),
    (r"FATAL: +permission denied for database", "GRANT CONNECT ON the database to this role"),
    (
        r"FATAL: +unsupported startup parameter",
        "the pooler refuses a parameter of the database URL: take it out, or name it in ignore_startup_parameters",
    ),
    (
        r'FATAL: +(unrecognized configuration parameter|invalid value for parameter|parameter ".*" cannot be changed'
        r"|permission denied to set parameter|invalid command-line argument|--?\w+ requires a value)",
        "check options in the database URL, and PGOPTIONS, PGTZ and PGDATESTYLE",
    ),
    (
        r"fe_sendauth: no password supplied|no password supplied",
        "put it into the database URL, or into ~/.pgpass (mode 0600) of the account that runs this",
    ),
    (
        r"transaction blocks not allowed in statement pooling mode",
        "an advisory lock needs the pool_mode transaction or session for this database, or a way past the pooler",
    ),
    (r"server does not support SSL", "the server offers no TLS, but sslmode asks for it"),
    (r"channel binding (is )?required", "the server offers none; check channel_binding in the database URL"),
    (r"authentication method requirement", "the server wants another one; check require_auth in the database URL"),
    (r"certificate verify failed|root certificate file .* does not exist", "check sslrootcert in the database URL"),
    (r"server certificate for .* does not match host name", "the host in the database URL is not the certificate's"),
    (r'invalid (sslmode|port number|integer value|target_session_attrs|"?\w+"? value)|weak sslmode', _URL),
)
