"""What a connection string means: which servers to try, with which parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from psycopg import ProgrammingError, conninfo, pq

from dislock.drivers.failures import NO_HOST, explain, explain_journal
from dislock.errors import ConfigurationError
from dislock.protocol.steps import Failure

#: Where Linux distributions and BSDs keep their trusted certificates.
CERTIFICATE_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
)
#: Unless the connection string says otherwise, a dead peer is noticed within half a minute. tcp_user_timeout is in
#: milliseconds, the others are in seconds (https://www.postgresql.org/docs/current/libpq-connect.html).
DEFAULTS = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_WHOLE_NUMBERS = {*DEFAULTS, "connect_timeout", "keepalives"}
#: Parameters that Prisma, JDBC and other drivers read from a URL, in lower case. They reveal no password.
_OTHERS = (
    *("schema", "currentschema", "connection_limit", "pgbouncer", "pool_timeout", "socket_timeout", "sslaccept"),
    *("charset", "serverversion", "pool", "pool_size", "pool_max_conns", "prepared_statements", "statement_cache_size"),
    *("async_fallback", "preparethreshold", "prepared_statement_cache_size", "statement_timeout", "timezone"),
)
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class Target(NamedTuple):
    """One server to try: libpq's parameters for it, and its name for people."""

    parameters: dict[str, str]
    name: str


class Database:
    """A connection string, split into one target for each of its hosts.

    Raises ``ConfigurationError`` for a string that libpq cannot read; the message never contains it. The hosts are
    tried one by one, because libpq's own ``connect_timeout`` counts whole seconds, at least two, for each host.
    """

    def __init__(self, url: str, application_name: str) -> None:
        # SQLAlchemy's URLs name their driver after a plus sign.
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
        known = _completed(given)
        given |= {key: default for key, default in DEFAULTS.items() if key not in known}
        # The role, PGCLIENTENCODING or the URL may set another encoding. None of them has all characters, and with
        # SQL_ASCII text would arrive as bytes.
        given["client_encoding"] = "UTF8"
        if not known.get("application_name"):
            given["application_name"] = application_name
        for key in _WHOLE_NUMBERS & given.keys():
            # libpq and psycopg report this only at the first connection, without the name of the parameter.
            if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", given[key]):
                raise ConfigurationError(f"the database URL has a {key} that is not a whole number")
        _trust_the_hosts_certificates(given, known)
        names = {known.get(key) for key in ("user", "dbname")}
        secrets = {value for key in _SECRETS if (value := known.get(key))}
        self._secrets = sorted(secrets - names, key=len, reverse=True)
        # With a parameter such as options=-c role=jobs, the session has another role.
        self._role = "" if "role" in known.get("options", "") else known.get("user", "")
        self.targets = _split(given, known)

    def failure(
        self, error: BaseException, table_parts: Sequence[str], *, broken: bool, reads: bool = False
    ) -> Failure:
        """The failure that an error of a connection or a statement means, without this connection string's secrets."""
        return explain(error, table_parts, self._secrets, broken=broken, reads=reads, role=self._role)

    def journal_failure(
        self, error: BaseException, journal_parts: Sequence[str], *, broken: bool, reads: bool = False
    ) -> Failure:
        """The same for a statement about the journal."""
        return explain_journal(error, journal_parts, self._secrets, broken=broken, reads=reads, role=self._role)


def _completed(given: Mapping[str, str]) -> dict[str, str]:
    """``given`` and what libpq adds to it: from a service file, from variables such as PGHOST, and its defaults.

    libpq lists the parameters even of a connection that it refuses to begin, here because of a wrong ``gssencmode``.
    """
    # A password file that does not exist, or a warning about the real one would be printed twice.
    refused = {**given, "gssencmode": "none", "passfile": "/dev/null/none"}
    attempt = pq.PGconn.connect_start(conninfo.make_conninfo(**refused).encode())
    try:
        known = {o.keyword.decode(): o.val.decode(errors="replace") for o in attempt.info if o.val is not None}
        if not known:
            # The list is empty only if a service could not be read.
            said = attempt.error_message.decode(errors="replace").strip()
            raise ConfigurationError(f"{said}: check service in the database URL, PGSERVICE and PGSERVICEFILE")
    finally:
        attempt.finish()
    return known


def _trust_the_hosts_certificates(given: dict[str, str], known: Mapping[str, str]) -> None:
    """Makes ``sslrootcert=system`` work if libpq comes with its own OpenSSL.

    The OpenSSL in psycopg's wheels looks in a folder that no host has. ``system`` implies ``verify-full``. libpq
    refuses weaker modes with it, so they stay as they are.
    """
    if pq.__impl__ != "binary" or known.get("sslrootcert") != "system":
        return
    # "prefer" is libpq's default.
    if known.get("sslmode") not in (None, "verify-full", "prefer"):
        return
    import ssl

    # Python's own paths come first: they follow SSL_CERT_FILE, as OpenSSL does.
    candidates = [ssl.get_default_verify_paths().cafile, *CERTIFICATE_FILES]
    found = next((path for path in candidates if path and Path(path).is_file()), None)
    if found is None:
        raise ConfigurationError(
            "sslrootcert=system: this host has no file of trusted certificates in any of the usual places; install "
            "its ca-certificates package, or name a file in SSL_CERT_FILE or sslrootcert"
        )
    given["sslrootcert"] = found
    given["sslmode"] = "verify-full"


def _split(given: dict[str, str], known: Mapping[str, str]) -> list[Target]:
    """One set of parameters for each host, in the order in which libpq would try them."""
    lists = {key: known.get(key, "").split(",") for key in ("host", "hostaddr", "port")}
    if any("@" in host[1:] for host in lists["host"]):
        # libpq would look it up, and its error would show the end of the password, which stands before the last "@".
        raise ConfigurationError('the database URL has an "@" in its host: write an "@" in a password as %40')
    if not any(map(_can_be_a_host, lists["host"])) and not any(lists["hostaddr"]):
        raise ConfigurationError(f"the database URL names {NO_HOST}")
    number = max(len(lists["host"]), len(lists["hostaddr"]))
    if not all(port == "" or (port.isascii() and port.isdigit() and 0 < int(port) < 65536) for port in lists["port"]):
        # libpq would look up the host first. The value is not shown, because it may be part of a password.
        raise ConfigurationError("the database URL has a port that is not a number from 1 to 65535")
    for key in ("host", "hostaddr", "port"):
        if len(lists[key]) == 1:
            lists[key] *= number
        if len(lists[key]) != number:
            hosts = "1 host" if number == 1 else f"{number} hosts"
            raise ConfigurationError(f"the database URL names {hosts} but {len(lists[key])} values for {key}")
    targets = []
    for host, address, port in zip(lists["host"], lists["hostaddr"], lists["port"], strict=True):
        own = {**given, "host": host, "hostaddr": address, "port": port}
        targets.append(Target(own, _name(host, address, port)))
    if known.get("target_session_attrs") == "prefer-standby":
        standby = [Target({**t.parameters, "target_session_attrs": "standby"}, t.name) for t in targets]
        any_server = [Target({**t.parameters, "target_session_attrs": "any"}, t.name) for t in targets]
        return standby + any_server
    return targets


def _name(host: str, address: str, port: str) -> str:
    return f"{host or address or 'the local socket'}{':' + port if port else ''}"


def _slip(url: str, error: str) -> str:
    """What may be wrong with a URL that libpq cannot read, in words that reveal nothing of the URL."""
    if url[:1] in ("'", '"', "`"):
        return ", it begins with a quotation mark"
    if other := re.match("(jdbc|mysql|mariadb|sqlite|mssql|oracle|mongodb|redis|https?)[+:]", url):
        return f", it begins with {other[1]}"
    if re.match(r"\w+ *= *['\"]?postgres(ql)?://", url):
        return ", it begins with a name and an equals sign"
    if unknown := re.search(r'(?:parameter|option):? "([^"]+)"', error):
        import difflib

        known = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
        if unknown[1].lower() in _OTHERS:
            schema = ": name the schema with the table instead" if "schema" in unknown[1].lower() else ""
            return f", {unknown[1]} is not a parameter of libpq{schema}"
        # The unknown name itself may be part of a password that lacks its %-escapes.
        if meant := difflib.get_close_matches(unknown[1], known, 1, 0.8):
            return f", a parameter looks like a misspelt {meant[0]}"
    return ""


def _can_be_a_host(host: str) -> bool:
    """Whether the host can be looked up (RFC 1035: each part between dots has 1 to 63 bytes); "" is the default."""
    if host == "" or host.startswith(("/", "@")):
        return True
    return all(0 < len(part.encode()) < 64 for part in host.removesuffix(".").split("."))
