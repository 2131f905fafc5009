"""The command as a process: found, started, signalled, stopped and reaped. Knows nothing of locks."""
