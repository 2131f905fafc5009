"""The steps that the protocol asks of a driver, and the answers to them.

A protocol is a generator: it yields steps and gets answers. It has no I/O, no thread and no event loop, and its clock
is an argument. Every step names the moment (by that clock, in seconds) by which it must be over: **a driver returns by
then, whatever the network does**, and abandons a connection that did not answer. So a loss of a lease is noticed in
time even if the database does not answer.

A driver can be asked to leave (by a signal, a cancelled task, the end of a block). It then ends a ``Wait`` at once and
a ``Connect`` soon, gives an ``Execute`` in flight ``LINGER`` seconds more, and sets ``leave`` on the next answer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from dislock.protocol.statements import AnyStatement

if TYPE_CHECKING:
    from dislock.protocol.records import Record

#: Seconds that a statement in flight still has when its driver is asked to leave. Its answer decides what must be
#: undone; a healthy database answers in a thousandth of that.
LINGER = 1.0
#: The cause if no error names a better one.
NO_ANSWER = "the database did not answer in time"
#: The cause if the server cancelled the statement at our request.
HAD_TO_WAIT = "the statement had to wait too long: another transaction may have locked the table (see pg_locks)"
#: Why an answer proves nothing: it came after the request to cancel its statement was sent.
CANCELLED = "the answer came after the statement was cancelled, so it proves nothing"
#: Why an answer proves nothing: the server warned, as it does when the wait for a standby is cancelled.
ONLY_LOCAL = (
    "the server stopped waiting for its standby (synchronous replication, wait event SyncRep), so the change may exist "
    "on this server alone"
)


class Failure(NamedTuple):
    """An error of the database or of the connection to it.

    ``text`` is one line without secrets. ``permanent``: trying again does not help. ``broken``: the connection is gone,
    so a statement that was sent may or may not have been carried out. ``timed_out``: the server's ``lock_timeout``
    ended the wait for somebody else's lock.
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
    """Carries out one statement in its own transaction on the current connection."""

    statement: AnyStatement | Record
    by: float
    journal: tuple[str, ...] = ()
    """The name of the journal, for a statement on the journal instead of the lock table."""
    queues: bool = False
    """The statement only waits for somebody else's lock, so it can be cancelled at once."""


class Wait(NamedTuple):
    """Waits until that moment."""

    until: float


class Watch(NamedTuple):
    """Waits until that moment, or until something arrives on the idle connection. An error: the connection ended."""

    until: float


class Close(NamedTuple):
    """Closes the current connection, if there is one."""


class Done(NamedTuple):
    """The step was carried out; ``rows`` is what an ``Execute`` returned, as the statement's own named tuples.

    ``doubt`` says why the answer proves nothing; "" if it does prove something. If the wait for a standby was
    cancelled, the server reports success with a WARNING (SQLSTATE 01000), and a failover may undo the change
    (https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA).
    """

    rows: tuple[Any, ...] = ()
    leave: bool = False
    doubt: str = ""
    sent: float | None = None
    """When the statement was sent, if it had to wait for others before; by the driver's clock."""


class Failed(NamedTuple):
    """The step ended with an error."""

    failure: Failure
    leave: bool = False


class Unanswered(NamedTuple):
    """No answer came in time. The connection is abandoned; the server may still carry out the statement."""

    leave: bool = False


Step = Connect | Execute | Wait | Watch | Close
Answer = Done | Failed | Unanswered

T = TypeVar("T")
Steps = Generator[Step, Answer, T]


def silent(server: str) -> Failure:
    """The failure of a server that did not answer in time."""
    return Failure(f"{server} did not answer in time")


def together(failures: Sequence[Failure]) -> Failure:
    """The failure of all of several servers: each cause once; permanent if every cause is."""
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
