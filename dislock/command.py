"""A command under locks: the library's ``run_with_locks`` and what it shares with the command line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dislock.context import LockContext
from dislock.errors import LEASE_LOST_EXIT_CODE
from dislock.holding import Holding
from dislock.process.environment import current_environment
from dislock.process.runner import Beginning, Interrupted, NotStarted, supervise
from dislock.process.signals import die_of_interrupt

if TYPE_CHECKING:
    from dislock.process.runner import Signals

logger = logging.getLogger("dislock")

#: Names that describe our locks alone: what an outer dislock said of its own is not passed on as ours.
_OURS = (b"DISLOCK_LOCK_KEY", b"DISLOCK_OWNER", b"DISLOCK_SLOT", b"DISLOCK_FENCING_TOKEN")


def run_with_locks(command: Sequence[str], context: LockContext, strategies: Iterable[str]) -> int:
    """Runs a command under the locks of the strategies and returns its exit code.

    128+N for a death by signal N, 127 for a command that was not found and 126 for one that cannot be executed (the
    slot is then given back), 75 when the lease was lost under ``LeaseLossPolicy.TERMINATE``: the command was sent
    SIGTERM, and SIGKILL before the row ended. Raises ``LockNotAcquiredError`` when a lock is held by another, and what
    ``acquire_locks`` raises. No signal handler is installed; an exception while waiting (KeyboardInterrupt) ends the
    command (SIGTERM, ``kill_grace_seconds``, SIGKILL), frees the locks and is raised again. If it came before the
    command had begun, the command never runs and the slot is given back.
    """
    if isinstance(command, (str, bytes)) or not command:
        raise ValueError("command must be a sequence of the program and its arguments")
    holding = Holding(context, strategies, supervised=True)
    environment = current_environment()
    beginning = Beginning()
    held = False
    try:
        held = holding.acquire()
        return run_held(holding, command, environment, None, beginning)
    except BaseException:
        if held:
            # It may have come before anybody else could see to that; a second time changes nothing.
            holding.release(started=beginning.happened)
        raise


def run_held(
    holding: Holding,
    command: Sequence[str],
    environment: Mapping[bytes, bytes],
    signals: Signals | None,
    beginning: Beginning | None = None,
) -> int:
    """Runs a command under locks that are held, frees them, and returns the exit code of the whole.

    The slot stays taken only if the command has begun, which ``beginning`` tells the caller too. On the command line
    (``signals`` given) a command that died by Ctrl-C ends this process in the same way.
    """
    beginning = beginning or Beginning()
    interrupted = False
    try:
        ended = supervise(
            command,
            environment=command_environment(holding, environment),
            signals=signals,
            subscribe=None if holding.request.continues else holding.on_loss,
            kill_grace=holding.request.context.kill_grace_seconds,
            beginning=beginning,
        )
        code, interrupted = ended.code, ended.interrupted
    except NotStarted as error:
        logger.error("%s", error)  # noqa: TRY400 - an operator needs the sentence, not where it was raised
        code = error.code
    except Interrupted as error:
        code = 128 + error.number
    finally:
        loss = holding.release(started=beginning.happened)
    if loss and not holding.request.continues:
        return LEASE_LOST_EXIT_CODE
    if interrupted and signals is not None:
        die_of_interrupt()
    return code


def command_environment(holding: Holding, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """``environment`` with what a command is told of its locks, and nothing of the locks of an outer run.

    That is ``DISLOCK_LOCK_KEY``, ``DISLOCK_OWNER``, ``DISLOCK_FENCING_TOKEN``, and, with the strategy schedule,
    ``DISLOCK_SLOT``: the nominal time of its tick (or the slot's end where only that is known), in UTC.
    """
    context, slot = holding.request.context, holding.slot
    told = {
        "DISLOCK_LOCK_KEY": context.lock_key,
        "DISLOCK_OWNER": context.owner,
        "DISLOCK_FENCING_TOKEN": str(holding.fencing_token),
    }
    if slot:
        told["DISLOCK_SLOT"] = (slot.tick or slot.expires).strftime("%Y-%m-%dT%H:%M:%SZ")
    # UTF-8 whatever the locale: a key must look the same to a command on every host.
    others = {name: value for name, value in environment.items() if name not in _OURS}
    return others | {name.encode(): value.encode() for name, value in told.items()}
