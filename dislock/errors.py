"""The errors that a caller can catch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

#: Exit code of a command line run whose lease was lost: EX_TEMPFAIL of sysexits.h.
LEASE_LOST_EXIT_CODE = 75


class DislockError(Exception):
    """Base class of everything that this package raises on purpose."""


class ConfigurationError(DislockError, ValueError):
    """A setting, an argument or the database's schema is wrong; trying again does not help."""


class DatabaseUnavailableError(DislockError):
    """The database could not be reached in time, or did not answer in time."""


class LockNotAcquiredError(DislockError):
    """Somebody else holds the lock, by the database's own answer.

    ``key`` is the full row key, ``holder`` the owner that the row names, and ``expires_at`` when the row expires by the
    database's clock. The last two are None if the row was gone before it could be read.
    """

    def __init__(
        self, message: str, *, key: str = "", holder: str | None = None, expires_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.expires_at = expires_at


class LockWaitEndedError(LockNotAcquiredError):
    """Somebody else still held the lock when the wait for it had ended (``LockContext.wait_seconds``)."""


class SlotOverError(LockNotAcquiredError, ConfigurationError):
    """The slot had ended by the database's clock before it could be taken, so there was nothing left to lock."""


class UnknownOutcomeError(DislockError):
    """The answer to an acquisition was lost, so it is unknown whether the lock was taken.

    The row may be this process's, or that of a process with the same owner string. So nothing is run and nothing is
    freed: the row expires.
    """


class LossReason(Enum):
    """Why a lease is no longer held."""

    TAKEN = "taken"  #: the row names another owner, or another acquisition under the same owner string
    REMOVED = "removed"  #: the row is gone
    EXPIRED = "expired"  #: the row expired by the database's clock before it was renewed
    UNCONFIRMED = "unconfirmed"  #: no renewal was confirmed in time, whatever the cause


@dataclass(frozen=True)
class Loss:
    """A lease that was lost: why, in a word and in a sentence.

    ``grace`` is the time in seconds that a supervised command may have between SIGTERM and SIGKILL.
    """

    reason: LossReason
    sentence: str
    grace: float = 0.0


class NotSealedError(DislockError):
    """The block succeeded under its lease, but its tick could not be sealed: another host may run it again."""


class LeaseLostError(DislockError):
    """The lease was lost while the guarded block or command was running.

    Raised under ``LeaseLossPolicy.TERMINATE`` if the block itself ended without an error. ``loss`` says why; ``reason``
    is short for ``loss.reason``.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.sentence)
        self.loss = loss

    def __reduce__(self) -> tuple[type[LeaseLostError], tuple[Loss]]:
        # Worker processes pickle their errors. Unpickling passes the message, but this class takes a loss.
        return type(self), (self.loss,)

    @property
    def reason(self) -> LossReason:
        return self.loss.reason
