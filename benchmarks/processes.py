"""What the kernel knows of a process: memory, processor time, threads and how often it woke up."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class State:
    """A process at one moment."""

    processor: float
    wakeups: int
    threads: int
    resident: float
    private: float

    @classmethod
    def of(cls, pid: int) -> State:
        folder = Path(f"/proc/{pid}")
        wakeups = 0
        nanoseconds = 0
        for task in (folder / "task").iterdir():
            try:
                wakeups += _number((task / "status").read_text(), "voluntary_ctxt_switches")
                nanoseconds += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue
        status = (folder / "status").read_text()
        smaps = (folder / "smaps_rollup").read_text()
        return cls(
            processor=nanoseconds / 1e9,
            wakeups=wakeups,
            threads=_number(status, "Threads"),
            resident=_number(status, "VmRSS") / 1024,
            private=_number(smaps, "Pss") / 1024,
        )


def _number(text: str, name: str) -> int:
    found = re.search(rf"(?m)^{name}:\s+(\d+)", text)
    return int(found[1]) if found else 0
