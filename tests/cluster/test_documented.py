"""The page for operators shows the settings that the failovers are tried with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.routes import HAPROXY, PGBOUNCER

PAGE = Path(__file__).parents[2] / "docs" / "high-availability.md"
LINES = [
    *(line for line in HAPROXY.splitlines() if line and "bind" not in line),
    *(f"{name} = {value}" for name, value in PGBOUNCER.items() if name != "default_pool_size"),
]


@pytest.mark.parametrize("line", LINES)
def test_the_page_has_each_setting(line: str) -> None:
    assert f"\n{line}\n" in PAGE.read_text()


def test_the_page_shows_the_trigger_of_the_example() -> None:
    setup = PAGE.parents[1] / "examples" / "fencing" / "setup.sql"
    assert setup.read_text().partition("-- Refuses a row")[2].rstrip() in PAGE.read_text()
