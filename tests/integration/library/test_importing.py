"""What importing the package costs, and where it works."""

from __future__ import annotations

import subprocess
import sys

# Importing

#: What Python lacks on Windows, of what this package uses.
POSIX_ONLY = """
import os, signal, time
import psycopg
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGKILL", "SIGCONT", "SIGCHLD", "SIG_BLOCK",
             "SIG_SETMASK", "SIG_UNBLOCK", "pthread_sigmask", "pthread_kill", "sigwait", "sigwaitinfo", "sigpending"):
    vars(signal).pop(name, None)
for name in ("environb", "fork", "killpg", "setpgid", "getsid", "getpgrp", "tcgetpgrp", "waitid", "uname", "O_NOCTTY"):
    vars(os).pop(name, None)
for name in ("clock_gettime", "CLOCK_BOOTTIME"):
    vars(time).pop(name, None)
import dislock, dislock.aio
assert all(getattr(dislock, name) for name in dislock.__all__)
"""


def test_the_library_imports_anywhere() -> None:
    done = subprocess.run([sys.executable, "-c", POSIX_ONLY], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


LOCKING = """
try:
    with dislock.LeaseLock(dislock.LockContext(
        url="postgresql://127.0.0.1:1/d", table_parts=["t"], lock_key="k", owner="o",
        run_ttl_seconds=5, lease_interval_seconds=1, connect_timeout_seconds=0.5)):
        raise SystemExit("entered")
except dislock.DatabaseUnavailableError as error:
    assert "refused" in str(error), error
"""


def test_the_locks_need_no_signals() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POSIX_ONLY + LOCKING], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_opens_nothing_and_logs_nothing() -> None:
    text = (
        "import logging, os, sys, threading; before = set(os.listdir('/dev/fd')); import dislock, dislock.aio;"
        " [getattr(dislock, name) for name in dislock.__all__];"
        " assert set(os.listdir('/dev/fd')) == before; assert threading.active_count() == 1;"
        " assert not logging.getLogger('dislock').handlers and not logging.getLogger().handlers;"
        " assert 'sqlalchemy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_memory_of_dislock_testing_is_loaded_on_demand() -> None:
    text = (
        "import sys, dislock, dislock.aio, dislock.cli.run, dislock.command, dislock.locks\n"
        "found = [name for name in sys.modules if name.startswith(('dislock.testing', 'dislock.drivers.memory'))]\n"
        "assert not found, found\n"
        "assert 'pytest' not in sys.modules\n"
        "import dislock.testing\n"
        "assert 'pytest' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
