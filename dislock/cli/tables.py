"""Tables for a terminal: columns are as wide as their content, and nothing is cut off."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from dislock.cli.output import one_line

#: Blanks between two columns.
GAP = 2


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The lines of a table, each cell in one printable line."""
    lines = [list(headings), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(width(line[column]) for line in lines) for column in range(len(headings))]
    return "".join(_line(line, widths) for line in lines)


def width(text: str) -> int:
    """The width of a text in columns of a terminal."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (size - width(cell) + GAP) for cell, size in zip(cells, widths, strict=True))
    return "".join(padded).rstrip() + "\n"
