"""What the protocol asks of a driver, and what it may hear.

A protocol is a generator: it yields steps and is sent answers. It has no I/O, no thread, no event loop; time comes
from the clock that it is given. Every step names the moment (by that clock, in seconds) by which it must be over: **a
driver returns by then, whatever the network does**, and abandons a connection that did not answer. That duty is what
makes losing a lease independent of the database.

A driver can be told to leave (a signal, a cancelled task, the end of a block). It then ends a ``Wait`` at once and a
``Connect`` soon, lets an ``Execute`` in flight have ``LINGER`` seconds more, and sets ``leave`` on every answer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from dislock.protocol.statements import AnyStatement

if TYPE_CHECKING:
    from dislock.protocol.records import Record

#: Seconds that a statement in flight still has when its driver is told to leave. Its answer decides what is to be
#: undone; a healthy database answers in a thousandth of that.
LINGER = 1.0
#: The cause where no error names a better one.
NO_ANSWER = "the database did not answer in time"
#: The cause where the server has cancelled the statement when asked to.
HAD_TO_WAIT = "the statement had to wait too long: another transaction may have locked the table (see pg_locks)"
#: Why an answer proves nothing: it came after the request to cancel its statement was sent.
CANCELLED = "the answer came after the statement was cancelled, so it proves nothing"
#: Why an answer proves nothing: the server warned, as it does when the wait for a standby is cancelled.
ONLY_LOCAL = (
    "the server stopped waiting for its standby (synchronous replication, wait event SyncRep), so the change may exist "
    "on this server alone"
)


class Failure(NamedTuple):
    """An error of the database or on the way to it.

    ``text`` is one line without secrets. ``permanent``: trying again cannot help. ``broken``: the connection is gone,
    so a statement that was sent may or may not have been carried out. ``timed_out``: the server ended its wait for
    somebody else's lock, by ``lock_timeout``.
    """

    text: str
    permanent: bool = False
    broken: bool = False
    timed_out: bool = False


class Connect(NamedTuple):
    """Opens a connection to the target of that index. Success replaces the current connection, failure leaves it."""

    target: int
    by: float


class Execute(NamedTuple):
    """Carries out one statement in a transaction of its own on the current connection."""

    statement: AnyStatement | Record
    by: float
    journal: tuple[str, ...] = ()
    """The name of the journal, for a statement that is about it instead of the lock table."""
    queues: bool = False
    """It waits for somebody else to leave, so nothing is lost when it is cancelled at once."""


class Wait(NamedTuple):
    """Nothing to do until then."""

    until: float


class Watch(NamedTuple):
    """Waits until then, or until something comes on the idle connection: an error is that it has ended."""

    until: float


class Close(NamedTuple):
    """The current connection, if any, is not needed any more."""


class Done(NamedTuple):
    """The step was carried out; ``rows`` is what an ``Execute`` returned, as the statement's own named tuples.

    With ``doubt`` the answer proves nothing, and says why: the server answers *success* with a WARNING (SQLSTATE 01000)
    where the wait for a standby was cancelled
    (https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA). A failover may undo it.
    """

    rows: tuple[Any, ...] = ()
    leave: bool = False
    doubt: str = ""
    sent: float | None = None
    """When the statement was sent, where it had to wait for others before that."""


class Failed(NamedTuple):
    """The step ended with an error."""

    failure: Failure
    leave: bool = False


class Unanswered(NamedTuple):
    """No answer in time. The connection is abandoned; a statement may still be carried out, now or later."""

    leave: bool = False


Step = Connect | Execute | Wait | Watch | Close
Answer = Done | Failed | Unanswered

T = TypeVar("T")
Steps = Generator[Step, Answer, T]


def silent(server: str) -> Failure:
    """That a server did not answer while one waited for it."""
    return Failure(f"{server} did not answer in time")


def together(failures: Sequence[Failure]) -> Failure:
    """Why none of several servers would do: each cause once; permanent if all of them are."""
    text = "; ".join(dict.fromkeys(failure.text for failure in failures))
    return Failure(text, permanent=all(failure.permanent for failure in failures))


def trouble(answer: Answer) -> str:
    """What went wrong, for people."""
    if isinstance(answer, Done):
        return answer.doubt
    return answer.failure.text if isinstance(answer, Failed) else NO_ANSWER


def proven(answer: Answer) -> TypeGuard[Done]:
    """Whether the step was carried out, without a doubt."""
    return isinstance(answer, Done) and not answer.doubt
