"""What a connection string means, and what an error of the database means."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import errors, pq

from dislock import ConfigurationError
from dislock.drivers import targets as targets_module
from dislock.drivers.targets import Database

SECRET = "s3cr&t"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq fills what a connection string leaves out from PG* variables."""
    import os

    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


def targets(url: str) -> list[dict[str, str]]:
    return [target.parameters for target in Database(url, "dislock k").targets]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h:5433/d",
        "postgres://u:p@h:5433/d",
        "postgresql+psycopg://u:p@h:5433/d",
        "postgresql+asyncpg://u:p@h:5433/d",
        "host=h port=5433 user=u password=p dbname=d",
    ],
)
def test_every_form_means_the_same(url: str) -> None:
    (target,) = targets(url)
    assert {key: target[key] for key in ("host", "port", "user", "password", "dbname")} == {
        "host": "h",
        "port": "5433",
        "user": "u",
        "password": "p",
        "dbname": "d",
    }


@pytest.mark.parametrize(
    "url", [f"postgresql://u:{SECRET}%zz@h/d", f"{SECRET}", f"host=h pasword={SECRET}", f"host=h password='{SECRET}"]
)
def test_a_malformed_string_is_refused_and_never_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Database(url, "dislock k")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_defaults_give_way_to_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = targets("host=h")
    assert target["application_name"] == "dislock k"
    assert target["keepalives_idle"] == "15"
    assert target["tcp_user_timeout"] == "30000"
    (target,) = targets("host=h application_name=mine keepalives_idle=7")
    assert (target["application_name"], target["keepalives_idle"]) == ("mine", "7")
    monkeypatch.setenv("PGAPPNAME", "mine")
    (target,) = targets("host=h")
    assert "application_name" not in target


def test_the_encoding_is_ours_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    (target,) = targets("host=h client_encoding=SQL_ASCII")
    assert target["client_encoding"] == "UTF8"


def test_each_host_is_a_target_of_its_own() -> None:
    first, second = Database("postgresql://a:1,b:2/d?target_session_attrs=read-write", "x").targets
    assert (first.parameters["host"], first.parameters["port"], first.name) == ("a", "1", "a:1")
    assert (second.parameters["host"], second.parameters["port"], second.name) == ("b", "2", "b:2")
    assert second.parameters["target_session_attrs"] == "read-write"


def test_a_host_that_is_left_out_is_the_default_one() -> None:
    assert [target["host"] for target in targets("host=,b")] == ["", "b"]


def test_one_port_is_for_all_hosts_and_two_are_not_for_three() -> None:
    assert [target["port"] for target in targets("host=a,b port=7")] == ["7", "7"]
    with pytest.raises(ConfigurationError, match="3 hosts"):
        targets("host=a,b,c port=1,2")


@pytest.mark.parametrize("port", ["port", "0", "65536", "-1", "\uff11\uff12"])
def test_a_port_that_is_none_is_refused_before_the_host_is_looked_up(port: str) -> None:
    with pytest.raises(ConfigurationError, match="port"):
        targets(f"host=nowhere.invalid port={port}")


def test_hosts_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    assert [target["host"] for target in targets("dbname=d")] == ["a", "b"]


def test_prefer_standby_tries_all_hosts_as_standbys_first() -> None:
    tried = [(t["host"], t["target_session_attrs"]) for t in targets("host=a,b target_session_attrs=prefer-standby")]
    assert tried == [("a", "standby"), ("b", "standby"), ("a", "any"), ("b", "any")]


def test_system_certificates_are_the_hosts_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.touch()
    monkeypatch.setattr(pq, "__impl__", "binary")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    (target,) = targets("host=h sslrootcert=system")
    assert (target["sslrootcert"], target["sslmode"]) == (str(bundle), "verify-full")
    # libpq refuses a weaker mode together with system; a file in its place would let it pass.
    (target,) = targets("host=h sslrootcert=system sslmode=require")
    assert target["sslrootcert"] == "system"
    # A libpq of the system knows the system's folder.
    monkeypatch.setattr(pq, "__impl__", "python")
    (target,) = targets("host=h sslrootcert=system")
    assert target["sslrootcert"] == "system"


def test_a_host_without_certificates_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pq, "__impl__", "binary")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(targets_module, "CERTIFICATE_FILES", ())
    with pytest.raises(ConfigurationError, match="ca-certificates"):
        targets("host=h sslrootcert=system")


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A service file with two hosts under one name."""
    file = tmp_path / "services"
    file.write_text("[two]\nhost=a,b\nport=1,2\npassword=hushed\nkeepalives_idle=7\n[odd]\nnothing=1\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))


@pytest.mark.parametrize("way", ["named in the URL", "named in PGSERVICE"])
def test_the_hosts_of_a_service_are_targets(services: None, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    url = "service=two"
    if way == "named in PGSERVICE":
        monkeypatch.setenv("PGSERVICE", "two")
        url = "dbname=d"
    database = Database(url, "x")
    assert [(t.parameters["host"], t.parameters["port"], t.name) for t in database.targets] == [
        ("a", "1", "a:1"),
        ("b", "2", "b:2"),
    ]
    # What the service says is no default's to replace, and no message's to repeat.
    assert all("keepalives_idle" not in target.parameters for target in database.targets)
    assert database.failure(OSError("hushed"), ["t"], broken=True).text == "***"


@pytest.mark.parametrize("service", ["none", "odd"])
def test_a_service_that_cannot_be_read_is_refused_at_once(services: None, service: str) -> None:
    with pytest.raises(ConfigurationError, match=r"service .*PGSERVICEFILE"):
        Database(f"service={service}", "x")


# As libpq 18, PostgreSQL 18 and PgBouncer 1.18 say it.
@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  no such database: nix",
        "FATAL:  SASL authentication failed",
        "FATAL:  password authentication failed",
        "FATAL:  unsupported startup parameter: options",
        "FATAL:  login rejected",
        'FATAL:  Peer authentication failed for user "app"',
        "channel binding required, but server authenticated client without channel binding",
        "channel binding required, but SSL not in use",
        "channel binding required but not supported by server's authentication request",
        'authentication method requirement "scram-sha-256" failed: server did not complete authentication',
        'invalid require_auth value: "foo"',
        'invalid "ssl_min_protocol_version" value: "foo"',
        'weak sslmode "prefer" may not be used with sslnegotiation=direct',
        'FATAL:  invalid value for parameter "TimeZone": "Mars/Phobos"',
        'FATAL:  unrecognized configuration parameter "nothing"',
        'FATAL:  parameter "fsync" cannot be changed now',
        'FATAL:  permission denied to set parameter "log_statement"',
        "FATAL:  invalid command-line argument for server process: postgres",
        "FATAL:  --bla requires a value",
    ],
)
def test_a_refusal_that_cannot_pass_is_told_as_one(said: str) -> None:
    failure = Database("host=h", "x").failure(
        psycopg.OperationalError(f"connection failed: {said}"), ["t"], broken=True
    )
    assert failure.permanent
    assert said.split(":", 1)[-1].strip() in failure.text
    assert failure.text.count(": ") > said.count(": "), "no advice"


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  the database system is starting up",
        "FATAL:  sorry, too many clients already",
        'FATAL:  LDAP authentication failed for user "app"',
        "FATAL:  server login has been failing, try again later (server_login_retry)",
        'FATAL:  database "d" is not currently accepting connections',
        "FATAL:  bouncer config error",
    ],
)
def test_a_refusal_that_may_pass_is_tried_again(said: str) -> None:
    assert not Database("host=h", "x").failure(psycopg.OperationalError(said), ["t"], broken=True).permanent


@pytest.mark.parametrize(
    ("error", "permanent", "words"),
    [
        (errors.UndefinedTable("no"), True, "CREATE TABLE s.t (key text PRIMARY KEY"),
        (errors.InsufficientPrivilege("permission denied"), True, "GRANT SELECT, INSERT, UPDATE ON s.t"),
        (errors.InvalidColumnReference("no unique"), True, "not unique"),
        (errors.UndefinedColumn('column "value" does not exist'), True, "lacks a column"),
        (
            errors.SyntaxError('syntax error at or near "MATERIALIZED"'),
            True,
            "must be PostgreSQL 12 or newer, and not only",
        ),
        (errors.FeatureNotSupported("not there"), True, "must be PostgreSQL 12 or newer"),
        (errors.FeatureNotSupported("cross-database references are not implemented"), True, "name s.t does not fit"),
        (errors.ReadOnlySqlTransaction("read-only"), False, "target_session_attrs=read-write"),
        (errors.TooManyConnections("sorry"), False, "sorry"),
        (errors.SerializationFailure("try again"), False, "try again"),
        (errors.LockNotAvailable("waited"), False, "another transaction has locked"),
        (errors.UndefinedColumn("column held.tableoid does not exist"), True, "s.t is a view"),
        (errors.InsufficientPrivilege("new row violates row-level security"), True, "it needs a policy"),
        (psycopg.OperationalError("fe_sendauth: no password supplied"), True, ".pgpass"),
        (errors.AdminShutdown("terminating"), False, "terminating"),
        (errors.StringDataRightTruncation("too long for type"), True, "too long"),
        (errors.NotNullViolation("null value"), True, "null value"),
        (psycopg.OperationalError('FATAL:  database "d" does not exist'), True, "database's name"),
        (psycopg.OperationalError("connection refused"), False, "connection refused"),
        (psycopg.ProgrammingError("cannot be mixed"), True, "cannot be mixed"),
    ],
)
def test_an_error_says_what_to_do_and_whether_to_try_again(error: Exception, permanent: bool, words: str) -> None:
    failure = Database("host=h", "x").failure(error, ["s", "t"], broken=False)
    assert failure.permanent is permanent
    assert words in failure.text


@pytest.mark.parametrize(
    ("url", "role"),
    [("user=cron", "cron"), ("user=Night-1", '"Night-1"'), ("user=cron options=-crole=jobs", "this role")],
)
def test_a_grant_can_be_copied_and_asks_for_no_more_than_is_needed(url: str, role: str) -> None:
    database, denied = Database(f"host=h {url}", "x"), errors.InsufficientPrivilege("permission denied")
    for reads, lock, journal in (
        (True, "SELECT", "SELECT"),
        (False, "SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE, DELETE"),
    ):
        said = database.failure(denied, ["jobs", "Locks"], broken=False, reads=reads).text
        assert f': GRANT {lock} ON jobs."Locks" TO {role}, and USAGE' in said
        said = database.journal_failure(denied, ["runs"], broken=False, reads=reads).text
        assert said.endswith(f": GRANT {journal} ON runs TO {role}")


def test_an_error_is_one_line_without_the_password() -> None:
    text = Database(f"host=h password={SECRET}", "x").failure(OSError(f"bad\n  {SECRET} here"), ["t"], broken=True).text
    assert text == "bad *** here"


@pytest.mark.parametrize(
    "password", ["password", "failed", "authentication", "a", "e", "us", "app", "User", "for user"]
)
@pytest.mark.parametrize(
    "said", ['FATAL:  password authentication failed for user "app"', 'FATAL:  role "app" does not exist']
)
def test_a_password_that_is_a_word_of_the_message_changes_nothing(password: str, said: str) -> None:
    """Neither what the error means, nor the sentence: a gap in it would tell the password."""
    database = Database(f"user=app password='{password}'", "x")
    failure = database.failure(psycopg.OperationalError(said), ["t"], broken=True)
    assert failure.permanent
    assert failure.text == f"{' '.join(said.split())}: check the user and the password"


@pytest.mark.parametrize("password", ["password", "failed"])
def test_it_is_blotted_out_where_it_stands_for_itself(password: str) -> None:
    database = Database(f"user=app password='{password}'", "x")
    said = f"failed to resolve host '{password}@h': password"
    failure = database.failure(psycopg.OperationalError(said), ["t"], broken=True)
    assert failure.text == "failed to resolve host '***@h': password"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("'postgresql://h/d'", "malformed, it begins with a quotation mark:"),
        ('"postgresql://h/d"', "malformed, it begins with a quotation mark:"),
        ("mysql://h/d", "malformed, it begins with mysql:"),
        ("jdbc:postgresql://h/d", "malformed, it begins with jdbc:"),
        ("mysql+pymysql://h/d", "malformed, it begins with mysql:"),
        ("DATABASE_URL=postgresql://u:p@h/d", "malformed, it begins with a name and an equals sign:"),
        ("postgresql://h/d?sslmod=require", "malformed, a parameter looks like a misspelt sslmode:"),
        ("host=h pasword=x", "malformed, a parameter looks like a misspelt password:"),
        (
            "postgresql://u:q8Zk2@h/d?schema=jobs",
            "malformed, schema is not a parameter of libpq: name the schema",
        ),
        (
            "postgresql://u:q8Zk2@h/d?sslmode=require&connection_limit=1",
            "malformed, connection_limit is not a parameter of",
        ),
        ("postgresql://u:a/b?q8Zk2=@h/d", "malformed: libpq"),
        ("postgresql://h/d?q8Zk2=1", "malformed: libpq"),
        ("q8Zk2", "malformed: libpq"),
    ],
)
def test_a_malformed_string_is_told_by_its_usual_cause(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Database(url, "x")
    assert words in str(caught.value)
    assert "q8Zk2" not in str(caught.value)


@pytest.mark.parametrize("name", ["connect_timeout", "keepalives", "keepalives_idle", "tcp_user_timeout"])
def test_a_number_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^the database URL has a {name} that is not a whole number$"):
        Database(f"host=h {name}=abc", "x")
    assert Database(f"host=h {name}=1", "x").targets[0].parameters[name] == "1"


def test_an_at_sign_in_a_password_shows_nothing_of_it() -> None:
    with pytest.raises(ConfigurationError, match="%40") as caught:
        targets("postgresql://app:hush@hash@db.example.com/app")
    assert "hash" not in str(caught.value)
    assert targets("postgresql://app:hush%40hash@db.example.com/app")
    assert targets("host=@abstract dbname=app")
