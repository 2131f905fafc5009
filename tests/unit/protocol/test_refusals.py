"""Who holds a lock, by its row: the borders, to the microsecond."""

from __future__ import annotations

import pytest

from dislock.errors import LockNotAcquiredError, SlotOverError
from dislock.protocol.refusals import (
    lease_ends_far_away,
    lease_refused,
    slot_is_open,
    slot_refused,
    slot_written_elsewhere,
    tick_sealed,
)
from dislock.protocol.statements import Held, to_micros
from tests.unit.protocol.test_acquisition import NOW, SECOND, SLOT, T0

EXPIRES, TICK = to_micros(SLOT.expires), to_micros(T0)
FOLLOWING = EXPIRES + 3600 * SECOND


def held(ends: int | None, now: int = NOW) -> Held:
    return Held(None if ends is None else "other:7", ends, now, None if ends is None else "other:7", ends)


@pytest.mark.parametrize(("ends", "refused"), [(None, False), (NOW - 1, False), (NOW, False), (NOW + 1, True)])
def test_a_lease_is_free_from_the_end_of_its_row_on(ends: int | None, refused: bool) -> None:
    assert (lease_refused("k", held(ends), owner="host:1", doubtful=False) is not None) is refused


@pytest.mark.parametrize(
    ("ends", "now", "is_open"),
    [(NOW, NOW, True), (NOW + 1, NOW, False), (TICK, TICK - 9, True), (TICK + 1, TICK - 9, False)],
)
def test_a_slot_is_open_if_its_row_ends_by_now_or_by_its_tick(ends: int, now: int, is_open: bool) -> None:
    """A start shortly before its tick counts for it."""
    assert slot_is_open(SLOT, ends, now) is is_open
    refusal = slot_refused("k", SLOT, held(ends, now), owner="host:1", doubtful=False)
    assert (refusal is None) is is_open
    assert (tick_sealed("k", SLOT, held(ends, now)) is None) is is_open


@pytest.mark.parametrize(("now", "over"), [(EXPIRES - 1, False), (EXPIRES, True)])
def test_a_slot_is_over_at_its_end(now: int, over: bool) -> None:
    refusal = slot_refused("k", SLOT, held(None, now), owner="host:1", doubtful=False)
    assert isinstance(refusal, SlotOverError) is over


def test_a_row_that_ends_with_the_slot_says_that_somebody_had_it_even_when_it_is_over() -> None:
    row = held(EXPIRES, EXPIRES + SECOND)
    for refusal in (slot_refused("k", SLOT, row, owner="host:1", doubtful=False), tick_sealed("k", SLOT, row)):
        assert type(refusal) is LockNotAcquiredError


@pytest.mark.parametrize(("ends", "noted"), [(None, False), (FOLLOWING, False), (FOLLOWING + 1, True)])
def test_a_row_that_ends_after_the_next_slot_is_of_another_schedule(ends: int | None, noted: bool) -> None:
    assert (slot_written_elsewhere("k", SLOT, held(ends)) is not None) is noted


@pytest.mark.parametrize(("ttl", "seconds"), [(60, 3600), (600, 6000)])
def test_a_lease_ends_far_away_after_an_hour_and_ten_ttls(ttl: float, seconds: int) -> None:
    assert lease_ends_far_away("k", held(NOW + seconds * SECOND), ttl) is None
    assert lease_ends_far_away("k", held(NOW + seconds * SECOND + 1), ttl) is not None
    assert lease_ends_far_away("k", held(None), ttl) is None
