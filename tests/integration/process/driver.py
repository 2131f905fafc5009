"""A wrapper without a database, run as a program: `driver.py OPTIONS COMMAND...`, OPTIONS being JSON.

mode: supervise (default), become, or library; lose: a FIFO, a lease is lost when a line comes out of it (or "now");
grace; report: a file that is told what happened; early: a file made once signals are received, then `hold` is read to
its end before the command starts; environment: pairs of hex-coded names and values, in place of the own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dislock.errors import Loss, LossReason
from dislock.process.runner import Beginning, Interrupted, NotStarted, Signals, become, supervise
from dislock.process.signals import die_of_interrupt


def original_environment() -> dict[bytes, bytes]:
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(pair.split(b"=", 1) for pair in pairs if pair)


def main() -> int:
    options: dict[str, Any] = json.loads(sys.argv[1])
    command = sys.argv[2:]
    grace = options.get("grace", 20.0)
    environment = original_environment()
    if "environment" in options:
        environment = {bytes.fromhex(k): bytes.fromhex(v) for k, v in options["environment"]}

    def report(**what: Any) -> None:
        if "report" in options:
            draft = Path(options["report"] + ".draft")
            draft.write_text(json.dumps({"pid": os.getpid(), **what}))
            draft.replace(options["report"])

    def subscribe(callback: Callable[[Loss], None]) -> None:
        loss = Loss(LossReason.TAKEN, "taken", grace)
        if options.get("lose") == "now":
            callback(loss)
        elif "lose" in options:

            def watch() -> None:
                with Path(options["lose"]).open() as lines:
                    for _ in lines:
                        callback(loss)

            threading.Thread(target=watch, daemon=True).start()

    if options.get("mode") == "library":
        ended = supervise(command, environment=None, signals=None, subscribe=subscribe, kill_grace=grace)
        return ended.code
    with Signals() as signals:
        if "early" in options:
            signals.on_early(lambda: report(early=signals.received))
            Path(options["early"]).touch()
            Path(options["hold"]).read_bytes()
        try:
            if options.get("mode") == "become":
                become(command, environment, signals)
            beginning = Beginning()
            ended = supervise(
                command,
                environment=environment,
                signals=signals,
                subscribe=subscribe,
                kill_grace=grace,
                beginning=beginning,
            )
        except Interrupted as error:
            report(interrupted=error.number)
            return 128 + error.number
        except NotStarted as error:
            report(not_started=error.code, message=error.message)
            return error.code
        report(code=ended.code, lost=ended.lost, begun=beginning.happened)
        if ended.interrupted:
            die_of_interrupt()
        return 75 if ended.lost else ended.code


if __name__ == "__main__":
    sys.exit(main())
