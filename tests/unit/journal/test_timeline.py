"""The timeline: what is drawn where, and that a key is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from zoneinfo import ZoneInfo

import pytest

from dislock.journal import timeline as module
from dislock.journal.timeline import Span, missed_ticks, timeline
from dislock.protocol.questions import RunRow
from dislock.protocol.statements import EPOCH
from tests.unit.journal.rows import DAY, HOUR, MINUTE, NOW, SECOND, at, failed, run

DAY_SPAN = Span(NOW - DAY, NOW, ZoneInfo("UTC"))


class Page(HTMLParser):
    """The elements of a page, with their classes, styles and texts; a page that is not well nested fails."""

    VOID = ("meta",)

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data + " "

    def bars(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == "b" and "title" in attributes]

    def holes(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == "i" and "title" in attributes]


def page(*runs: RunRow, span: Span = DAY_SPAN) -> Page:
    return Page(timeline(sorted(runs, key=lambda each: (each.key, each.started)), span, late=300.0))


def place(attributes: dict[str, str | None]) -> tuple[float, float]:
    style = str(attributes["style"])
    return tuple(float(value) for value in re.findall(r"(?:left|width):([\d.]+)%", style))  # type: ignore[return-value]


def test_a_bar_lies_where_its_run_was() -> None:
    (bar,) = page(run(NOW - 12 * HOUR, 6 * HOUR)).bars()
    assert place(bar) == (50.0, 25.0)
    assert bar["class"] == "good"
    assert bar["title"] == "report: 01-19 21:00:00 on host7, success, 6h 00m"


def test_a_run_that_began_before_or_goes_on_ends_at_the_edge() -> None:
    before, running = page(run(NOW - 36 * HOUR, 18 * HOUR), run(NOW - 3 * HOUR, None, live=True)).bars()
    assert place(before) == (0.0, 25.0)
    assert place(running) == (87.5, 12.5)
    assert running["class"] == "open"
    # One that was over before is only there to tell which ticks were missed.
    assert page(run(NOW - 36 * HOUR)).bars() == []


def test_each_outcome_can_be_told_apart_without_colour() -> None:
    marks = [mark for _, mark, _ in module.LOOKS.values()]
    assert len(set(marks)) == len(marks)
    died = page(run(NOW - HOUR, None))
    assert [bar["class"] for bar in died.bars()] == ["bad"]
    assert "died on host7" in died.text


def test_ticks_that_nobody_ran_are_hollow_marks() -> None:
    hourly = {"schedule": "@hourly"}
    found = page(run(at("20 05:00"), **hourly), run(at("20 08:00"), **hourly))
    assert [hole["title"] for hole in found.holes()] == [
        "report: 01-20 06:00 did not run",
        "report: 01-20 07:00 did not run",
    ]
    assert "2 missed" in found.text
    # The coming one is not late yet.
    assert missed_ticks([run(at("20 08:00"), **hourly)], 0, NOW) == []
    assert missed_ticks([run(at("20 08:00"), **hourly)], 0, NOW + SECOND) == [NOW]
    assert len(missed_ticks([run(0, schedule="* * * * *")], 0, DAY)) == module.MOST_MISSED
    assert missed_ticks([run(0, schedule="nonsense")], 0, DAY) == []


def test_runs_that_overlap_have_rows_of_their_own() -> None:
    bars = page(*(run(NOW - HOUR + number * MINUTE, HOUR // 2) for number in range(6))).bars()
    assert [re.findall(r"--row:(\d)", str(bar["style"])) for bar in bars] == [["0"], ["1"], ["2"], ["3"], ["3"], ["3"]]


def test_a_lane_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LANE", 3)
    found = page(*(run(NOW - 5 * HOUR + number * HOUR, MINUTE, schedule="@hourly") for number in range(5)))
    assert len(found.bars()) == 3
    assert "only the newest 3 runs" in found.text
    assert found.holes() == []


@pytest.mark.parametrize("key", ["<script>alert(1)</script>", '"><b onload=x>', "a & b", "\u65e5\u672c"])
def test_a_key_is_text(key: str) -> None:
    found = page(failed(NOW - HOUR, key=key, owner=f"{key}:1"))
    assert key in found.text
    assert {tag for tag, _ in found.found} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "span", "p", "div", "b", "u", "i", "s", "h2", "ul"),
        *("li", "time"),
    }  # fmt: skip
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)


def test_nothing_is_loaded_or_carried_out() -> None:
    html = timeline([run(NOW - HOUR)], DAY_SPAN, late=300.0)
    assert "default-src 'none'" in html
    assert not re.search(r"https?:|url\(|@import|<script|src=|href=", html)


def test_an_empty_journal_is_a_page_that_says_so() -> None:
    found = page()
    assert "The journal has no run in this time." in found.text
    assert found.bars() == []


@pytest.mark.parametrize(
    ("days", "labels"),
    [
        (1, ["12:00", "15:00", "18:00", "21:00", "01-20", "03:00", "06:00"]),
        (7, ["01-14", "01-15"]),
        (30, ["12-23", "12-25"]),
    ],
)
def test_the_axis_is_in_the_zone(days: int, labels: list[str]) -> None:
    span = Span(NOW - days * DAY, NOW, ZoneInfo("Europe/Berlin"))
    html = timeline([run(NOW - HOUR)], span, late=300.0)
    shown = re.findall(r'<span class="m(?:aj|in)or" style="[^"]*">([^<]*)<', html)
    assert shown[: len(labels)] == labels


def test_a_day_of_25_hours_has_its_marks_where_they_belong() -> None:
    from datetime import datetime, timezone

    end = int((datetime(2026, 10, 25, 12, tzinfo=timezone.utc) - EPOCH).total_seconds()) * SECOND
    span = Span(end - DAY, end, ZoneInfo("Europe/Berlin"))
    html = timeline([run(end - HOUR)], span, late=300.0)
    (midnight,) = re.findall(r'left:([\d.]+)%">10-25<', html)
    assert float(midnight) == pytest.approx((22 - 12) / 24 * 100, abs=0.01)
    (three,) = re.findall(r'left:([\d.]+)%">03:00<', html)
    # The clocks went back at three: it is four hours after midnight.
    assert float(three) == pytest.approx((26 - 12) / 24 * 100, abs=0.01)
