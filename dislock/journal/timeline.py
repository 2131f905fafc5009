"""The journal as a picture: one HTML page, a lane for each key, without a script or another file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from html import escape
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from dislock.errors import ConfigurationError
from dislock.journal.rows import BAD, DIED, LOST, NOT_STARTED, RUNNING, SUCCESS, UNKNOWN, duration, ended, host, state
from dislock.journal.style import STYLE
from dislock.protocol.questions import RunRow
from dislock.protocol.schedule import Schedule
from dislock.protocol.statements import EPOCH, to_micros

#: At most so many runs of one key are drawn, the newest; at most so many of its ticks are marked as missed.
LONGEST_LANE = 2000
MOST_MISSED = 500
#: At most so many rows of a lane show runs that overlap.
MOST_ROWS = 4
#: Characters of a key beside its lane; a longer key is broken into lines.
MOST_LABEL = 30
#: Beyond this percentage a label of the axis would not fit on the page.
EDGE = 97.0

#: The class of a bar, the mark that distinguishes it without colour, and the words of the legend.
LOOKS = {
    SUCCESS: ("good", "", "success"),
    "failure": ("bad", "\u00d7", "failure"),
    LOST: ("bad", "L", "lease lost"),
    DIED: ("bad", "\u2020", "died"),
    NOT_STARTED: ("bad", "!", "not started"),
    RUNNING: ("open", "\u2026", "running"),
    UNKNOWN: ("open", "?", "no end recorded"),
}


class Span(NamedTuple):
    """The time that a page shows, in microseconds since 1970, and its zone."""

    since: int
    now: int
    zone: ZoneInfo

    def at(self, micros: int) -> float:
        """The place of a moment, in percent of the span."""
        return min(100.0, max(0.0, (micros - self.since) * 100 / max(1, self.now - self.since)))

    def local(self, micros: int) -> datetime:
        return (EPOCH + timedelta(microseconds=micros)).astimezone(self.zone)


def timeline(runs: Sequence[RunRow], span: Span, *, late: float) -> str:
    """The whole page. ``runs``: ordered by key and start, including the last run of each key before the span."""
    lanes: dict[str, list[RunRow]] = {}
    for run in runs:
        lanes.setdefault(run.key, []).append(run)
    drawn = [_Lane(key, found, span, late) for key, found in lanes.items()]
    drawn = [lane for lane in drawn if lane.runs or lane.missed]
    begin, end = span.local(span.since), span.local(span.now)
    times = [f"{moment:%Y-%m-%d %H:%M}" for moment in (begin, end)]
    title = "Runs from {} to {}".format(*times)
    heading = "Runs from <span>{}</span> to <span>{}</span>".format(*times)
    body = _chart(drawn, span) if drawn else '<p class="empty">The journal has no run in this time.</p>'
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            # Nothing on this page is executed or loaded, whatever a key contains.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
            f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
            f"<h1>{heading}</h1>\n<p>{escape(_counts(drawn))} Times are in {escape(span.zone.key)}.</p>\n",
            body,
            "</body>\n</html>\n",
        )
    )


def missed_ticks(runs: Sequence[RunRow], since: int, until: int) -> list[int]:
    """The ticks between the runs of one key, and after the last run, that nobody ran; at most ``MOST_MISSED``."""
    by_tick = {run.tick: run for run in runs if run.tick is not None and run.schedule is not None}
    ends = sorted(by_tick)
    found: list[int] = []
    for tick, following in pairwise([*ends, until]):
        run = by_tick[tick]
        try:
            schedule = Schedule(run.schedule or "", run.time_zone)
        except ConfigurationError:
            continue
        for between in _ticks(schedule, max(tick, since - 1), following):
            found.append(between)
            if len(found) == MOST_MISSED:
                return found
    return found


def _ticks(schedule: Schedule, after: int, before: int) -> Iterator[int]:
    moment: datetime | None = EPOCH + timedelta(microseconds=after)
    while moment is not None and (moment := schedule.next_tick(moment)) is not None:
        if (tick := to_micros(moment)) >= before:
            return
        yield tick


class _Lane:
    def __init__(self, key: str, runs: Sequence[RunRow], span: Span, late: float) -> None:
        self.key = key
        self.cut = len(runs) > LONGEST_LANE + 1
        if self.cut:
            # What lies between the run before the span and the oldest drawn run is not known.
            runs = runs[-LONGEST_LANE:]
        self.missed = missed_ticks(runs, span.since, span.now - round(late * 1_000_000))
        self.runs = [run for run in runs if self._end(run, span) >= span.since]
        self.rows = self._stack(span)
        self.height = max((row for row, _ in self.rows), default=0) + 1

    @staticmethod
    def _end(run: RunRow, span: Span) -> int:
        if run.ended is not None:
            return run.ended
        # A running one reaches the right edge. How long another run without an end took is not known.
        return span.now if state(run) == RUNNING else run.started

    def _stack(self, span: Span) -> list[tuple[int, RunRow]]:
        """Each run with its row. In its row it overlaps no earlier run, unless there are too few rows."""
        free = [0] * MOST_ROWS
        found = []
        for run in self.runs:
            row = next((row for row, end in enumerate(free) if end <= run.started), MOST_ROWS - 1)
            free[row] = self._end(run, span)
            found.append((row, run))
        return found

    def draw(self, span: Span, lines: str) -> str:
        bars = "".join(self._bar(row, run, span) for row, run in self.rows)
        holes = "".join(
            f'<i class="missed" style="left:{span.at(tick):.3f}%" title="{escape(self.key)}: '
            f'{span.local(tick):%m-%d %H:%M} did not run"></i>'
            for tick in self.missed
        )
        cut = f" <small>(only the newest {LONGEST_LANE} runs)</small>" if self.cut else ""
        return (
            f'<div class="lane"><div class="key">{escape(self.key)}{cut}</div>'
            f'<div class="track" style="--rows:{self.height}"><div>{lines}{bars}{holes}</div></div></div>\n'
        )

    def _bar(self, row: int, run: RunRow, span: Span) -> str:
        left = span.at(run.started)
        width = span.at(self._end(run, span)) - left
        look, mark, _ = LOOKS.get(state(run), LOOKS[UNKNOWN])
        seconds = (self._end(run, span) - run.started) / 1_000_000
        text = (
            f"{run.key}: {span.local(run.started):%m-%d %H:%M:%S} on {host(run.owner)}, {ended(run)}, "
            f"{duration(seconds)}"
        )
        return (
            f'<b class="{look}" style="left:{left:.3f}%;width:{width:.3f}%;--row:{row}" title="{escape(text)}">'
            f"{_mark(mark)}</b>"
        )

    def trouble(self) -> Iterator[tuple[int, str]]:
        for run in self.runs:
            if state(run) in BAD:
                yield run.started, f"{run.key}: {ended(run)} on {host(run.owner)}"
        for tick in self.missed:
            yield tick, f"{self.key}: did not run"


def _mark(mark: str) -> str:
    return f"<u>{mark}</u>" if mark else ""


def _counts(lanes: Sequence[_Lane]) -> str:
    runs = sum(len(lane.runs) for lane in lanes)
    bad = sum(1 for lane in lanes for run in lane.runs if state(run) in BAD)
    missed = sum(len(lane.missed) for lane in lanes)
    return f"{_plural(len(lanes), 'job')}, {_plural(runs, 'run')}, {bad} not successful, {missed} missed."


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _chart(lanes: Sequence[_Lane], span: Span) -> str:
    marks = list(_axis(span))
    lines = "".join(f'<s style="left:{at:.3f}%"></s>' for at, _, _ in marks)
    labels = "".join(
        f'<span class="{"major" if major else "minor"}" style="left:{at:.3f}%">{label}</span>'
        for at, label, major in marks
        if at <= EDGE
    )
    axis = f'<div class="lane axis"><div class="key"></div><div class="track"><div>{labels}</div></div></div>\n'
    label = min(MOST_LABEL, max(len(lane.key) for lane in lanes) + 1)
    drawn = "".join(lane.draw(span, lines) for lane in lanes)
    return f'{_legend()}<div class="chart" style="--label:{label}ch">\n{axis}{drawn}</div>\n{_troubles(lanes, span)}'


def _legend() -> str:
    shown = "".join(
        f'<span><b class="{look}">{f"<u>{mark}</u>" if mark else ""}</b>{words}</span>'
        for look, mark, words in LOOKS.values()
    )
    return f'<p class="legend">{shown}<span><i class="missed"></i>did not run</span></p>\n'


def _troubles(lanes: Sequence[_Lane], span: Span) -> str:
    """The same in words, the newest first, for readers who cannot see the bars."""
    found = sorted((each for lane in lanes for each in lane.trouble()), reverse=True)
    if not found:
        return "<p>Every run ended well, and no tick was missed.</p>\n"
    items = "".join(
        f"<li><time>{span.local(at):%m-%d %H:%M}</time> {escape(text)}</li>\n" for at, text in found[:MOST_MISSED]
    )
    more = f"<p>And {len(found) - MOST_MISSED} more.</p>\n" if len(found) > MOST_MISSED else ""
    return f"<h2>What did not go well</h2>\n<ul>\n{items}</ul>\n{more}"


def _axis(span: Span) -> Iterator[tuple[float, str, bool]]:
    """The marks of the axis: where, with which label, and whether it stays on a narrow page."""
    seconds = (span.now - span.since) / 1_000_000
    begin = span.local(span.since).replace(minute=0, second=0, microsecond=0)
    hours = next((step for step in (1, 3, 6) if seconds <= step * 12 * 3600), 24)
    days = 1 if hours < 24 else max(1, round(seconds / 86400 / 14))
    midnight = begin.replace(hour=0)
    step = 0
    while True:
        # By the wall clock, because a day has 23 to 25 hours.
        wall = midnight + (timedelta(hours=hours * step) if hours < 24 else timedelta(days=days * step))
        at = to_micros(wall.replace(fold=0).astimezone(timezone.utc))
        if at > span.now:
            return
        if at >= span.since:
            new_day = wall.hour == 0
            label = f"{wall:%m-%d}" if new_day else f"{wall:%H:%M}"
            yield span.at(at), label, step % 2 == 0
        step += 1
