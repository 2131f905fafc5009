"""``python -m dislock``: the same program as the console script."""

from dislock.cli import entry

entry()
