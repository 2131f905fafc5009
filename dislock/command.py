"""A command under locks: the library's ``run_with_locks`` and what it shares with the command line."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dislock.context import LockContext, Strategy
from dislock.drivers.clock import clock
from dislock.errors import LEASE_LOST_EXIT_CODE
from dislock.events import INFO, Event, report
from dislock.holding import Holding
from dislock.process.ending import die_of_interrupt
from dislock.process.environment import current_environment
from dislock.process.outcomes import NeverBegan, NotStarted, Stop
from dislock.process.runner import Run

if TYPE_CHECKING:
    from dislock.process.signals import Signals

logger = logging.getLogger("dislock")

#: Names that describe our locks alone. Those of an outer dislock are not passed on.
_OURS = (b"DISLOCK_LOCK_KEY", b"DISLOCK_OWNER", b"DISLOCK_SLOT", b"DISLOCK_FENCING_TOKEN")


def run_with_locks(command: Sequence[str], context: LockContext, strategies: Iterable[Strategy]) -> int:
    """Runs a command under the locks of the strategies and returns its exit code.

    The exit code is 128+N if signal N killed the command. It is 127 if the command was not found and 126 if it cannot
    be executed; the slot is then given back. It is 75 if the lease was lost under ``LeaseLossPolicy.TERMINATE``: the
    command got SIGTERM, and SIGKILL before the row expired. It is also 75 if a success could not be sealed.

    Raises ``LockNotAcquiredError`` if somebody else holds a lock, and what else ``acquire_locks`` raises. Installs no
    signal handler. An exception while it waits (KeyboardInterrupt) stops the command (SIGTERM, ``kill_grace_seconds``,
    SIGKILL), frees the locks and is raised again. If it comes before the command has begun, the command does not run
    and the slot is given back.
    """
    run = Run(command, kill_grace=context.kill_grace_seconds)
    holding = Holding(context, strategies, supervised=True, recorded=described(command, context))
    environment = current_environment()
    held = False
    try:
        held = holding.acquire()
        return _supervise(run, holding, environment)[0]
    except BaseException:
        if held:
            # The exception may have come before the release below. A second release changes nothing.
            holding.release(started=run.begun)
        raise


def run_held(holding: Holding, command: Sequence[str], environment: Mapping[bytes, bytes], signals: Signals) -> int:
    """Runs the command of a command line under locks that are held, frees them, and returns the exit code.

    If Ctrl-C killed the command, this process dies by SIGINT too.
    """
    run = Run(command, signals=signals, kill_grace=holding.request.context.kill_grace_seconds)
    code, interrupted = _supervise(run, holding, environment)
    if interrupted:
        die_of_interrupt()
    return code


def described(command: Sequence[str], context: LockContext) -> str | None:
    """The command as the journal records it: its program's base name and a digest of all words. None: no journal."""
    if context.journal_parts is None:
        return None
    from hashlib import sha256

    words = [os.fsencode(word) for word in command]
    name = os.path.basename(words[0]).decode("utf-8", "replace")  # noqa: PTH119 - bytes
    digest = sha256(b"\0".join(words)).hexdigest()[:12]
    return f"{name} {digest}"


def exit_code(reason: NeverBegan) -> int:
    """The exit code for a command that never began. The log says why, unless a signal asked for it."""
    if isinstance(reason, NotStarted):
        logger.error("%s", reason)
    return reason.code


def command_environment(holding: Holding, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """``environment`` with the variables that describe the command's locks, and without those of an outer run.

    That is ``DISLOCK_LOCK_KEY``, ``DISLOCK_OWNER``, ``DISLOCK_FENCING_TOKEN`` (not with the strategy advisory), and,
    with the strategy schedule, ``DISLOCK_SLOT``: the nominal time of its tick (or the slot's end where only that is
    known), in UTC.
    """
    context, slot = holding.request.context, holding.slot
    described = {
        "DISLOCK_LOCK_KEY": context.lock_key,
        "DISLOCK_OWNER": context.owner,
    }
    if holding.fencing_token is not None:
        described["DISLOCK_FENCING_TOKEN"] = str(holding.fencing_token)
    if slot:
        described["DISLOCK_SLOT"] = (slot.tick or slot.expires).strftime("%Y-%m-%dT%H:%M:%SZ")
    # UTF-8 whatever the locale: a key must look the same to a command on every host.
    others = {name: value for name, value in environment.items() if name not in _OURS}
    return others | {name.encode(): value.encode() for name, value in described.items()}


def _supervise(run: Run, holding: Holding, environment: Mapping[bytes, bytes]) -> tuple[int, bool]:
    """Runs the command and frees the locks. Returns the exit code, and whether Ctrl-C killed the command.

    The slot stays taken only if the command has begun.
    """
    code, interrupted = -1, False
    begun = clock()

    def stop_on_loss(stop: Callable[[Stop], None]) -> None:
        holding.on_loss(lambda loss: stop(Stop(loss.grace)))

    try:
        ended = run.to_its_end(
            command_environment(holding, environment), None if holding.request.continues else stop_on_loss
        )
        code, interrupted = ended.code, ended.interrupted
        took = round(clock() - begun, 3)
        fields = {"key": holding.request.context.lock_key, "exit_code": code, "took_seconds": took}
        report(Event("command ended", INFO, f"the command ended with exit code {code} after {took:.1f} s", fields))
    except NeverBegan as reason:
        code = exit_code(reason)
    finally:
        known = code if code >= 0 else None
        holding.release(started=run.begun, succeeded=code == 0, exit_code=known)
    if holding.acquisition.void:
        return LEASE_LOST_EXIT_CODE, False
    return code, interrupted
