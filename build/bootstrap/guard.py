# The archive's __main__, for `python3 dislock.pyz`. Any Python from 2.7 on can parse it, to say what it lacks.
import sys

if sys.version_info < (3, 10):
    sys.stderr.write(
        "dislock: CPython 3.10 or newer is needed, and this is Python %d.%d (%s)\n"  # noqa: UP031 - Python 2.7
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )
    sys.exit(2)

from _bootstrap.start import main  # noqa: E402 - only where the rest can be parsed

main(launched=False)
