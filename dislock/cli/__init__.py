"""The command line: reads arguments and environment, prints, and exits. Nothing else in this package does."""

# What takes time to load is loaded only after signals are held back: an early Ctrl-C mostly comes during an import. So
# typing is not loaded here; type checkers know its constant by name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

INTERRUPTED = 130


def entry(environment: "Mapping[bytes, bytes] | None" = None) -> None:
    """The console script: ``dislock.cli:entry``. Does not return.

    Signals are held back from here to the end of the process. So none causes a traceback, and one that comes after the
    command has ended does not replace its exit code. The process ends without the interpreter's shutdown, so ``atexit``
    functions do not run. ``environment`` is what the command gets; None: what this process got.
    """
    import os

    try:
        from dislock.process.signals import Signals

        with Signals() as signals:
            import gc

            # Collecting garbage while modules are loaded finds none, and takes a fifteenth of a run's time.
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
