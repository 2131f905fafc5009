"""What the locks refuse where they are made, sync and async, before any connection is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dislock
from dislock import ConfigurationError, LockContext, aio


def make(**changes: Any) -> LockContext:
    """A context for both strategies, whose server nobody asks."""
    values = {
        "url": "postgresql://nobody.invalid/d",
        "table_parts": ["key_value"],
        "lock_key": "job",
        "owner": "host:1",
        "schedule": "0 0 1 1 *",
        "run_ttl_seconds": 30.0,
        "lease_interval_seconds": 5.0,
    }
    return LockContext(**{**values, **changes})


ENTRANCES: dict[str, Callable[..., object]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (dislock, aio)
    for name in ("acquire_locks", "build_locks", "with_locks")
}
ENTRANCES["dislock.run_with_locks"] = lambda context, strategies: dislock.run_with_locks(["false"], context, strategies)


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("strategies", ["lease", (), ("leese",), None, (None,), b"lease"])
def test_strategies_that_mean_nothing_are_never_an_unlocked_run(entrance: str, strategies: Any) -> None:
    with pytest.raises(ConfigurationError, match="strateg"):
        ENTRANCES[entrance](make(), strategies)


@pytest.mark.parametrize("module", [dislock, aio])
def test_missing_settings_are_refused_where_the_lock_is_made(module: Any) -> None:
    with pytest.raises(ValueError, match="run_ttl_seconds"):
        module.LeaseLock(make(run_ttl_seconds=None))
    with pytest.raises(ValueError, match="next_run_time"):
        module.ScheduleLock(make(schedule=None))


def test_the_decorator_refuses_what_runs_after_the_call() -> None:
    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    for function in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="after the call"):
            dislock.with_locks(make(), ["lease"])(function)
