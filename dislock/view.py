"""What a guarded block sees of its locks."""

from __future__ import annotations

from typing import Generic, TypeVar

from dislock.errors import Loss, LossReason
from dislock.protocol.acquisition import Protocol
from dislock.protocol.schedule import Slot

Event = TypeVar("Event")


class View(Generic[Event]):
    """What a guarded block sees of its locks."""

    def __init__(self, protocol: Protocol, lease_lost: Event | None) -> None:
        self._protocol = protocol
        self.lease_lost = lease_lost
        """Set when the lease is lost; None without a lease and under ``LeaseLossPolicy.CONTINUE``."""

    @property
    def fencing_token(self) -> int:
        """Rises strictly with each acquisition of the lease: what the work writes to can refuse smaller ones.

        Microseconds since 1970 by the database's clock at the acquisition. With a slot alone it assumes that this
        clock is not set back.
        """
        assert self._protocol.token is not None, "a session exists only while its locks were taken"
        return self._protocol.token

    @property
    def loss(self) -> Loss | None:
        """Why the lease was lost, or None."""
        return self._protocol.loss

    @property
    def loss_reason(self) -> LossReason | None:
        """``loss.reason``, or None."""
        return self.loss.reason if self.loss else None

    @property
    def slot(self) -> Slot | None:
        """The slot that was taken, or None without the strategy schedule."""
        return self._protocol.slot
