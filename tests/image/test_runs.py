"""Containers as clusters start them: any user, nothing writable, no network, no capability; and what their ends say."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.image.engine import Containers
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
TABLE = "CREATE TABLE key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"


def owner_of_live_row(url: str) -> str | None:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT value FROM key_value WHERE expire_at > clock_timestamp()").fetchone()
        return str(row[0]) if row else None


@pytest.mark.parametrize("user", ["65532:65532", "1000700000:0", "0:0", "12345:54321"])
def test_any_user_without_anything_writable(
    containers: Containers, image: str, variables: dict[str, str], user: str
) -> None:
    ran = containers.run(
        image, "DATABASE_URL", "sh", "-c", "id -u; id -g", environment=variables, user=user, **HARDENED
    )
    assert (ran.code, ran.out.split(), ran.err) == (0, user.split(":"), "")
    assert owner_of_live_row(variables["DATABASE_URL"]) is None


def test_any_user_on_the_folder_alone(containers: Containers, runtime: str, variables: dict[str, str]) -> None:
    command = ("DATABASE_URL", "/dislock/bin/python3", "-c", "import os; print(os.getuid(), os.getgid())")
    ran = containers.run(runtime, *command, environment=variables, user="1000700000:0", **HARDENED)
    assert (ran.code, ran.out, ran.err) == (0, "1000700000 0\n", "")


def test_a_schedule_with_a_zone(containers: Containers, image: str, variables: dict[str, str]) -> None:
    schedule = {
        **variables,
        "LOCK_STRATEGY": "schedule,lease",
        "CRON_SCHEDULE": "0 0 1 1 *",
        "CRON_TZ": "Europe/Berlin",
    }
    for expected in ("2 locks\n", ""):
        ran = containers.run(image, "DATABASE_URL", "sh", "-c", "echo 2 locks", environment=schedule, **HARDENED)
        assert (ran.code, ran.out, ran.err) == (0, expected, "")


def test_a_command_has_time_zones(containers: Containers, image: str, variables: dict[str, str]) -> None:
    zone = {**variables, "TZ": "Europe/Berlin"}
    # The shell's own programs read /usr/share/zoneinfo, whichever C library they were built with.
    ran = containers.run(image, "DATABASE_URL", "date", "-d", "@0", "+%H %Z", environment=zone, **HARDENED)
    assert (ran.code, ran.out, ran.err) == (0, "01 CET\n", "")


@pytest.fixture(scope="module")
def with_socket() -> Iterator[Postgres]:
    with Postgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(TABLE)
        yield server


def test_no_network_but_a_mounted_socket(
    containers: Containers, image: str, with_socket: Postgres, variables: dict[str, str]
) -> None:
    url = f"postgresql://postgres@:{with_socket.port}/postgres?host=/sockets"
    ran = containers.run(
        image,
        *("DATABASE_URL", "sh", "-c", "ls /sys/class/net"),
        environment={**variables, "DATABASE_URL": url},
        volumes={str(with_socket.socket_folder): {"bind": "/sockets", "mode": "ro"}},
        network_mode="none",
        **HARDENED,
    )
    assert (ran.code, ran.out, ran.err) == (0, "lo\n", "")


def test_the_environment_is_the_engines(containers: Containers, image: str, variables: dict[str, str]) -> None:
    given = {**variables, "PYTHONPATH": "/nowhere", "LC_ALL": "C", "LD_LIBRARY_PATH": "/nowhere", "EMPTY": ""}
    bare = containers.run(image, "-c", "env | grep -v HOSTNAME", entrypoint=["sh"], environment=given)
    ran = containers.run(image, "DATABASE_URL", "sh", "-c", "env | grep -v HOSTNAME", environment=given)
    ours = {"DISLOCK_LOCK_KEY", "DISLOCK_OWNER", "DISLOCK_FENCING_TOKEN"}
    lines = sorted(ran.out.splitlines())
    assert {line.split("=")[0] for line in lines} >= ours | given.keys()
    assert [line for line in lines if line.split("=")[0] not in ours] == sorted(bare.out.splitlines())


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("/etc/passwd",), 126),
        (("/no/such/program",), 127),
    ],
)
def test_the_commands_end(
    containers: Containers, image: str, variables: dict[str, str], command: tuple[str, ...], code: int
) -> None:
    ran = containers.run(image, "DATABASE_URL", *command, environment=variables)
    assert ran.code == code
    assert owner_of_live_row(variables["DATABASE_URL"]) is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/none", "LOCK_CONNECT_TIMEOUT_SECONDS": "1"}, 1),
        ({"LOCK_STRATEGY": "both"}, 2),
    ],
)
def test_an_end_before_the_command(
    containers: Containers, image: str, variables: dict[str, str], change: dict[str, str], code: int
) -> None:
    ran = containers.run(image, "DATABASE_URL", "echo", "ran", environment={**variables, **change})
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("dislock: ")


def test_without_arguments_it_prints_the_help(containers: Containers, image: str) -> None:
    ran = containers.run(image)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("usage: dislock ")


def test_python_jobs(containers: Containers, image: str, variables: dict[str, str]) -> None:
    code = (
        "import dislock, json, pg_advisory_lock, psycopg, sqlite3, ssl, sqlalchemy, subprocess, sys, zoneinfo\n"
        "assert psycopg.pq.__impl__ == 'binary'\n"
        "assert len(ssl.create_default_context().get_ca_certs()) > 100\n"
        "zoneinfo.ZoneInfo('Europe/Berlin')\n"
        "print(subprocess.check_output([sys.executable, '-c', 'import os; print(os.environ[\"LOCK_KEY\"])']))\n"
    )
    ran = containers.run(image, "DATABASE_URL", "python3", "-c", code, environment=variables, **HARDENED)
    assert (ran.code, ran.out, ran.err) == (0, "b'job\\n'\n", "")
