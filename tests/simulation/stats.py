"""What many histories had in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Stats:
    """What many histories had in them."""

    histories: int = 0
    steps: int = 0
    events: int = 0
    acquisitions: int = 0
    runs: int = 0
    seals: int = 0
    warnings: int = 0
    #: Losses that were told although the row was still there when the command ended: a lock lost on the way out, or
    #: an answer that could not be told from a loss.
    cautious: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def summary(self) -> str:
        def listed(counted: Counter[str]) -> str:
            return ", ".join(f"{name} {number}" for name, number in sorted(counted.items()))

        return (
            f"{self.histories} histories, {self.steps} steps, {self.acquisitions} acquisitions, {self.runs} runs, "
            f"{self.seals} seals\n"
            f"faults, {self.faults.total()} in all: {listed(self.faults)}\n"
            f"losses by reason: {listed(self.losses)} (with the row still there when the command ended: "
            f"{self.cautious})\n"
            f"endings: {listed(self.endings)}"
        )
