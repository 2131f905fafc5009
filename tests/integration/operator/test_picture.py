"""The timeline as a browser draws it: light and dark, narrow and wide, one key and twenty, a day and a month."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dislock.journal.timeline import Span, timeline
from dislock.protocol.questions import RunRow
from tests.unit.journal.rows import DAY, HOUR, MINUTE, NOW, failed, run

pytestmark = pytest.mark.integration

#: What is looked at: whether each bar lies within its lane, each label on the page, and no text is cut off.
PROBE = """
<pre id="seen"></pre>
<script>
const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const all = (s) => Array.from(document.querySelectorAll(s));
document.getElementById("seen").textContent = JSON.stringify({
  width: document.documentElement.clientWidth,
  wide: document.documentElement.scrollWidth,
  paper: getComputedStyle(document.body).backgroundColor,
  lanes: all(".lane:not(.axis)").map((lane) => ({
    track: box(lane.querySelector(".track")), key: box(lane.querySelector(".key")),
    cut: lane.querySelector(".key").scrollWidth > lane.querySelector(".key").clientWidth,
    marks: Array.from(lane.querySelectorAll("b, i")).map(box),
  })),
  labels: all(".axis span").filter((e) => e.offsetParent).map(box),
});
</script>
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    return found


def browse(chromium: str, page: Path, size: str, *options: str, dark: bool = False) -> str:
    profile = page.with_suffix(".profile")
    words = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={profile}", f"--window-size={size}"),
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        *(*options, page.as_uri()),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def jobs(keys: int, days: int) -> list[RunRow]:
    """Runs of every kind, those of a day or a month, with keys short and long."""
    found = []
    for number in range(keys):
        key = f"job-{number:02}" if number % 5 else f"a-key-that-is-quite-long-and-has-no-blank-{number:02}"
        pause = (6 if days == 1 else 24) * HOUR // (1 + number % 4)
        started = NOW - days * DAY + number * MINUTE
        while started < NOW:
            kinds = [run, failed] if started % 3 else [run]
            found += [kind(started, pause // 5, key=key, schedule=None) for kind in kinds]
            started += pause
        found.append(run(NOW - MINUTE, None, key=key, schedule=None, live=True))
        found.append(run(NOW - 2, None, key=key, schedule=None))
    return sorted(found, key=lambda each: (each.key, each.started))


def seen(chromium: str, page: Path, html: str, size: str, *, dark: bool) -> dict[str, Any]:
    # For this look alone the page may carry out the probe.
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    page.write_text(open_page.replace("</body>", PROBE + "</body>"))
    dom = browse(chromium, page, size, "--dump-dom", dark=dark)
    (text,) = re.findall(r'<pre id="seen">(\{.*?\})</pre>', dom)
    found: dict[str, Any] = json.loads(text)
    return found


def within(inner: Sequence[float], outer: Sequence[float]) -> bool:
    slack = 0.5
    return (
        inner[0] >= outer[0] - slack
        and inner[1] >= outer[1] - slack
        and inner[2] <= outer[2] + slack
        and inner[3] <= outer[3] + slack
    )


@pytest.mark.parametrize(
    ("keys", "days", "size", "dark"),
    [(1, 1, "1400,900", False), (20, 1, "1400,900", True), (20, 30, "500,900", False), (1, 30, "500,900", True)],
)
def test_the_picture(chromium: str, tmp_path: Path, keys: int, days: int, size: str, dark: bool) -> None:
    html = timeline(jobs(keys, days), Span(NOW - days * DAY, NOW, ZoneInfo("Europe/Berlin")), late=300.0)
    found = seen(chromium, tmp_path / "page.html", html, size, dark=dark)
    assert found["wide"] <= found["width"], "the page does not scroll sideways"
    assert found["paper"] == ("rgb(15, 18, 22)" if dark else "rgb(255, 255, 255)")
    assert len(found["lanes"]) == keys
    for lane in found["lanes"]:
        assert lane["marks"]
        assert [mark for mark in lane["marks"] if not within(mark, lane["track"])] == []
        assert not lane["cut"], "a key is cut off"
        assert lane["key"][0] >= 0
    assert len(found["labels"]) >= 4
    for left, right in zip(found["labels"], found["labels"][1:], strict=False):
        assert left[2] <= right[0], "two labels of the axis overlap"
    assert found["labels"][-1][2] <= found["width"]


def test_a_screenshot_of_the_page_as_it_is(chromium: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(timeline(jobs(20, 1), Span(NOW - DAY, NOW, ZoneInfo("UTC")), late=300.0))
    browse(chromium, page, "1000,800", f"--screenshot={tmp_path / 'page.png'}")
    data = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1000, 800)
    assert len(data) > 20_000, "an empty page is smaller"
