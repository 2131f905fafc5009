"""A command that writes down the signals that it gets: `witness.py FOLDER [SIGNAL_THAT_ENDS_IT...]`.

It has a child that does the same. FOLDER/leader and FOLDER/member get a word for each signal, after "ready PID".
A signal that came by the terminal's hand is written as such: "SIGINT@kernel".
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

WATCHED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
}


def main() -> None:
    folder, enders = Path(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    role = "leader" if os.fork() else "member"
    with (folder / role).open("a") as note:
        print("ready", os.getpid(), file=note, flush=True)
        while True:
            info = signal.sigwaitinfo(WATCHED)
            name = signal.Signals(info.si_signo).name
            print(name + ("@kernel" if info.si_code == 0x80 else ""), file=note, flush=True)
            if name in enders:
                os._exit(40)


if __name__ == "__main__":
    main()
