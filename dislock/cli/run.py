"""One command line from arguments to exit code: settings, locks, command."""

from __future__ import annotations

import os
import sys

# As in the package: loading typing takes longer than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from logging import Logger

    from dislock.cli.asked import Settings
    from dislock.errors import LockNotAcquiredError
    from dislock.holding import Holding
    from dislock.process.signals import Signals

FAILURE = 1
USAGE = 2


def main(
    argv: Sequence[str] | None = None,
    *,
    signals: Signals | None = None,
    environment: Mapping[bytes, bytes] | None = None,
) -> int:
    """Runs the command line program and returns its exit code. Does not return if the command replaces this process.

    ``signals``: the caller holds them back already; None: they are held back until this returns. ``environment`` is
    what the command gets; None: what this process got.
    """
    from dislock.cli.output import complain, occupy_closed_descriptors
    from dislock.errors import ConfigurationError

    try:
        # First: whatever is opened later could get the number of a closed standard error.
        occupy_closed_descriptors()
        arguments = sys.argv[1:] if argv is None else argv
        if signals is not None:
            return _main(arguments, signals, environment)
        from dislock.process.signals import Signals

        with Signals() as own:
            return _main(arguments, own, environment)
    except ConfigurationError as error:
        complain(str(error))
        return USAGE
    except Exception as error:  # noqa: BLE001 - cron gets one line for any error
        complain(_unexpected(error))
        return FAILURE


def _main(arguments: Sequence[str], signals: Signals, environment: Mapping[bytes, bytes] | None) -> int:
    from dislock.cli.arguments import Help, Version
    from dislock.cli.asked import Settings
    from dislock.cli.settings import load

    settings = load(arguments)
    if isinstance(settings, Settings):
        return _run(settings, signals, environment)
    if not isinstance(settings, (Help, Version)):
        from dislock.cli.operate import operate

        return operate(settings)
    from dislock.cli.output import write
    from dislock.cli.usage import usage, version

    write(1, usage() if isinstance(settings, Help) else version())
    return 0


def _run(settings: Settings, signals: Signals, environment: Mapping[bytes, bytes] | None) -> int:
    import logging

    from dislock.cli.log import set_up_logging
    from dislock.drivers.clock import clock
    from dislock.errors import ConfigurationError, DislockError, LockNotAcquiredError, LockWaitEndedError
    from dislock.events import INFO, WARNING, Event, report
    from dislock.process.outcomes import NoThreadError

    started = clock()
    set_up_logging(settings.log_level, settings.context.url, as_json=settings.log_json, with_time=settings.log_time)
    logger = logging.getLogger("dislock")
    for notice in settings.notices:
        logger.warning(notice)
    for hint in settings.hints:
        logger.info(hint)
    try:
        return _under_locks(settings, signals, environment, started, logger)
    except LockWaitEndedError as error:
        report(Event("wait ended", WARNING, str(error), _refusal(error)))
        return FAILURE if settings.skipped is None else settings.skipped
    except LockNotAcquiredError as error:
        # The ordinary case on all hosts but one.
        report(Event("refused", INFO, str(error), _refusal(error)))
        return settings.skipped or 0
    except ConfigurationError as error:
        logger.error("%s", error, exc_info=True)
        return USAGE
    except (DislockError, NoThreadError) as error:
        logger.error("%s", error, exc_info=True)
        return FAILURE
    except Exception as error:
        logger.error("%s (--log-level=DEBUG shows more)", _unexpected(error), exc_info=True)
        return FAILURE


def _refusal(error: LockNotAcquiredError) -> dict[str, object]:
    return {"key": error.key, "holder": error.holder, "expires_at": error.expires_at}


def _unexpected(error: Exception) -> str:
    # The text of an unexpected error may contain a secret; the operating system's own text does not.
    text = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    return f"unexpected {type(error).__name__}{text}"


def _under_locks(
    settings: Settings, signals: Signals, environment: Mapping[bytes, bytes] | None, started: float, logger: Logger
) -> int:
    from dislock.drivers.loading import load_psycopg

    load_psycopg()
    from dislock.command import described, exit_code, run_held
    from dislock.errors import ConfigurationError
    from dislock.holding import Holding
    from dislock.process.environment import original_environment
    from dislock.process.outcomes import Interrupted

    context = settings.context
    environment = original_environment() if environment is None else environment
    try:
        recorded = described(settings.command, context)
        holding = Holding(context, settings.strategies, supervised=True, started=started, recorded=recorded)
    except ConfigurationError as error:
        # Everything else was checked before, so the connection string is wrong.
        raise ConfigurationError(f"{settings.url_variable}: {error}") from None
    signals.on_ending(holding.request_leave)
    logger.debug("asking for %s of %r as %s", ", ".join(settings.strategies), context.lock_key, context.owner)
    if not holding.acquire():
        # A signal is the only thing that asks to leave.
        number = signals.asked()
        assert number is not None
        return exit_code(Interrupted(number))
    if settings.strategies == ("schedule",) and os.getpid() != 1 and recorded is None:
        return _become(holding, settings.command, environment, signals)
    return run_held(holding, settings.command, environment, signals)


def _become(holding: Holding, command: Sequence[str], environment: Mapping[bytes, bytes], signals: Signals) -> int:
    """Replaces this process by the command: a slot needs no renewal while the command runs.

    PID 1 cannot do that, because it must reap orphans. Returns, with the slot given back, only if nothing was started.
    """
    from dislock.command import command_environment, exit_code
    from dislock.process.outcomes import NeverBegan
    from dislock.process.runner import become

    try:
        become(command, command_environment(holding, environment), signals)
    except NeverBegan as reason:
        return exit_code(reason)
    finally:
        holding.release(started=False)
