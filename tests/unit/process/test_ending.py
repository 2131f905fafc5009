"""The end of the process itself: its code is the one given, and what was written is not lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from dislock.process.ending import leave
print("said")
print("complained", file=sys.stderr)
leave(7)
"""


def end(redirection: str) -> tuple[int, bytes, bytes]:
    script = f'exec "$0" -I -c "$1" {redirection}'
    done = subprocess.run(["/bin/sh", "-c", script, sys.executable, CODE], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_output_is_written_before_the_end() -> None:
    assert end("") == (7, b"said\n", b"complained\n")


@pytest.mark.parametrize(
    ("redirection", "complaint"), [(">/dev/full", b"complained\n"), (">&-", b"complained\n"), (">&- 2>&-", b"")]
)
def test_output_that_cannot_be_written_changes_nothing(redirection: str, complaint: bytes) -> None:
    assert end(redirection) == (7, b"", complaint)
