"""The public interface: names, signatures, fields, defaults and exceptions as they were promised.

Its types are tried by ``tests/support/typed_api.py``, which is read by mypy.
"""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import dislock
from dislock import aio

PROMISED = {
    "ScheduleLock", "LeaseLock", "LockContext", "LockSession", "LeaseLossPolicy", "LEASE_LOST_EXIT_CODE",
    "acquire_locks", "build_locks", "run_with_locks", "ConfigurationError", "DislockError", "LeaseLostError",
    "LockNotAcquiredError",
}  # fmt: skip
PROMISED_AIO = {"ScheduleLock", "LeaseLock", "LockSession", "acquire_locks", "build_locks"}
#: What goes beyond it.
MORE = {
    "with_locks", "Loss", "LossReason", "SlotOverError", "DatabaseUnavailableError", "UnknownOutcomeError",
    "LockWaitEndedError", "NotSealedError",
}  # fmt: skip


def test_the_names() -> None:
    assert set(dislock.__all__) == PROMISED | MORE | {"__version__"}
    assert set(aio.__all__) == PROMISED_AIO | {"with_locks"}
    assert all(hasattr(dislock, name) for name in dislock.__all__)
    assert all(hasattr(aio, name) for name in aio.__all__)
    assert set(dislock.__all__) <= set(dir(dislock))
    with pytest.raises(AttributeError, match="no_such_name"):
        dislock.no_such_name  # noqa: B018 - that it is refused is what is tested


def parameters(function: object) -> list[str]:
    assert callable(function)
    found = inspect.signature(function).parameters.values()
    assert all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in found), "by position or by name"
    assert all(each.default is inspect.Parameter.empty for each in found)
    return [each.name for each in found]


def test_the_signatures() -> None:
    assert parameters(dislock.run_with_locks) == ["command", "context", "strategies"]
    for module in (dislock, aio):
        for name in ("acquire_locks", "build_locks", "with_locks"):
            assert parameters(getattr(module, name)) == ["context", "strategies"]
        assert parameters(module.ScheduleLock) == parameters(module.LeaseLock) == ["context"]


def test_sync_and_async_are_entered_in_their_own_way_only() -> None:
    for kind in (dislock.ScheduleLock, dislock.LeaseLock):
        assert hasattr(kind, "__enter__")
        assert not hasattr(kind, "__aenter__")
    for other in (aio.ScheduleLock, aio.LeaseLock):
        assert hasattr(other, "__aenter__")
        assert not hasattr(other, "__enter__")


def test_the_fields_of_a_context() -> None:
    required = dataclasses.MISSING
    promised = {
        "url": required,
        "lock_key": required,
        "next_run_time": None,
        "run_ttl_seconds": 60.0,
        "lease_interval_seconds": None,
        "schedule": None,
        "jitter_max_seconds": 0.0,
        "lease_loss_policy": dislock.LeaseLossPolicy.TERMINATE,
    }
    fields = {field.name: field.default for field in dataclasses.fields(dislock.LockContext)}
    assert {name: fields[name] for name in promised} == promised
    assert all(field.kw_only for field in dataclasses.fields(dislock.LockContext))
    # What goes beyond the promise must not be needed.
    others = {field.name: field for field in dataclasses.fields(dislock.LockContext) if field.name not in promised}
    assert all(f.default is not required or f.default_factory is not required for f in others.values())


def test_the_url_is_in_no_text_of_a_context() -> None:
    context = dislock.LockContext(url="postgresql://u:hush@h/d", table_parts=["t"], lock_key="k", owner="o")
    for text in (repr(context), str(context), f"{context}", f"{[context]}"):
        assert "hush" not in text
        assert "postgresql" not in text
        assert "lock_key='k'" in text


def test_the_policy_and_the_exit_code() -> None:
    assert {policy.name: policy.value for policy in dislock.LeaseLossPolicy} == {
        "TERMINATE": "terminate",
        "CONTINUE": "continue",
    }
    assert dislock.LEASE_LOST_EXIT_CODE == 75


def test_the_exceptions() -> None:
    for name in ("ConfigurationError", "LockNotAcquiredError", "LeaseLostError"):
        assert issubclass(getattr(dislock, name), dislock.DislockError)
    for name in ("SlotOverError", "DatabaseUnavailableError", "UnknownOutcomeError"):
        assert issubclass(getattr(dislock, name), dislock.DislockError)
    assert issubclass(dislock.DislockError, Exception)
    assert issubclass(dislock.ConfigurationError, ValueError)
    # Whoever goes on after "held by another" must not go on after anything else.
    for other in (dislock.LeaseLostError, dislock.DatabaseUnavailableError, dislock.UnknownOutcomeError):
        assert not issubclass(other, (dislock.LockNotAcquiredError, ValueError))


def test_every_public_thing_is_documented() -> None:
    for module in (dislock, aio):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert inspect.getdoc(thing), name
