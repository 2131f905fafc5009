"""`ci/test`: makes the environment, runs the kinds asked for, and ends with one line that counts them all."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from ci import in_ci
from ci.environments import CannotMake
from ci.kinds import DEPTH, FAST, KINDS, USUAL, Options, Outcome, main_environment, outcomes
from ci.tally import Tally, total

HELP = """without a KIND: the whole breadth, each thing once; at most 15 minutes on two processors

kinds:
  lint         ruff: rules and format
  types        mypy --strict, and the README's Python by mypy and pyright
  unit         pure, milliseconds each
  integration  against a real PostgreSQL: an embedded one, or TEST_DATABASE_URL
  simulation   the protocol under a simulated clock, network and crashes
  faults       processes and servers killed, stopped, wedged
  artifact     the built dislock.pyz on every interpreter found
  image        the container image; needs a Docker engine
  docs         build/docs: the documents as a site
  demo         build/demo: the product on a server of its own

  minimum      unit and integration with the oldest dependencies allowed, on the oldest Python
  pythons      what differs between Pythons, on the newest one found
  cluster      failovers of a real Patroni cluster
  benchmarks   benchmarks/run --quick: each figure once, to see that it can be had

  fast         lint, types, unit, documents, integration (of the contract only the tests marked short), simulation,
               without the tests marked slow; at most 3 minutes
  all          every kind, with 10,000 simulated histories in place of 2,000; at most 35 minutes

environment:
  DISLOCK_TEST_PYTHONS  more interpreters: paths separated by colons or blanks
  DISLOCK_TEST_CLUSTER  the folder of a Patroni cluster, for cluster
  TEST_DATABASE_URL     a PostgreSQL to use in place of the embedded one
  SIMULATION_HISTORIES  how many simulated histories to run
  CI=true               what this machine cannot run is a failure and not a skip
"""


def main(arguments: Sequence[str]) -> int:
    kinds, options = _parse(arguments)
    _plain_process()
    tallies: list[Tally] = []
    try:
        main_environment().make()
        for kind in kinds:
            began = time.monotonic()
            for outcome in outcomes(kind, options):
                tallies.append(_tell(outcome, time.monotonic() - began))
                began = time.monotonic()
    except CannotMake as failure:
        print(failure)
        tallies.append(Tally(failed=1))
    except KeyboardInterrupt:
        print("interrupted")
        tallies.append(Tally(failed=1))
    if kinds == list(USUAL):
        print(f"left to `ci/test all`: {', '.join(DEPTH)}")
    whole = total(tallies)
    print(whole, flush=True)
    return 1 if whole.failed else 0


def _parse(arguments: Sequence[str]) -> tuple[list[str], Options]:
    own, extra = list(arguments), []
    if "--" in own:
        cut = own.index("--")
        own, extra = own[:cut], own[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="ci/test",
        usage="ci/test [KIND ...] [-- PYTEST-ARGUMENT ...]",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=argparse.SUPPRESS)
    asked = parser.parse_args(own).kinds
    groups = {"fast": FAST, "all": KINDS}
    if unknown := [kind for kind in asked if kind not in (*groups, *KINDS)]:
        parser.error(f"no such kind: {unknown[0]}; there are {', '.join((*groups, *KINDS))}")
    wanted = {name for kind in asked for name in groups.get(kind, (kind,))} or set(USUAL)
    options = Options(fast="fast" in asked, deep="all" in asked, pytest=tuple(extra))
    return [kind for kind in KINDS if kind in wanted], options


def _tell(outcome: Outcome, seconds: float) -> Tally:
    tally = outcome.tally
    if outcome.lack:
        print(f"{outcome.name:<13} not run: {outcome.lack}", flush=True)
        return Tally(failed=1) if in_ci() else Tally(skipped=1)
    print(f"{outcome.name:<13} {seconds:5.0f} s  {tally}", flush=True)
    for reason, count in tally.reasons.most_common():
        print(f"  skipped {count}: {reason}")
    if outcome.trouble:
        print(outcome.trouble)
    for name in tally.failures:
        print(f"  failed: {name}")
    return tally


def _plain_process() -> None:
    """What a process inherits besides the environment, as tests expect it: a job in the background ignores SIGINT."""
    # Whatever runs is ended in order; a program that is started later has the default again.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    for other in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(other, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # The embedded server's account has to read what is installed.
    os.umask(0o022)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
