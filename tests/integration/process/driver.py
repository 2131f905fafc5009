"""A wrapper without a database, run as a program: `driver.py OPTIONS COMMAND...`, OPTIONS being JSON.

mode: supervise (default), become, or library; stop: a FIFO, a line out of it stops the command (or "now");
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

from dislock.process.ending import die_of_interrupt
from dislock.process.outcomes import Interrupted, NotStarted, Stop
from dislock.process.runner import Run, become
from dislock.process.signals import Signals


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

    def subscribe(callback: Callable[[Stop], None]) -> None:
        if options.get("stop") == "now":
            callback(Stop(grace))
        elif "stop" in options:

            def watch() -> None:
                with Path(options["stop"]).open() as lines:
                    for _ in lines:
                        callback(Stop(grace))

            threading.Thread(target=watch, daemon=True).start()

    if options.get("mode") == "library":
        return Run(command, kill_grace=grace).to_its_end(subscribe=subscribe).code
    with Signals() as signals:
        if "early" in options:
            signals.on_ending(lambda: report(early=True))
            Path(options["early"]).touch()
            Path(options["hold"]).read_bytes()
        try:
            if options.get("mode") == "become":
                become(command, environment, signals)
            run = Run(command, signals=signals, kill_grace=grace)
            ended = run.to_its_end(environment, subscribe)
        except Interrupted as error:
            report(interrupted=error.number)
            return 128 + error.number
        except NotStarted as error:
            report(not_started=error.code, message=str(error))
            return error.code
        report(code=ended.code, stopped=ended.stopped, begun=run.begun)
        if ended.interrupted:
            die_of_interrupt()
        return 75 if ended.stopped else ended.code


if __name__ == "__main__":
    sys.exit(main())
