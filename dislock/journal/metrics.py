"""The journal and the locks in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dislock.journal.overdue import Finding
from dislock.journal.status import Lock
from dislock.protocol.questions import RecentRow, RunRow


class Metric(NamedTuple):
    """One metric: its name, its type, and what it means."""

    name: str
    kind: str
    help: str


START = Metric("dislock_last_start_timestamp_seconds", "gauge", "When the newest run began.")
SUCCESS = Metric("dislock_last_success_timestamp_seconds", "gauge", "When the last successful run ended.")
EXIT_CODE = Metric("dislock_last_exit_code", "gauge", "The exit code of the last run that has ended.")
DURATION = Metric("dislock_last_duration_seconds", "gauge", "How long the last run that has ended took.")
HELD = Metric("dislock_held", "gauge", "Whether a lock is held: 1 or 0. A slot is held until the next tick.")
OVERDUE = Metric("dislock_overdue", "gauge", "As --overdue judges it: 0 well, 1 warning, 2 critical.")
METRICS = (START, SUCCESS, EXIT_CODE, DURATION, HELD, OVERDUE)


def metrics(recent: Sequence[RecentRow], locks: Sequence[Lock], findings: Sequence[Finding]) -> str:
    """The whole text. ``recent``: ordered by key and start."""
    newest = {row.run.key: row for row in recent}
    ended: dict[str, RunRow] = {row.run.key: row.run for row in recent if row.run.ended is not None}
    samples: dict[Metric, list[str]] = {metric: [] for metric in METRICS}
    for key, row in newest.items():
        samples[START].append(_sample(START, row.run.started / 1_000_000, key=key))
        if row.success is not None:
            samples[SUCCESS].append(_sample(SUCCESS, row.success / 1_000_000, key=key))
    for key, run in ended.items():
        if run.exit_code is not None:
            samples[EXIT_CODE].append(_sample(EXIT_CODE, run.exit_code, key=key))
        samples[DURATION].append(_sample(DURATION, max(0, (run.ended or 0) - run.started) / 1_000_000, key=key))
    for lock in locks:
        samples[HELD].append(_sample(HELD, int(lock.row.held), key=lock.key, kind=lock.kind))
    for finding in sorted(findings, key=lambda each: each.key):
        samples[OVERDUE].append(_sample(OVERDUE, finding.level, key=finding.key))
    return "".join(_lines(metric, found) for metric, found in samples.items() if found)


def _lines(metric: Metric, samples: Iterable[str]) -> str:
    head = f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
    return head + "".join(f"{sample}\n" for sample in samples)


def _sample(metric: Metric, value: float, **labels: str) -> str:
    shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    number = f"{value:.3f}" if isinstance(value, float) else str(value)
    return f"{metric.name}{{{shown}}} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
