"""``python -m dislock``: the same program as the console script."""

try:
    from dislock.cli import entry
except KeyboardInterrupt:
    # Nothing was started. From here on ``entry`` handles signals.
    raise SystemExit(130) from None

entry()
