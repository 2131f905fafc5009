"""What a command of the operator makes of an error that nobody foresaw."""

from __future__ import annotations

import pytest

from dislock.cli import operate
from dislock.cli.asked import Operation


def test_a_monitor_reads_unknown_whatever_goes_wrong(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(_asked: Operation) -> int:
        raise RuntimeError("hush")

    monkeypatch.setattr(operate, "_overdue", fails)
    asked = Operation("--overdue", None, {}, "postgresql://h/d", "URL", ["t"], ["j"], None, 1.0)
    assert operate.operate(asked) == 3
    assert capfd.readouterr().out == "DISLOCK UNKNOWN - unexpected RuntimeError\n"
