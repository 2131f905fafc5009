"""What a page shows of what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tables import IncompleteError, Table, filled, percentile

ROOT = Path(__file__).resolve().parents[3]


def test_a_ratio_is_the_median_of_those_round_by_round() -> None:
    table = Table("t", "T", "elapsed", "peer")
    # The load of the second round doubled both; the ratio of the medians would be 0.75.
    table.add("case", "ours", "elapsed", "ms", 50, 150, 70)
    table.add("case", "peer", "elapsed", "ms", 100, 300, 70)
    assert table.ratio(table.row("case", "ours")) == 0.5
    assert table.ratio(table.row("case", "peer")) == 1


def test_a_case_without_the_reference_has_no_ratio() -> None:
    table = Table("t", "T", "elapsed", "peer")
    table.add("case", "ours", "elapsed", "ms", 50)
    assert table.ratio(table.row("case", "ours")) is None
    assert "÷" not in table.markdown()


def test_a_case_is_named_once_and_what_is_missing_is_a_dash() -> None:
    table = Table("t", "T")
    table.add("case", "one", "elapsed", "ms", 1234.5)
    table.add("case", "two", "threads", "", 3)
    assert table.markdown().splitlines() == [
        "|  |  | elapsed, ms | threads |",
        "| --- | --- | ---: | ---: |",
        "| case | one | 1,234 | — |",
        "|  | two | — | 3 |",
    ]


def test_a_page_is_filled_between_its_markers_alone() -> None:
    page = "a\n<!-- benchmarks:x -->\nold\n<!-- /benchmarks:x -->\nb\n"
    once = filled(page, "x", "new")
    assert once == "a\n<!-- benchmarks:x -->\nnew\n<!-- /benchmarks:x -->\nb\n"
    assert filled(once, "x", "new") == once
    with pytest.raises(IncompleteError):
        filled(page, "y", "new")


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile([7.0], 0.99) == 7


def test_each_table_has_a_place_on_one_page() -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("performance.md", "capacity.md")]
    names = ("overhead", "ending", "idle", "rates", "transactions", "herd", "many", "takeover", "artifact")
    for name in (*names, "capacity", "carries"):
        assert sum(f"<!-- benchmarks:{name} -->" in page for page in pages) == 1, name
