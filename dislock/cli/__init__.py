"""The command line: reads arguments and environment, prints, and exits. Nothing else in this package does."""

# Whatever takes time to load is loaded when signals are held back: an import is where a Ctrl-C at the start comes. So
# is typing, whose constant of this name type checkers know without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

INTERRUPTED = 130


def entry(environment: "Mapping[bytes, bytes] | None" = None) -> None:
    """The console script: ``dislock.cli:entry``. Does not return.

    Signals are held back from here to the end of the process: none ends in a traceback, and none that comes when the
    command has ended replaces its exit code. The process ends without the interpreter's shutdown, so ``atexit``
    functions do not run. ``environment`` is what the command gets; None: what this process got.
    """
    import os

    try:
        from dislock.process.signals import Signals

        with Signals() as signals:
            import gc

            # Looking for garbage while modules are loaded finds none, and is a fifteenth of what a run takes.
            gc.set_threshold(100_000)
            from dislock.cli.run import main
            from dislock.process.ending import leave
            from dislock.process.environment import leave_to_the_command, original_environment

            environment = original_environment() if environment is None else environment
            leave_to_the_command()
            leave(main(signals=signals, environment=environment))
    except KeyboardInterrupt:
        # It came before signals were held back.
        os._exit(INTERRUPTED)
