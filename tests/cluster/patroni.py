"""The cluster: who leads, what can be done to a node, and waiting until both are well again."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support.wait import until

#: How long a state of the cluster may take to come, on a machine with much else to do.
PATIENCE = 90.0


class Node:
    """One Patroni and the server that it looks after."""

    def __init__(self, folder: Path, number: int) -> None:
        self.name = f"node{number}"
        self.configuration = folder / f"node{number}.yml"
        self.data = folder / f"data{number}"
        self._pid_file = folder / f"node{number}.pid"
        self._log = folder / f"node{number}.log"
        text = self.configuration.read_text()
        self.rest = _port(r"restapi: .*connect_address: \"127\.0\.0\.1:(\d+)\"", text)
        self.port = _port(r"(?m)^  connect_address: 127\.0\.0\.1:(\d+)$", text)

    @property
    def url(self) -> str:
        """This node alone, whatever it is at the moment."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=3"

    @property
    def patroni(self) -> int:
        return int(self._pid_file.read_text())

    def processes(self) -> list[psutil.Process]:
        """Patroni first, so that it does not undo what is done to its server, then the server's processes."""
        found: list[psutil.Process] = []
        for file, words in ((self._pid_file, str(self.configuration)), (self.data / "postmaster.pid", str(self.data))):
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                process = psutil.Process(int(file.read_text().split()[0]))
                # Its number may be another's by now.
                if words in " ".join(process.cmdline()):
                    found += [process, *process.children(recursive=True)]
        # A server that Patroni started may be its child too.
        return list(dict.fromkeys(found))

    def send(self, number: int) -> None:
        """Signals Patroni and every process of its server."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL for all of it, as by the loss of the machine."""
        doomed = self.processes()
        self.send(signal.SIGKILL)
        psutil.wait_procs(doomed, timeout=PATIENCE)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def resume_server(self) -> None:
        """Lets the server go on, and Patroni not: both nodes take connections for as long as the test wants."""
        patroni, *server = self.processes()
        assert patroni.pid == self.patroni
        for process in server:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def start(self) -> None:
        """Starts Patroni, which starts the server. It outlives the tests, as the one before it would have."""
        owner = pwd.getpwuid(self.data.stat().st_uid)
        change: dict[str, Any] = {}
        if os.geteuid() == 0:
            change = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        with self._log.open("ab") as log:
            # Not a child of the tests, which it outlives.
            started = subprocess.run(
                ["sh", "-c", 'patroni "$1" >&2 & echo $!', "sh", str(self.configuration)],
                env={**os.environ, "HOME": str(self.data.parent)},
                cwd=self.data.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                check=True,
                **change,
            )
        self._pid_file.write_bytes(started.stdout)

    def processes_named(self, title: str) -> list[psutil.Process]:
        """The server's processes with that word in their title (``walsender``)."""
        return [each for each in self.processes() if title in " ".join(each.cmdline())]

    def ask(self, path: str, body: object = None, method: str = "GET") -> tuple[int, str]:
        """A request to Patroni's REST API: the status and the text; status 0 where nobody answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.rest}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=3) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""


class Cluster:
    """Both nodes."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [Node(folder, 1), Node(folder, 2)]

    @property
    def url(self) -> str:
        """Both hosts; libpq takes the one that takes writes."""
        ports = ",".join(str(node.port) for node in self.nodes)
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres "
            "target_session_attrs=read-write connect_timeout=3"
        )

    def leader(self) -> Node | None:
        """The node that calls itself the leader, if there is one that answers."""
        return next((node for node in self.nodes if node.ask("/leader")[0] == 200), None)

    def lead(self) -> Node:
        """Waits until somebody leads."""
        found = until(self.leader, PATIENCE, "a leader")
        assert found is not None
        return found

    def other(self, node: Node) -> Node:
        return next(each for each in self.nodes if each is not node)

    def healthy(self) -> bool:
        """Whether one node leads and the other follows it, and is waited for if the cluster is synchronous."""
        leader = self.leader()
        if leader is None:
            return False
        follower = self.other(leader)
        wanted = "/sync" if self.synchronous else "/replica"
        if follower.ask(wanted)[0] != 200:
            return False
        with contextlib.suppress(psycopg.Error), psycopg.connect(leader.url, autocommit=True) as connection:
            rows = connection.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").fetchall()
            return rows == [("sync",)] if self.synchronous else len(rows) == 1
        return False

    def heal(self) -> None:
        """Starts what does not run, lets go on what was stopped, and waits until the cluster is as it should be."""
        self._go_on()
        try:
            until(self.healthy, PATIENCE / 2, "a cluster in order")
        except AssertionError:
            self._go_on()
            # A timeline of its own, which pg_rewind has not noticed: the operator's answer is a new copy.
            self.other(self.lead()).ask("/reinitialize", {"force": True}, "POST")
            until(self.healthy, 4 * PATIENCE, "a cluster in order after its standby was made anew")

    def _go_on(self) -> None:
        for node in self.nodes:
            node.resume()
            # Patroni may have ended alone, because etcd did not answer it.
            if all(process.pid != node.patroni for process in node.processes()):
                node.start()

    @property
    def settings(self) -> dict[str, Any]:
        """What Patroni keeps for the whole cluster."""
        for node in self.nodes:
            status, text = node.ask("/config")
            if status == 200:
                found: dict[str, Any] = json.loads(text)
                return found
        raise AssertionError("no Patroni answers")

    @property
    def synchronous(self) -> bool:
        return bool(self.settings.get("synchronous_mode"))

    def configure(self, **settings: object) -> None:
        status, text = self.lead().ask("/config", settings, "PATCH")
        assert status == 200, text

    def switch_over(self) -> None:
        """Hands the lead to the other node, as an operator does."""
        leader = self.lead()
        command = ["patronictl", "-c", str(leader.configuration), "switchover", "--force"]
        done = subprocess.run(
            [*command, "--candidate", self.other(leader).name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def _port(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in the configuration"
    return int(found[1])
