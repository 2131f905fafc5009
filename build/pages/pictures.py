"""The pictures of the documents, drawn from numbers, readable on a light and on a dark page."""

from __future__ import annotations

from html import escape

from ci.environments import ROOT
from ci.wings import PACKAGE, ROWS, House, wing
from dislock.protocol.lease import Terms

WIDTH = 760
_STYLE = """
  .paper { fill: #ffffff } .band { fill: #e8eef7 } .run { fill: #2f6fb3 }
  .bad { fill: #b3402f } .free { fill: #dfe3e8 } .none { fill: none }
  .line { stroke: #5f6b7a; stroke-width: 1.5 } .mark { stroke: #1c2530; stroke-width: 1.5 }
  .dash { stroke-dasharray: 4 4 } text { font: 13px system-ui, sans-serif; fill: #1c2530 }
  .small { font-size: 11.5px } .bold { font-weight: 600 } .on { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1a1f27 } .band { fill: #28374d } .run { fill: #5b9be0 }
    .bad { fill: #e07a68 } .free { fill: #39424e } .on { fill: #10151c }
    .line { stroke: #8d99a8 } .mark { stroke: #e4e9f0 } text { fill: #e4e9f0 }
  }
"""


class Picture:
    """A picture as a list of shapes; ``title`` and ``about`` are for readers who cannot see it."""

    def __init__(self, title: str, about: str, height: int) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-labelledby="title about">\n<title id="title">{escape(title)}</title>\n'
            f'<desc id="about">{escape(about)}</desc>\n<style>{_STYLE}</style>\n'
        )
        self._shapes = [f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>']

    def box(self, x: float, y: float, width: float, height: float, *what: str) -> None:
        """A rectangle: its class, and a label in its middle."""
        kind, label = (*what, "")[:2]
        self._shapes.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')
        if label:
            on = "on small" if kind in ("run", "bad") else "small"
            self.text(x + width / 2, y + height / 2 + 4, label, on, "middle")

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> None:
        self._shapes.append(f'<line class="{kind}" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        name = f' class="{kind}"' if kind else ""
        self._shapes.append(f'<text x="{x:g}" y="{y:g}"{name} text-anchor="{anchor}">{escape(text)}</text>')

    def skipped(self, x: float, y: float) -> None:
        """A start that ran nothing: a hollow circle."""
        self._shapes.append(f'<circle class="mark none" cx="{x:g}" cy="{y:g}" r="5"/>')

    def cross(self, x: float, y: float) -> None:
        self.line(x - 6, y - 6, x + 6, y + 6, "mark")
        self.line(x - 6, y + 6, x + 6, y - 6, "mark")

    def drawn(self) -> str:
        return self._head + "\n".join(self._shapes) + "\n</svg>\n"


def all_of_them() -> dict[str, str]:
    return {"modes": modes(), "loss": loss(), "takeover": takeover(), "wings": the_wings()}


HOSTS = ("host A", "host B", "host C")
LEFT, LANE = 80, 30


def _lanes(picture: Picture, top: float, right: float) -> list[float]:
    """Draws a lane for each host. Returns the middle of each."""
    middles = [top + LANE * (number + 0.5) for number in range(len(HOSTS))]
    for name, middle in zip(HOSTS, middles, strict=True):
        picture.text(14, middle + 4, name)
        picture.line(LEFT, middle, right, middle)
    return middles


def modes() -> str:
    """Three hosts and two ticks, under ``schedule`` and under ``lease``."""
    picture = Picture(
        "The two modes",
        "Under schedule one of three hosts starts the job at each tick. Under lease a run that lasts beyond the second "
        "tick keeps the other hosts from running until it ends.",
        340,
    )
    right = WIDTH - 20.0
    ticks = {"03:00": 120.0, "04:00": 440.0}

    def at_ticks(top: float) -> None:
        for label, x in ticks.items():
            picture.line(x, top - 4, x, top + 3 * LANE + 4, "mark dash")
            picture.text(x, top - 10, label, "small", "middle")

    picture.text(14, 24, "schedule: one start per tick", "bold")
    top = 62.0
    for begin, end, label in ((ticks["03:00"], ticks["04:00"], "03:00"), (ticks["04:00"], right, "04:00")):
        picture.box(begin, top, end - begin - 2, 3 * LANE, "band")
        picture.text(end - 10, top + 3 * LANE + 15, f"slot of {label}: taken", "small", "end")
    lanes = _lanes(picture, top, right)
    at_ticks(top)
    for x, runner, length in ((ticks["03:00"], 0, 110), (ticks["04:00"], 1, 90)):
        for number, y in enumerate(lanes):
            if number == runner:
                picture.box(x, y - 10, length, 20, "run", "job runs")
            else:
                picture.skipped(x + 8, y)

    picture.text(14, 198, "lease: one run at a time", "bold")
    top = 236.0
    lanes = _lanes(picture, top, right)
    at_ticks(top)
    long, later = 370.0, 590.0
    picture.box(ticks["03:00"], lanes[0] - 10, long, 20, "run", "job runs, and renews its lease")
    for y in lanes[1:]:
        picture.skipped(ticks["03:00"] + 8, y)
        picture.skipped(ticks["04:00"] + 8, y)
    picture.box(later, lanes[2] - 10, 90, 20, "run", "next run")
    picture.text(ticks["03:00"] + long + 8, lanes[0] - 2, "free at its end", "small")
    picture.skipped(WIDTH - 232, 20)
    picture.text(WIDTH - 220, 24, "somebody else holds it: exit code 0", "small")
    return picture.drawn()


#: The defaults of the settings.
TERMS = Terms(key="", owner="", ttl=60.0, interval=10.0, grace=10.0)


def loss() -> str:
    """A database that stops answering, second by second, with the default settings."""
    end, stop = TERMS.ttl, TERMS.stop_after
    kill = stop + TERMS.stop_grace
    picture = Picture(
        "The loss of a lease",
        f"Renewals fail after second 0. The command gets SIGTERM at {stop:g} s and SIGKILL at {kill:g} s, before the "
        f"row expires at {end:g} s.",
        244,
    )
    begin, scale = 84.0, 8.0

    def x(second: float) -> float:
        return begin + (second + 10) * scale

    title = f"The database stops answering: TTL {end:g} s, grace period {TERMS.stop_grace:g} s"
    picture.text(14, 24, title, "bold")
    picture.text(14, 63, "row")
    picture.box(x(-10), 48, x(end) - x(-10), 22, "band", "held by this host, by the database's clock")
    picture.box(x(end), 48, 90, 22, "free", "free")
    picture.text(14, 105, "command")
    picture.box(x(-10) + 10, 90, x(stop) - x(-10) - 10, 22, "run", "command runs")
    picture.box(x(stop), 90, x(kill) - x(stop), 22, "bad", "stopping")
    second = 0.0
    axis = 160.0
    picture.line(x(-10), axis, x(end) + 90, axis)
    while second < stop:
        picture.line(x(second), axis - 8, x(second), axis + 8, "mark")
        if second:
            picture.cross(x(second), axis)
        picture.text(x(second), axis + 24, f"{second:g} s", "small", "middle")
        second += TERMS.pause
    picture.text(x(0), axis - 14, "last confirmed renewal", "small", "middle")
    picture.text(x(25), axis - 14, "renewals fail, and are tried again", "small", "middle")
    for moment, label, y, anchor in (
        (stop, f"{stop:g} s: SIGTERM, exit code will be 75", 212.0, "end"),
        (kill, f"{kill:g} s: SIGKILL for what is left", 228.0, "end"),
        (end, f"{end:g} s: row expires", 228.0, "start"),
    ):
        picture.line(x(moment), 48, x(moment), y - 12, "mark dash")
        picture.text(x(moment) + (-4 if anchor == "end" else 4), y, label, "small", anchor)
    return picture.drawn()


def takeover() -> str:
    """A tick that is consumed by success: the first host dies, the second runs it, the third finds it sealed."""
    died, ended, sealed = 40.0, 90.0, 130.0
    picture = Picture(
        "Takeover by a waiting host",
        f"Host A dies {died:g} s after the tick. Its lease expires at {ended:g} s. Host B, which waited, runs the job "
        f"and seals the tick at {sealed:g} s. Host C then ends with exit code 0.",
        262,
    )
    begin, scale = 100.0, 4.3

    def x(second: float) -> float:
        return begin + second * scale

    picture.text(14, 24, "--strategy=schedule,lease --slot-consumed-by=success --wait=600", "bold")
    top = 56.0
    lanes = _lanes(picture, top, WIDTH - 20)
    picture.box(x(0), lanes[0] - 10, x(died) - x(0), 20, "run", "job runs")
    picture.cross(x(died), lanes[0])
    picture.box(x(0), lanes[1] - 10, x(ended) - x(0), 20, "free")
    picture.text(x(20), lanes[1] + 4, "waits", "small", "middle")
    picture.box(x(ended), lanes[1] - 10, x(sealed) - x(ended), 20, "run", "job runs")
    picture.box(x(0), lanes[2] - 10, x(sealed) - x(0), 20, "free")
    picture.text(x(20), lanes[2] + 4, "waits", "small", "middle")
    picture.skipped(x(sealed) + 8, lanes[2])
    rows = top + 3 * LANE + 12
    picture.text(14, rows + 15, "lease row", "small")
    picture.text(14, rows + 41, "slot row", "small")
    for begin_at, end_at, y, kind, label in (
        (0.0, ended, rows, "band", "A"),
        (ended, sealed, rows, "band", "B"),
        (sealed, 150.0, rows, "free", "free"),
        (0.0, sealed, rows + 26, "free", "open"),
        (sealed, 150.0, rows + 26, "band", "sealed by B"),
    ):
        picture.box(x(begin_at), y, x(end_at) - x(begin_at), 20, kind, label)
    for second, label in ((0.0, "tick"), (died, "host A dies"), (ended, "lease expires"), (sealed, "exit 0: sealed")):
        picture.line(x(second), top - 6, x(second), rows + 52, "mark dash")
        picture.text(x(second), rows + 68, label, "small", "middle")
        picture.text(x(second), rows + 84, f"{second:g} s", "small", "middle")
    return picture.drawn()


def the_wings() -> str:
    """The rows of the package: a module imports only from lower rows."""
    titles = {"__init__": "dislock", "__main__": "python -m dislock", "_version": "_version"}
    present = {wing(module) for module in House(ROOT / PACKAGE).trees}
    rows = [[name for name in names if name in present] for names in ROWS]
    rows = [names for names in rows if names]
    row = 38
    picture = Picture(
        "The wings of dislock",
        "A module imports from lower rows, never from higher ones.",
        60 + row * len(rows),
    )
    picture.text(14, 24, "A module imports from lower rows, and from its own wing", "bold")
    left = 60.0
    for number, names in enumerate(rows):
        y = 44.0 + number * row
        width = (WIDTH - left - 20 - 10 * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            kind = "run" if name in ("cli", "drivers", "protocol", "process", "journal") else "band"
            picture.box(left + place * (width + 10), y, width, row - 10, kind, titles.get(name, name))
    bottom = 34.0 + row * len(rows)
    picture.line(30, 44, 30, bottom, "mark")
    picture.line(24, bottom - 9, 30, bottom, "mark")
    picture.line(36, bottom - 9, 30, bottom, "mark")
    return picture.drawn()
