"""What came of a kind of tests, and how it is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    """The names of the failed tests."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why tests were skipped, and how many for each reason."""

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.passed += tally.passed
        whole.failed += tally.failed
        whole.skipped += tally.skipped
    return whole


def read_junit(path: Path) -> Tally:
    """Counts the tests of pytest's report. A test that passed and whose teardown failed counts as failed."""
    outcomes: dict[str, str] = {}
    tally = Tally()
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - pytest on this machine wrote the file
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[name] = "failed"
        elif skip is not None:
            outcomes[name] = "skipped"
            tally.reasons[skip.get("message") or "no reason given"] += 1
        else:
            outcomes.setdefault(name, "passed")
    counts = Counter(outcomes.values())
    tally.passed, tally.failed, tally.skipped = counts["passed"], counts["failed"], counts["skipped"]
    tally.failures = [name for name, outcome in outcomes.items() if outcome == "failed"]
    return tally
