"""Figures: samples as they were measured, their medians and ratios, and how a page shows them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: What a figure that is missing looks like.
NOTHING = "—"


@dataclass
class Row:
    """One contender in one case."""

    case: str
    contender: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    remark: str = ""

    def median(self, figure: str) -> float | None:
        values = self.samples.get(figure)
        return statistics.median(values) if values else None


@dataclass
class Table:
    """The rows of one measurement.

    ``ratio_of`` is the figure whose ratio is shown and ``reference`` the contender that it is taken to, in each case
    that has one.
    """

    name: str
    title: str
    ratio_of: str = ""
    reference: str = ""
    command: str = ""
    rows: list[Row] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, case: str, contender: str, figure: str, unit: str, *values: float) -> None:
        self.units.setdefault(figure, unit)
        self.row(case, contender).samples.setdefault(figure, []).extend(values)

    def remark(self, case: str, contender: str, text: str) -> None:
        row = self.row(case, contender)
        if text not in row.remark:
            row.remark = f"{row.remark}; {text}" if row.remark else text

    def row(self, case: str, contender: str) -> Row:
        for row in self.rows:
            if (row.case, row.contender) == (case, contender):
                return row
        self.rows.append(Row(case, contender))
        return self.rows[-1]

    def ratio(self, row: Row) -> float | None:
        """To the reference: the median of the ratios round by round, since what disturbs a round disturbs all of it."""
        other = next((r for r in self.rows if (r.case, r.contender) == (row.case, self.reference)), None)
        if other is None or not self.ratio_of:
            return None
        some, others = row.samples.get(self.ratio_of), other.samples.get(self.ratio_of)
        if not some or not others:
            return None
        if len(some) == len(others) and all(others):
            return statistics.median(a / b for a, b in zip(some, others, strict=True))
        below = statistics.median(others)
        return statistics.median(some) / below if below else None

    def markdown(self) -> str:
        figures = list(self.units)
        ratios = {id(row): self.ratio(row) for row in self.rows}
        with_ratio = any(value is not None for value in ratios.values())
        with_remark = any(row.remark for row in self.rows)
        head = ["", "", *(f"{figure}, {unit}" if unit else figure for figure, unit in self.units.items())]
        if with_ratio:
            head.append(f"{self.ratio_of} ÷ that of {self.reference}")
        if with_remark:
            head.append("")
        lines = [head, ["---", "---", *["---:"] * (len(figures) + with_ratio), *["---"] * with_remark]]
        case = None
        for row in self.rows:
            cells = [row.case if row.case != case else "", row.contender]
            cells += [_number(row.median(figure)) for figure in figures]
            if with_ratio:
                ratio = ratios[id(row)]
                cells.append(NOTHING if ratio is None else format(ratio, ".2f"))
            if with_remark:
                cells.append(row.remark)
            case = row.case
            lines.append(cells)
        text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return "\n\n".join([text, *self.notes])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "command": self.command,
            "ratio_of": self.ratio_of,
            "reference": self.reference,
            "notes": self.notes,
            "rows": [
                {
                    "case": row.case,
                    "contender": row.contender,
                    "ratio": self.ratio(row),
                    "remark": row.remark,
                    "figures": {
                        name: {
                            "unit": self.units[name],
                            "median": statistics.median(values),
                            "low": min(values),
                            "high": max(values),
                            "samples": len(values),
                        }
                        for name, values in row.samples.items()
                        if values
                    },
                }
                for row in self.rows
            ],
        }


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def percentile(values: Iterable[float], part: float) -> float:
    """The value that ``part`` of all values do not exceed."""
    ordered: Sequence[float] = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


class IncompleteError(ValueError):
    """A page without a place for a table."""


def filled(page: str, name: str, text: str) -> str:
    """The page with what stands between the markers of ``name`` replaced."""
    begin, end = f"<!-- benchmarks:{name} -->", f"<!-- /benchmarks:{name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise IncompleteError(f"the page has no {begin} … {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def has_place(page: str, name: str) -> bool:
    return f"<!-- benchmarks:{name} -->" in page
