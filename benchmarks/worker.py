"""A program in some environment that carries out orders, line by line; what it can do lies in `inside/`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

INSIDE = Path(__file__).with_name("inside")


class Worker:
    """Started on entry and ended on exit. Each order is a line, and so is each answer."""

    def __init__(self, python: Path, script: str, *arguments: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed on exit
        # A script has its own folder on its path, and not the checkout.
        self._process = subprocess.Popen(
            [str(python), str(INSIDE / f"{script}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A peer is a black box, in its tracebacks too: what went wrong is their last line.
            stderr=self._errors,
            text=True,
            cwd="/",
        )
        self.pid = self._process.pid
        self._what = " ".join([str(python), script, *arguments])

    def ask(self, order: str = "") -> Any:
        self.tell(order)
        return self.hear()

    def tell(self, order: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2]
            raise RuntimeError(f"{self._what} ended: {code}, {last}")
        return json.loads(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if error is not None:
            self._process.kill()
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()
        self._errors.close()
