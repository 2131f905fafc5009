"""The ways to the leader: both hosts in the connection string, HAProxy, and HAProxy with PgBouncer in front of it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.patroni import Cluster
from tests.support.need import need_program
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import free_port
from tests.support.wait import until

#: As docs/high-availability.md has it, but for the ports.
HAPROXY = """
defaults
    mode tcp
    timeout connect 1s
    timeout client 1h
    timeout server 1h
listen locks
    bind 127.0.0.1:{port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"""
#: As docs/high-availability.md has it.
PGBOUNCER = {"server_login_retry": 1, "server_connect_timeout": 2, "query_wait_timeout": 30, "default_pool_size": 10}


@contextlib.contextmanager
def haproxy(cluster: Cluster) -> Iterator[int]:
    """HAProxy that leads to whichever node leads; yields its port."""
    program = need_program("haproxy")
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="haproxy-"))
    servers = (f"    server {node.name} 127.0.0.1:{node.port} check port {node.rest}\n" for node in cluster.nodes)
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port) + "".join(servers))
    with (folder / "log").open("wb") as log:
        # -db: in the foreground.
        process = subprocess.Popen([program, "-db", "-f", str(folder / "haproxy.cfg")], stdout=log, stderr=log)
    try:

        def listens() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
            return False

        until(listens, what="HAProxy")
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def routes(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A connection string for each way, by its name."""
    with haproxy(cluster) as port:
        proxied = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        with PgBouncer(proxied, "transaction", PGBOUNCER) as pooler:
            yield {"two hosts": cluster.url, "HAProxy": proxied, "PgBouncer": pooler.url(proxied)}
