"""What a connection string means, and what an error of the database means for a lock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from psycopg import DataError, Error, IntegrityError, NotSupportedError, ProgrammingError, conninfo, pq

from dislock.errors import ConfigurationError
from dislock.redaction import blot_out
from dislock.steps import Failure

#: Where Linux distributions and BSDs keep the certificates that they trust.
CERTIFICATE_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
)
#: A dead peer is noticed within half a minute where the connection string says nothing else, in milliseconds for
#: tcp_user_timeout and in seconds for the others (https://www.postgresql.org/docs/current/libpq-connect.html).
DEFAULTS = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
#: What a connection or a statement may raise; anything else is a fault of this program.
EXPECTED = (Error, OSError, UnicodeError)
NO_HOST = "a host that no host can be called: a part between its dots is empty or too long"
_WHOLE_NUMBERS = {*DEFAULTS, "connect_timeout", "keepalives"}
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class Target(NamedTuple):
    """One server to try: libpq's parameters for it, and its name for people."""

    parameters: dict[str, str]
    name: str


class Database:
    """A connection string, taken apart: one target for each of its hosts.

    Raises ``ConfigurationError`` for a string that libpq cannot read; the message never repeats it. The hosts are tried
    one by one, because libpq's own ``connect_timeout`` counts whole seconds, at least two, and anew for each host.
    """

    def __init__(self, url: str, application_name: str) -> None:
        # SQLAlchemy's URLs name the driver after a plus sign; what they mean is plain.
        url = re.sub(r"^\s*(postgres(?:ql)?)\+\w+://", r"\1://", url)
        try:
            parsed = conninfo.conninfo_to_dict(url)
        except (ProgrammingError, UnicodeError) as error:
            raise ConfigurationError(
                f"the database URL is malformed{_slip(url, str(error))}: libpq expects "
                "postgresql://user:password@host:port/database (with %-escapes for special characters) or key=value "
                "words"
            ) from None
        given = {key: str(value) for key, value in parsed.items() if value is not None}
        # What libpq would take from PGHOST, a service and the like; password files it reads by itself.
        self._implied = {
            option.keyword.decode(): option.val.decode(errors="replace")
            for option in pq.Conninfo.get_defaults()
            if option.val is not None
        }
        for key, default in DEFAULTS.items():
            given.setdefault(key, default)
        # Whatever the role, PGCLIENTENCODING or the string itself want of other programs: no other encoding has all
        # characters, and text in SQL_ASCII would come as bytes.
        given["client_encoding"] = "UTF8"
        if not self._implied.get("application_name"):
            given.setdefault("application_name", application_name)
        for key in _WHOLE_NUMBERS & given.keys():
            # libpq and psycopg would say so at the first connection, and not whose setting it is.
            if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", given[key]):
                raise ConfigurationError(f"the database URL has a {key} that is no whole number")
        self._trust_the_hosts_certificates(given)
        names = {given.get(key) or self._implied.get(key) for key in ("user", "dbname")}
        secrets = {value for key in _SECRETS if (value := given.get(key) or self._implied.get(key))}
        self._secrets = sorted(secrets - names, key=len, reverse=True)
        self.targets = self._split(given)

    def _trust_the_hosts_certificates(self, given: dict[str, str]) -> None:
        """Gives ``sslrootcert=system`` its meaning where libpq brings an OpenSSL of its own.

        The one in psycopg's wheels looks in a folder that exists on no host. ``system`` implies ``verify-full``, and
        weaker modes are refused with it, so those are left for libpq to refuse.
        """
        if (given.get("sslrootcert") or self._implied.get("sslrootcert")) != "system":
            return
        mode = given.get("sslmode") or self._implied.get("sslmode")
        if pq.__impl__ != "binary" or mode not in (None, "verify-full", "prefer"):
            return
        import ssl

        # Python's own paths come first: they follow SSL_CERT_FILE, as any OpenSSL would.
        candidates = [ssl.get_default_verify_paths().cafile, *CERTIFICATE_FILES]
        found = next((path for path in candidates if path and Path(path).is_file()), None)
        if found is None:
            raise ConfigurationError(
                "sslrootcert=system: this host has no file of trusted certificates where one is looked for; install "
                "its ca-certificates package, or name a file in SSL_CERT_FILE or sslrootcert"
            )
        given["sslrootcert"] = found
        given["sslmode"] = "verify-full"

    def _split(self, given: dict[str, str]) -> list[Target]:
        """One set of parameters for each host, in the order in which libpq would try them."""
        lists = {
            key: (given.get(key) or self._implied.get(key) or "").split(",") for key in ("host", "hostaddr", "port")
        }
        if not any(map(_can_be_a_host, lists["host"])) and not any(lists["hostaddr"]):
            raise ConfigurationError(f"the database URL names {NO_HOST}")
        number = max(len(lists["host"]), len(lists["hostaddr"]))
        if not all(
            port == "" or (port.isascii() and port.isdigit() and 0 < int(port) < 65536) for port in lists["port"]
        ):
            # libpq would look up the host first. What stands there may be a part of a password.
            raise ConfigurationError("the database URL has a port that is no number from 1 to 65535")
        if number == 1:
            return [Target(given, self._name(lists["host"][0], lists["hostaddr"][0], lists["port"][0]))]
        for key in ("host", "hostaddr", "port"):
            if len(lists[key]) == 1:
                lists[key] *= number
            if len(lists[key]) != number:
                raise ConfigurationError(f"the database URL names {number} hosts but {len(lists[key])} times {key}")
        targets = []
        for host, address, port in zip(lists["host"], lists["hostaddr"], lists["port"], strict=True):
            own = {**given, **{k: v for k, v in (("host", host), ("hostaddr", address), ("port", port)) if v}}
            targets.append(Target(own, self._name(host, address, port)))
        if (given.get("target_session_attrs") or self._implied.get("target_session_attrs")) == "prefer-standby":
            standby = [Target({**t.parameters, "target_session_attrs": "standby"}, t.name) for t in targets]
            any_server = [Target({**t.parameters, "target_session_attrs": "any"}, t.name) for t in targets]
            return standby + any_server
        return targets

    @staticmethod
    def _name(host: str, address: str, port: str) -> str:
        return f"{host or address or 'the local socket'}{':' + port if port else ''}"

    def failure(self, error: BaseException, table_parts: Sequence[str], *, broken: bool) -> Failure:
        """What an error of a connection or a statement means: one line without secrets, with what to do about it."""
        said = " ".join(str(error).split()) or type(error).__name__
        text = blot_out(said, self._secrets)
        state = getattr(error, "sqlstate", None)
        table = ".".join(_quoted(part) for part in table_parts)
        if state in _ADVICE:
            closer = next((a for (s, word), a in _CLOSER.items() if s == state and word in said), _ADVICE[state])
            text = closer.format(table=table, text=text)
            return Failure(text, permanent=state in _PERMANENT, broken=broken)
        if isinstance(error, UnicodeError):
            # Python's own, where it encodes the name of a host to look it up; it does not say which.
            return Failure(f"the database URL names {NO_HOST}", permanent=True, broken=broken)
        if state is None and (advice := next((a for p, a in _CONNECTING if re.search(p, said)), None)):
            return Failure(f"{text}: {advice}", permanent=True, broken=broken)
        # What is wrong with a statement or its values does not change by saying it again.
        permanent = isinstance(error, (ProgrammingError, DataError, IntegrityError, NotSupportedError))
        return Failure(text, permanent=permanent, broken=broken)


def _slip(url: str, error: str) -> str:
    """What may be wrong with a URL that libpq cannot read, in words that give nothing of it away."""
    if url[:1] in ("'", '"', "`"):
        return ", it begins with a quotation mark"
    if other := re.match("(jdbc|mysql|mariadb|sqlite|mssql|oracle|mongodb|redis|https?)[+:]", url):
        return f", it begins with {other[1]}"
    if re.match(r"\w+ *= *['\"]?postgres(ql)?://", url):
        return ", it begins with a name and an equals sign"
    if unknown := re.search(r'(?:parameter|option):? "([^"]+)"', error):
        import difflib

        known = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
        # The unknown name itself may be a part of a password that lacks its %-escapes.
        if meant := difflib.get_close_matches(unknown[1], known, 1, 0.8):
            return f", a parameter may have been meant to be {meant[0]}"
    return ""


def _can_be_a_host(host: str) -> bool:
    """Whether it can be looked up at all (RFC 1035: each part between dots has 1 to 63 bytes); "" is the default."""
    if host == "" or host.startswith(("/", "@")):
        return True
    return all(0 < len(part.encode()) < 64 for part in host.removesuffix(".").split("."))


def _quoted(name: str) -> str:
    """A name as it has to be written in SQL to mean itself."""
    if re.fullmatch("[a-z_][a-z0-9_]*", name):
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


_CREATE = "CREATE TABLE {table} (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"
_WANTED = "the lock table needs " + _CREATE.replace("CREATE TABLE {table} ", "")
# By SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_ADVICE = {
    "42P01": "the table {table} does not exist in this database: create it with " + _CREATE + ", or name another one",
    "3F000": "the schema of the table {table} does not exist in this database ({text})",
    "0A000": "the table name {table} does not fit this database ({text})",
    "42501": "this role may not use the table {table} ({text}): GRANT SELECT, INSERT, UPDATE ON {table} to it, "
    "and USAGE on its schema",
    "25006": "the server is read-only, by default_transaction_read_only or as a standby ({text}): add "
    "target_session_attrs=read-write and all hosts to the database URL",
    "42703": "the table {table} lacks a column ({text}): " + _WANTED,
    "42P10": "the column key of the table {table} is not unique ({text}): " + _WANTED,
    "42804": "a column of the table {table} has another type ({text}): " + _WANTED,
    "42883": "a column of the table {table} has another type ({text}): " + _WANTED,
    "22001": "a column of the table {table} is too narrow ({text}): " + _WANTED,
    "22P02": "a column of the table {table} has another type ({text}): " + _WANTED,
    "42809": "{table} is not a table ({text})",
    "55P03": "another transaction has locked the table {table} or the row, see pg_locks ({text})",
}
# Where the text of an error tells more than its SQLSTATE.
_CLOSER = {
    ("42703", "tableoid"): "{table} is a view: the lock table must be a table",
    ("42501", "row-level security"): "the row-level security of the table {table} keeps this role from its rows "
    "({text}): it needs a policy for all of them",
}
# A server that is read-only now may be promoted a moment later, and a lock is let go.
_PERMANENT = _ADVICE.keys() - {"25006", "55P03"}
# libpq gives no SQLSTATE for a connection that was refused, only the server's English or translated text. Where the
# text is a translated one the refusal counts as passing, is tried until there is no time left, and is printed as it is.
_CONNECTING = (
    (r'FATAL: +database ".*" does not exist', "check the database's name in the database URL"),
    (r"FATAL: +(password authentication failed|role .* does not exist)", "check the user and the password"),
    (
        r"FATAL: +(no pg_hba\.conf entry|pg_hba\.conf rejects)",
        "the server's pg_hba.conf does not let this host or user in",
    ),
    (r"FATAL: +role .* is not permitted to log in", "ALTER ROLE … LOGIN, or use another user"),
    (r"FATAL: +permission denied for database", "GRANT CONNECT ON the database to this role"),
    (
        r"fe_sendauth: no password supplied|no password supplied",
        "put it into the database URL, or into ~/.pgpass (mode 0600) of the account that runs this",
    ),
    (r"server does not support SSL", "the server offers no TLS, but sslmode asks for it"),
    (r"certificate verify failed|root certificate file .* does not exist", "check sslrootcert in the database URL"),
    (r"server certificate for .* does not match host name", "the host in the database URL is not the certificate's"),
    (r"invalid (sslmode|port number|integer value|target_session_attrs|\w+ value)", "check the database URL"),
)
