"""What the files of a ledger say. All moments are /proc/uptime's, the one clock that every process here shares."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: The command. A mark every 50 ms, or MARK_PAUSE, is the last sign of life of one that is killed; /proc/uptime is a
#: clock that needs no program, and that libfaketime does not touch. $1: marks to set, or fewer if there is a file
#: ``enough``, $2: exit code, $3: what it does on SIGTERM. The tick is the last word, where there is one.
COMMAND = r"""
file=$LEDGER/command-$DISLOCK_FENCING_TOKEN-$$
mark() { read -r up rest </proc/uptime; echo "$1 $up $DISLOCK_FENCING_TOKEN $DISLOCK_OWNER $DISLOCK_SLOT" >>"$file"; }
case $3 in obey) trap 'mark term; exit 143' TERM ;; *) trap '' TERM ;; esac
mark start
n=$1
while [ "$n" -gt 0 ] && ! [ -e "$LEDGER/enough" ]; do sleep "${MARK_PAUSE:-0.05}"; mark alive; n=$((n - 1)); done
mark end
exit "$2"
"""


@dataclass
class Wrapper:
    """One wrapper from its start to its end."""

    owner: str
    """What the row names when it holds the lease: host:pid."""
    began: float
    wanted: int
    """The exit code that its command has when it is left alone."""
    ended: float = 0.0
    code: int = -1
    err: str = ""
    done: list[str] = field(default_factory=list)
    """What was done to it: ``kill``, ``term``, ``pause``; to its row: ``force``; to every row: ``clock``."""


@dataclass(frozen=True)
class Fault:
    at: float
    kind: str
    target: str


@dataclass(frozen=True)
class Failover:
    """A standby has become the primary."""

    at: float
    """The old primary confirmed nothing after this."""
    synchronous: bool
    """Whether the old one confirmed only what the standby had."""
    clock: int
    """The new one's, in microseconds, before any host reached it: tokens that it gives are larger."""
    owner: str | None
    """Whom the lease's row named at the new one then; None: there was no row."""
    ends: int | None
    """The row's end, in microseconds."""


@dataclass(frozen=True)
class Work:
    """One run of the command."""

    token: int
    owner: str
    start: float
    last: float
    """Its end, or its last sign of life."""
    finished: bool
    """Whether it came to its own end."""
    tick: str = ""
    """The tick that its success seals."""


@dataclass
class Ledger:
    ttl: float
    wrappers: list[Wrapper]
    faults: list[Fault]
    works: list[Work]
    unreadable: list[str] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        ledger = cls(float((folder / "ttl").read_text()), [], [], [])
        ledger.wrappers = [Wrapper(**json.loads(line)) for line in (folder / "wrappers").read_text().splitlines()]
        ledger.faults = [Fault(**json.loads(line)) for line in (folder / "faults").read_text().splitlines()]
        if (folder / "failovers").exists():
            lines = (folder / "failovers").read_text().splitlines()
            ledger.failovers = [Failover(**json.loads(line)) for line in lines]
        for file in sorted(folder.glob("command-*")):
            work = _work(file.read_text())
            if work:
                ledger.works.append(work)
            else:
                ledger.unreadable.append(file.name)
        ledger.works.sort(key=lambda work: (work.start, work.token))
        return ledger


def append(path: Path, entry: Wrapper | Fault | Failover) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(entry)) + "\n")


def _work(text: str) -> Work | None:
    # A command that is killed may leave half a line.
    marks = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    if not marks or any(len(mark) not in (4, 5) for mark in marks) or marks[0][0] != "start":
        return None
    _, start, token, owner, *tick = marks[0]
    return Work(int(token), owner, float(start), float(marks[-1][1]), marks[-1][0] == "end", "".join(tick))
