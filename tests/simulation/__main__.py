"""``python -m tests.simulation SEED``: replay one history and print its course. ``--forever``: one after the other."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.doubles import DOUBLES
from tests.simulation.hunting import replay, run_many


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the history to replay, or the first one")
    parser.add_argument("--count", type=int, help="run this many histories, beginning with SEED")
    parser.add_argument("--forever", action="store_true", help="run histories until one fails or you stop it")
    parser.add_argument("--broken", choices=sorted(DOUBLES), help="with one rule deliberately broken")
    given = parser.parse_args()
    if given.count is None and not given.forever:
        failure = replay(given.seed, given.broken)
        print(failure or "nothing was violated")
        return 1 if failure else 0
    begun = time.process_time()
    try:
        stats, failure = run_many(given.seed, None if given.forever else given.count, given.broken, tell=given.forever)
    except KeyboardInterrupt:
        return 130
    print(stats.summary())
    print(f"{time.process_time() - begun:.1f} s of processor time")
    if failure:
        print(failure)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
