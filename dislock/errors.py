"""What can go wrong, as a caller sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

#: Exit code of a command line run whose lease was lost: EX_TEMPFAIL of sysexits.h.
LEASE_LOST_EXIT_CODE = 75


class DislockError(Exception):
    """Base class of everything that this package raises on purpose."""


class ConfigurationError(DislockError, ValueError):
    """A setting, an argument or the database's schema does not fit; trying again changes nothing."""


class DatabaseUnavailableError(DislockError):
    """The database could not be reached, or did not answer, in the time that there was."""


class LockNotAcquiredError(DislockError):
    """Somebody else verifiably holds the lock.

    ``key`` is the full row key, ``holder`` the owner named by the row and ``expires_at`` the row's end by the
    database's clock; the last two are None when the row was gone before it could be read.
    """

    def __init__(
        self, message: str, *, key: str = "", holder: str | None = None, expires_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.expires_at = expires_at


class LockWaitEndedError(LockNotAcquiredError):
    """Somebody else still held the lock when the time to wait for it was over (``LockContext.wait_seconds``)."""


class SlotOverError(LockNotAcquiredError, ConfigurationError):
    """The slot had ended by the database's clock before it could be taken, so nothing would have been locked."""


class UnknownOutcomeError(DislockError):
    """The answer to an acquisition was lost, and the row now names this very owner.

    It may be ours or that of a process with the same owner string, so nothing is run and nothing is freed: the row
    ends by itself.
    """


class LossReason(Enum):
    """Why a lease is no longer held."""

    TAKEN = "taken"  #: the row names another owner, or another acquisition under the same owner string
    REMOVED = "removed"  #: the row is gone
    EXPIRED = "expired"  #: the row ended by the database's clock before it was renewed
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
    """The block succeeded under its lease, but its slot could not be sealed: another host may run the tick again."""


class LeaseLostError(DislockError):
    """The lease stopped being held while the guarded block or command was running.

    Raised under ``LeaseLossPolicy.TERMINATE`` when the block itself ended without an error. ``loss`` says why;
    ``reason`` is a short way to ``loss.reason``.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.sentence)
        self.loss = loss

    def __reduce__(self) -> tuple[type[LeaseLostError], tuple[Loss]]:
        # An exception is made again from its message, which is not what this one takes; workers send theirs home.
        return type(self), (self.loss,)

    @property
    def reason(self) -> LossReason:
        return self.loss.reason
