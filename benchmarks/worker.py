"""A program in some environment that does as it is told, line by line; what it does lies in `inside/`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

INSIDE = Path(__file__).with_name("inside")


class Worker:
    """Started on entry and ended on exit. Each order is a line, and so is each answer."""

    def __init__(self, python: Path, script: str, *arguments: str) -> None:
        # A script has its own folder on its path, and not the checkout.
        self._process = subprocess.Popen(
            [str(python), str(INSIDE / f"{script}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.pid = self._process.pid

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
            raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended: {self._process.wait()}")
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
