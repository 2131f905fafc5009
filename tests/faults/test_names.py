"""Name service that does not answer: resolving a name blocks and knows no time limit of ours."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE
from tests.support.need import need, need_program
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration

#: Takes port 53 in a network of its own and says nothing; then becomes the program that it was given. The socket must
#: outlive the exec, or questions would be refused and not be lost.
SILENT = """
import os, socket, sys
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))
silent.set_inheritable(True)
open(os.environ["FOLDER"] + "/silent", "w").close()
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def silent_names(tmp_path: Path) -> list[str]:
    """What to start a program with so that its name server never answers; its network has nothing else in it."""
    unshare = need_program("unshare", "util-linux")
    need_program("ip", "iproute2")
    need(os.geteuid() == 0, "no right to make a network namespace: run as root")
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:3\n")
    hosts = tmp_path / "nsswitch.conf"
    hosts.write_text("hosts: dns\n")
    prepare = (
        f"ip link set lo up && mount --bind {resolv} /etc/resolv.conf && mount --bind {hosts} /etc/nsswitch.conf"
        ' && exec "$@"'
    )
    return [unshare, "--net", "--mount", "sh", "-c", prepare, "sh", sys.executable, "-c", SILENT]


@pytest.mark.parametrize("settings", [pytest.param(SLOT, id="slot"), pytest.param(LEASE, id="lease")])
def test_a_start_is_given_up_in_time(start: Start, silent_names: list[str], settings: dict[str, str]) -> None:
    url = "postgresql://app@database.example/app"
    run = start(url, settings, {"LOCK_CONNECT_TIMEOUT_SECONDS": 2}, before=silent_names)
    code, err = run.ended(15)
    assert (code, err.count("\n")) == (1, 1)
    assert "database.example" in err
    assert not run.started


def test_sigterm_ends_a_start_at_once(start: Start, silent_names: list[str]) -> None:
    url = "postgresql://app@database.example/app"
    run = start(url, LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 600}, before=silent_names)
    # The wrapper's own threads: the one for signals, the one that resolves.
    until(lambda: psutil.Process(run.pid).num_threads() > 2, PATIENCE, "the look-up")
    assert run.send(signal.SIGTERM).ended(10) == (143, "")


def test_a_host_that_cannot_be_resolved_costs_its_share_of_the_time(
    start: Start, server: Postgres, own_table: Table, silent_names: list[str]
) -> None:
    # The socket is in the file system, which the wrapper still shares with the server.
    hosts = f"host=database.example,{server.socket_folder} port={server.port},{server.port} user=postgres"
    run = start(hosts, LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 4, "RUN_LOCK_TTL_SECONDS": 20}, before=silent_names)
    run.up()
    for backend in until(own_table.backends, what="a connection"):
        own_table.ask("SELECT pg_terminate_backend(%s)", backend)
    end = own_table.ends()
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal by way of the second host")
    assert run.tell(3).ended() == (3, "")
    assert own_table.live() == {}
