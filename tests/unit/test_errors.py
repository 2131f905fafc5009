"""What a caller gets when something goes wrong."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, timezone

import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LeaseLostError,
    LockNotAcquiredError,
    Loss,
    LossReason,
    SlotOverError,
    UnknownOutcomeError,
)


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError(Loss(LossReason.TAKEN, "the lease k was lost", 3.0)),
        LockNotAcquiredError("held", key="k", holder="h:1", expires_at=datetime(2026, 1, 1, tzinfo=timezone.utc)),
        SlotOverError("over", key="k"),
        ConfigurationError("wrong"),
        DatabaseUnavailableError("away"),
        UnknownOutcomeError("unknown"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(error: DislockError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)
