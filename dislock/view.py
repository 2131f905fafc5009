"""What a guarded block sees of its locks."""

from __future__ import annotations

from typing import Generic, TypeVar

from dislock.errors import DislockError, Loss, LossReason
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.schedule import Slot

Event = TypeVar("Event")


class View(Generic[Event]):
    """What a guarded block sees of its locks."""

    def __init__(self, acquisition: Acquisition, lease_lost: Event | None) -> None:
        self._acquisition = acquisition
        self.lease_lost = lease_lost
        """Set when the lease or the advisory lock is lost; None with a slot alone, or under ``CONTINUE``."""

    @property
    def fencing_token(self) -> int:
        """Rises with each acquisition of the lease: a system that stores it can refuse a writer with a smaller one.

        Microseconds since 1970 by the database's clock at the acquisition. With a slot alone it rises only if this
        clock is not set back. Raises ``DislockError`` with the strategy advisory, which has none.
        """
        if self._acquisition.token is None:
            raise DislockError("the strategy advisory has no fencing token: nothing rises with each acquisition")
        return self._acquisition.token

    @property
    def loss(self) -> Loss | None:
        """Why the lease was lost, or None. Known before ``lease_lost`` is set."""
        return self._acquisition.loss

    @property
    def loss_reason(self) -> LossReason | None:
        """``loss.reason``, or None."""
        return self.loss.reason if self.loss else None

    @property
    def slot(self) -> Slot | None:
        """The slot of this run, or None without the strategy schedule."""
        return self._acquisition.slot

    def check(self) -> None:
        """Raises ``LeaseLostError`` if the lease is lost, except under ``LeaseLossPolicy.CONTINUE``.

        Call it at the safe points of a long block, which nothing else interrupts. Does nothing without a lease.
        """
        self._acquisition.check()
