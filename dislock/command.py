"""A command under locks: the library's ``run_with_locks`` and what it shares with the command line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dislock.context import LockContext
from dislock.errors import LEASE_LOST_EXIT_CODE
from dislock.runner import Interrupted, NotStarted, supervise
from dislock.session import Holding
from dislock.settings import current_environment
from dislock.signals import die_of_interrupt

if TYPE_CHECKING:
    from dislock.runner import Signals

logger = logging.getLogger("dislock")


def run_with_locks(command: Sequence[str], context: LockContext, strategies: Iterable[str]) -> int:
    """Runs a command under the locks of the strategies and returns its exit code.

    128+N for a death by signal N, 127 for a command that was not found and 126 for one that cannot be executed (the
    slot is then given back), 75 when the lease was lost under ``LeaseLossPolicy.TERMINATE``: the command was sent
    SIGTERM, and SIGKILL before the row ended. Raises ``LockNotAcquiredError`` when a lock is held by another, and what
    ``acquire_locks`` raises. No signal handler is installed; an exception while waiting (KeyboardInterrupt) ends the
    command (SIGTERM, ``kill_grace_seconds``, SIGKILL), frees the locks and is raised again.
    """
    if isinstance(command, (str, bytes)) or not command:
        raise ValueError("command must be a sequence of the program and its arguments")
    holding = Holding(context, strategies, supervised=True)
    holding.acquire()
    return run_held(holding, command, current_environment(), None)


def run_held(
    holding: Holding, command: Sequence[str], environment: Mapping[bytes, bytes], signals: Signals | None
) -> int:
    """Runs a command under locks that are held, frees them, and returns the exit code of the whole.

    On the command line (``signals`` given) a command that died by Ctrl-C ends this process in the same way.
    """
    context = holding.planned.context
    started = interrupted = False
    try:
        everything = {**environment, **lock_environment(holding)}
        # Unless it is told otherwise, the command has begun, so its slot stays taken.
        started = True
        ended = supervise(
            command,
            environment=everything,
            signals=signals,
            subscribe=None if holding.planned.continues else holding.on_loss,
            kill_grace=context.kill_grace_seconds,
        )
        code, started, interrupted = ended.code, ended.started, ended.interrupted
    except NotStarted as error:
        started = False
        logger.error("%s", error)  # noqa: TRY400 - an operator needs the sentence, not where it was raised
        code = error.code
    except Interrupted as error:
        started = False
        code = 128 + error.number
    finally:
        loss = holding.release(started=started)
    if loss and not holding.planned.continues:
        return LEASE_LOST_EXIT_CODE
    if interrupted and signals is not None:
        die_of_interrupt()
    return code


def lock_environment(holding: Holding) -> dict[bytes, bytes]:
    """What a command is told of its locks: ``DISLOCK_LOCK_KEY``, ``DISLOCK_OWNER``, ``DISLOCK_FENCING_TOKEN``, and
    ``DISLOCK_SLOT``, the nominal time of its tick (or the slot's end where only that is known), in UTC.
    """
    context, slot = holding.planned.context, holding.slot
    told = {
        "DISLOCK_LOCK_KEY": context.lock_key,
        "DISLOCK_OWNER": context.owner,
        "DISLOCK_FENCING_TOKEN": str(holding.fencing_token),
    }
    if slot:
        told["DISLOCK_SLOT"] = (slot.tick or slot.expires).strftime("%Y-%m-%dT%H:%M:%SZ")
    # UTF-8 whatever the locale: a key must look the same to a command on every host.
    return {name.encode(): value.encode() for name, value in told.items()}
