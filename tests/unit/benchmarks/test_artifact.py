"""What the plain build of the comparison is made of."""

from __future__ import annotations

from benchmarks.artifact import LOCKS


def test_the_locks_of_the_plain_build_are_there() -> None:
    assert [path.name for path in LOCKS if path.is_file()] == ["packages.lock", "natives.lock"]
