"""The command line: read the settings, take the locks, run the command, tell how it went by the exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dislock.errors import ConfigurationError, DislockError, LockNotAcquiredError
from dislock.output import complain, occupy_closed_descriptors, write
from dislock.settings import Help, Settings, load, original_environment

if TYPE_CHECKING:
    from logging import Logger

    from dislock.session import Holding
    from dislock.signals import Signals

FAILURE = 1
USAGE = 2
#: Names that describe our locks alone: what an outer dislock said of its own is not passed on as ours.
_OURS = (b"DISLOCK_LOCK_KEY", b"DISLOCK_OWNER", b"DISLOCK_SLOT", b"DISLOCK_FENCING_TOKEN")


def entry() -> None:
    """The console script."""
    # Looking for garbage while modules are loaded finds none, and is a fifteenth of what a run takes.
    gc.set_threshold(100_000)
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line program and return its exit code; does not return where the command takes its place."""
    try:
        # Before anything is opened that could take the number of a closed standard error.
        occupy_closed_descriptors()
        settings = load(sys.argv[1:] if argv is None else argv)
    except ConfigurationError as error:
        complain(str(error))
        return USAGE
    except KeyboardInterrupt:
        # Nothing was started, and from here on signals are held back.
        return 130
    if isinstance(settings, Settings):
        return _run(settings)
    from dislock.usage import usage, version

    write(1, usage() if isinstance(settings, Help) else version())
    return 0


def _run(settings: Settings) -> int:
    import logging

    from dislock.drivers import clock
    from dislock.log import set_up_logging
    from dislock.signals import Signals

    started = clock()
    set_up_logging(settings.log_level, settings.context.url)
    logger = logging.getLogger("dislock")
    for notice in settings.notices:
        logger.warning(notice)
    with Signals() as signals:
        try:
            return _under_locks(settings, signals, started, logger)
        except LockNotAcquiredError as error:
            # Somebody else runs the job: as it should be.
            logger.info("%s", error)
            return 0
        except ConfigurationError as error:
            logger.error("%s", error, exc_info=True)
            return USAGE
        except DislockError as error:
            logger.error("%s", error, exc_info=True)
            return FAILURE
        except Exception as error:
            # Whatever it is, cron gets one line and no secret.
            # The text of an error nobody foresaw may hold anything; that of the system does not.
            text = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
            logger.error("unexpected %s%s (--log-level=DEBUG shows more)", type(error).__name__, text, exc_info=True)
            return FAILURE


def _under_locks(settings: Settings, signals: Signals, started: float, logger: Logger) -> int:
    from dislock.command import run_held
    from dislock.session import Holding

    context = settings.context
    try:
        holding = Holding(context, settings.strategies, supervised=True, started=started)
    except ConfigurationError as error:
        # All else was checked before: it is the connection string.
        raise ConfigurationError(f"{settings.url_variable}: {error}") from None
    signals.on_early(holding.request_leave)
    logger.debug("asking for %s of %r as %s", ", ".join(settings.strategies), context.lock_key, context.owner)
    if not holding.acquire():
        # A signal is the only thing that asks to leave.
        assert signals.received is not None
        return 128 + signals.received
    environment = {name: value for name, value in original_environment().items() if name not in _OURS}
    if settings.strategies == ("schedule",) and os.getpid() != 1:
        return _become(holding, settings.command, environment, signals, logger)
    return run_held(holding, settings.command, environment, signals)


def _become(
    holding: Holding, command: Sequence[str], environment: dict[bytes, bytes], signals: Signals, logger: Logger
) -> int:
    """Let the command take the place of this process: a slot needs nobody to look after it.

    Not as PID 1, which has orphans to reap. Returns, with the slot given back, only when nothing was started.
    """
    from dislock.command import lock_environment
    from dislock.runner import Interrupted, NotStarted, become

    try:
        become(command, {**environment, **lock_environment(holding)}, signals)
    except NotStarted as error:
        logger.error("%s", error)  # noqa: TRY400 - an operator needs the sentence, not where it was raised
        code = error.code
    except Interrupted as error:
        code = 128 + error.number
    finally:
        holding.release(started=False)
    return code
