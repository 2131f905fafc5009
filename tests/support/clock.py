"""A wall clock that is wrong, for a child process: libfaketime's library, loaded before all others."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from tests.support.need import need
from tests.support.programs import scratch

PLACES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)


@functools.cache
def library() -> Path | None:
    """libfaketime's library for programs with threads; None where it is not installed."""
    found = (path for place in PLACES for path in sorted(Path("/").glob(place.lstrip("/"))))
    return next(found, None)


def shifted(seconds: float) -> dict[str, str]:
    """What to add to a child's environment so that its wall clock, and that of its children, is ahead by so much.

    Negative: behind. The monotonic clocks stay as they are, as they do on a host whose time is wrong.
    """
    path = library()
    need(path is not None and sys.platform == "linux", "no libfaketime on this machine: apt install faketime")
    return {
        "LD_PRELOAD": str(path),
        "FAKETIME": f"{seconds:+.3f}",
        # Its name up to 0.9.7, and since.
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Times of files are compared with nothing here, and pyc files would be made anew at each start.
        "NO_FAKE_STAT": "1",
    }


class Settable:
    """A wall clock that can be set while its processes run; in a folder that the server's account can read."""

    def __init__(self) -> None:
        folder = scratch("clock-")
        folder.chmod(0o755)
        self._file = folder / "offset"
        self.set("+0")
        fixed = {name: value for name, value in shifted(0.0).items() if name != "FAKETIME"}
        self.environment = {**fixed, "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1"}

    def set(self, offset: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(offset)
        new.chmod(0o644)
        new.rename(self._file)
