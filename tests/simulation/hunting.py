"""Running many histories, and replaying one."""

from __future__ import annotations

import gc
import traceback
from contextlib import nullcontext
from unittest.mock import patch

import dislock.protocol.leasing
from tests.simulation.checks import Violation
from tests.simulation.doubles import DOUBLES
from tests.simulation.history import History, Rules
from tests.simulation.stats import Stats

#: How often ``--forever`` says how far it is, in histories.
TELL_EVERY = 10_000


def run_many(first: int, count: int | None, broken: str | None = None, *, tell: bool = False) -> tuple[Stats, str]:
    """Runs ``count`` histories (None: no end) up to the first failure; the failure is the one line that replays it.

    With a ``broken`` rule only its own invariant ends it.
    """
    stats = Stats()
    rules = DOUBLES[broken].rules if broken else Rules()
    seed = first
    # Generators, processes and histories refer to each other: collected seldom, and not for each history.
    gc.disable()
    try:
        with patch.object(dislock.protocol.leasing, "Lease", rules.lease):
            while count is None or seed < first + count:
                try:
                    History(seed, rules, stats).run()
                except AssertionError as error:
                    if broken is None or getattr(error, "invariant", "") == DOUBLES[broken].caught_by:
                        return stats, line(seed, broken, error)
                seed += 1
                if seed % 500 == 0:
                    gc.collect()
                if tell and (seed - first) % TELL_EVERY == 0:
                    print(stats.summary(), flush=True)
    finally:
        gc.enable()
    return stats, ""


def replay(seed: int, broken: str | None = None) -> str:
    """Runs one history again, and prints its course."""
    rules = DOUBLES[broken].rules if broken else Rules()
    with patch.object(dislock.protocol.leasing, "Lease", rules.lease) if broken else nullcontext():
        try:
            History(seed, rules, Stats(), verbose=True).run()
        except AssertionError as error:
            if not isinstance(error, Violation):
                traceback.print_exc()
            return line(seed, broken, error)
    return ""


def line(seed: int, broken: str | None, error: AssertionError) -> str:
    options = f" --broken {broken}" if broken else ""
    text = str(error) or f"assertion failed: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return f"python -m tests.simulation {seed}{options}  # {text}"
