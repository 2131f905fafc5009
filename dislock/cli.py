"""The command line: read the settings, take the locks, run the command, tell how it went by the exit code."""

from __future__ import annotations

import gc
import os
import sys

# Whatever takes time to load is loaded when signals are held back: an import is where a Ctrl-C at the start comes. So
# is typing, whose constant of this name type checkers know without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from logging import Logger

    from dislock.session import Holding
    from dislock.settings import Settings
    from dislock.signals import Signals

FAILURE = 1
USAGE = 2
INTERRUPTED = 130


def entry() -> None:
    """The console script.

    Signals are held back from here to the end of the process: none ends in a traceback, and none that comes when the
    command has ended replaces its exit code.
    """
    try:
        from dislock.signals import Signals

        signals = Signals()
        signals.hold()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    # Looking for garbage while modules are loaded finds none, and is a fifteenth of what a run takes.
    gc.set_threshold(100_000)
    sys.exit(main(signals=signals))


def main(argv: Sequence[str] | None = None, *, signals: Signals | None = None) -> int:
    """Run the command line program and return its exit code; does not return where the command takes its place.

    ``signals``: already held back by the caller; without it, until this returns.
    """
    from dislock.errors import ConfigurationError
    from dislock.output import complain, occupy_closed_descriptors

    try:
        # Before anything is opened that could take the number of a closed standard error.
        occupy_closed_descriptors()
        arguments = sys.argv[1:] if argv is None else argv
        if signals is not None:
            return _main(arguments, signals)
        from dislock.signals import Signals

        with Signals() as own:
            return _main(arguments, own)
    except ConfigurationError as error:
        complain(str(error))
        return USAGE
    except Exception as error:  # noqa: BLE001 - whatever it is, cron gets one line
        complain(_unexpected(error))
        return FAILURE


def _main(arguments: Sequence[str], signals: Signals) -> int:
    from dislock.settings import Help, Settings, load

    settings = load(arguments)
    if isinstance(settings, Settings):
        return _run(settings, signals)
    from dislock.output import write
    from dislock.usage import usage, version

    write(1, usage() if isinstance(settings, Help) else version())
    return 0


def _run(settings: Settings, signals: Signals) -> int:
    import logging

    from dislock.drivers import clock
    from dislock.errors import ConfigurationError, DislockError, LockNotAcquiredError
    from dislock.log import set_up_logging

    started = clock()
    set_up_logging(settings.log_level, settings.context.url)
    logger = logging.getLogger("dislock")
    for notice in settings.notices:
        logger.warning(notice)
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
        logger.error("%s (--log-level=DEBUG shows more)", _unexpected(error), exc_info=True)
        return FAILURE


def _unexpected(error: Exception) -> str:
    # The text of an error nobody foresaw may hold a secret; that of the system does not.
    text = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    return f"unexpected {type(error).__name__}{text}"


def _under_locks(settings: Settings, signals: Signals, started: float, logger: Logger) -> int:
    from dislock.command import run_held
    from dislock.errors import ConfigurationError
    from dislock.session import Holding
    from dislock.settings import original_environment

    context = settings.context
    environment = original_environment()
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
    if settings.strategies == ("schedule",) and os.getpid() != 1:
        return _become(holding, settings.command, environment, signals, logger)
    return run_held(holding, settings.command, environment, signals)


def _become(
    holding: Holding, command: Sequence[str], environment: dict[bytes, bytes], signals: Signals, logger: Logger
) -> int:
    """Let the command take the place of this process: a slot needs nobody to look after it.

    Not as PID 1, which has orphans to reap. Returns, with the slot given back, only when nothing was started.
    """
    from dislock.command import command_environment
    from dislock.runner import Interrupted, NotStarted, become

    try:
        become(command, command_environment(holding, environment), signals)
    except NotStarted as error:
        logger.error("%s", error)  # noqa: TRY400 - an operator needs the sentence, not where it was raised
        code = error.code
    except Interrupted as error:
        code = 128 + error.number
    finally:
        holding.release(started=False)
    return code
