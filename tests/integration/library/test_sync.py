"""The synchronous locks on a real server."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import psycopg
import pytest

from dislock import (
    ConfigurationError,
    DislockError,
    LeaseLock,
    LeaseLostError,
    LockNotAcquiredError,
    LossReason,
    ScheduleLock,
    UnknownOutcomeError,
    acquire_locks,
    build_locks,
    with_locks,
)
from dislock.holding import Holding
from tests.integration.library.conftest import MakeContext
from tests.support.proxy import Proxy
from tests.support.wait import until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
BOTH = ("schedule", "lease")


def in_an_hour() -> datetime:
    return datetime.now(timezone.utc) + timedelta(hours=1)


def test_a_slot_stays_taken_after_the_block_and_holds_no_connection(
    make: MakeContext, live: Callable[[], set[str]], connections: Callable[[], int]
) -> None:
    with ScheduleLock(make(next_run_time=in_an_hour())):
        until(lambda: connections() == 0)
    assert live() == {"schedule"}
    with pytest.raises(LockNotAcquiredError), ScheduleLock(make(next_run_time=in_an_hour(), owner="host:2")):
        pytest.fail("two starts in one slot")


def test_a_lease_is_one_connection_while_held_and_free_after(
    make: MakeContext, live: Callable[[], set[str]], connections: Callable[[], int]
) -> None:
    with LeaseLock(make()) as session:
        assert connections() == 1
        assert live() == {"lease"}
        assert session.lease_lost is not None
        assert not session.lease_lost.is_set()
        with pytest.raises(LockNotAcquiredError, match="host:1") as caught, LeaseLock(make(owner="host:2")):
            pytest.fail("two holders of one lease")
        assert caught.value.holder == "host:1"
    assert live() == set()
    until(lambda: connections() == 0)
    with LeaseLock(make(owner="host:2")):
        assert live() == {"lease"}


def test_a_refused_lease_gives_the_slot_back(make: MakeContext, live: Callable[[], set[str]]) -> None:
    with LeaseLock(make(owner="other:9")):
        with pytest.raises(LockNotAcquiredError), acquire_locks(make(), BOTH):
            pytest.fail("half a set of locks")
        assert live() == {"lease"}
    with acquire_locks(make(), BOTH):
        assert live() == {"schedule", "lease"}


@pytest.mark.parametrize(
    "change", ["UPDATE key_value SET value = 'thief:1'", "DELETE FROM key_value", "TRUNCATE key_value"]
)
def test_a_row_taken_by_force_is_a_loss_that_says_why(make: MakeContext, db: Connection, change: str) -> None:
    with pytest.raises(LeaseLostError) as caught, LeaseLock(make(lease_interval_seconds=0.05)) as session:
        db.execute(change)
        assert session.lease_lost is not None
        assert session.lease_lost.wait(10)
        assert session.loss is not None
        assert session.loss_reason is session.loss.reason
    assert caught.value.reason is (LossReason.TAKEN if "UPDATE" in change else LossReason.REMOVED)
    assert caught.value.loss is session.loss


def test_a_loss_that_nobody_noticed_is_found_by_the_release(make: MakeContext, db: Connection) -> None:
    with pytest.raises(LeaseLostError) as caught, LeaseLock(make()):
        db.execute("UPDATE key_value SET value = 'thief:1'")
    assert caught.value.reason is LossReason.TAKEN
    assert db.execute("SELECT value FROM key_value").fetchone() == ("thief:1",)


def test_under_continue_a_loss_is_logged_and_no_more(
    make: MakeContext, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with LeaseLock(make(lease_loss_policy="continue")) as session:
        assert session.lease_lost is None
        db.execute("DELETE FROM key_value")
    assert "lost" in caplog.text
    assert session.loss_reason is LossReason.REMOVED


def test_an_exception_from_the_block_is_never_masked(make: MakeContext, db: Connection) -> None:
    with pytest.raises(ZeroDivisionError), LeaseLock(make()):
        db.execute("DELETE FROM key_value")
        raise ZeroDivisionError


def test_an_exception_frees_the_lease_and_keeps_the_slot(make: MakeContext, live: Callable[[], set[str]]) -> None:
    with pytest.raises(ZeroDivisionError), acquire_locks(make(), BOTH):
        raise ZeroDivisionError
    assert live() == {"schedule"}


def test_renewals_keep_a_lease_beyond_its_ttl(make: MakeContext, db: Connection) -> None:
    with LeaseLock(make(run_ttl_seconds=0.6, lease_interval_seconds=0.2)):
        first = db.execute("SELECT expire_at FROM key_value").fetchone()
        until(
            lambda: db.execute("SELECT expire_at > %s + interval '1.2 s' FROM key_value", first).fetchone() == (True,)
        )


def test_a_namesake_can_neither_renew_nor_free(make: MakeContext, db: Connection, live: Callable[[], set[str]]) -> None:
    """Two containers may both be app:1; only what a holder wrote itself is its own."""
    first = LeaseLock(make())
    first.__enter__()
    db.execute("DELETE FROM key_value")
    with LeaseLock(make()):
        with pytest.raises(LeaseLostError) as caught:
            first.__exit__(None, None, None)
        assert caught.value.reason is LossReason.TAKEN
        assert live() == {"lease"}


def test_fencing_tokens_rise_strictly(make: MakeContext) -> None:
    tokens = []
    for _ in range(20):
        with LeaseLock(make()) as session:
            tokens.append(session.fencing_token)
    assert tokens == sorted(set(tokens))  # type: ignore[type-var] # None would fail here, as it should


def test_the_token_of_both_modes_is_the_leases(make: MakeContext, db: Connection) -> None:
    with acquire_locks(make(), BOTH) as session:
        row = db.execute(
            "SELECT (extract(epoch FROM expire_at - interval '30 s') * 1000000)::bigint"
            " FROM key_value WHERE key LIKE '%lease%'"
        ).fetchone()
        assert row is not None
        assert session.fencing_token is not None
        assert 0 <= session.fencing_token - row[0] < 100_000


def test_build_locks_orders_schedule_first(make: MakeContext, live: Callable[[], set[str]]) -> None:
    schedule, lease = build_locks(make(), ["lease", "schedule"])
    assert isinstance(schedule, ScheduleLock)
    assert isinstance(lease, LeaseLock)
    with schedule, lease:
        assert live() == {"schedule", "lease"}


def test_the_decorator_takes_the_locks_anew_at_each_call(make: MakeContext, live: Callable[[], set[str]]) -> None:
    @with_locks(make(), ["lease"])
    def work(number: int, *, factor: int = 2) -> int:
        """Doc."""
        assert live() == {"lease"}
        return number * factor

    assert [work(2), work(3, factor=3)] == [4, 9]
    assert (work.__name__, work.__doc__) == ("work", "Doc.")
    assert live() == set()


def test_a_fork_inside_the_block_leaves_the_parents_lease_alone(
    make: MakeContext, live: Callable[[], set[str]]
) -> None:
    context = make(run_ttl_seconds=1.0, lease_interval_seconds=0.1)
    with LeaseLock(context) as session:
        lock_in_child = os.fork()
        if lock_in_child == 0:
            # The child leaves the block as a program that forks for its work would.
            os._exit(0 if left_quietly(context, session) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(lock_in_child, 0)[1]) == 0
        assert live() == {"lease"}
    assert live() == set()


def left_quietly(context: Any, session: Any) -> bool:
    import gc

    gc.collect()
    return not any(thread.name == "dislock-renewal" for thread in threading.enumerate())


def test_leaving_the_block_in_a_forked_child_frees_nothing(make: MakeContext, live: Callable[[], set[str]]) -> None:
    lock = LeaseLock(make())
    lock.__enter__()
    child = os.fork()
    if child == 0:
        try:
            lock.__exit__(None, None, None)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert live() == {"lease"}
    lock.__exit__(None, None, None)
    assert live() == set()


def test_ctrl_c_while_entering_leaves_nothing_behind(
    make: MakeContext, db: Connection, database_url: str, connections: Callable[[], int]
) -> None:
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE key_value")
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Thread(
            target=lambda: (until(waiting_for(database_url)), signal.pthread_kill(main, signal.SIGINT))
        )
        timer.start()
        with pytest.raises(KeyboardInterrupt), LeaseLock(make()):
            pytest.fail("entered")
        timer.join()
        blocker.rollback()
    until(lambda: connections() == 0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_a_second_ctrl_c_while_leaving_frees_the_lease_first(
    make: MakeContext,
    database_url: str,
    live: Callable[[], set[str]],
    connections: Callable[[], int],
    kind: type[BaseException],
    request: pytest.FixtureRequest,
) -> None:
    def handler(*_: object) -> None:
        raise kind

    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, handler)))
    main = threading.main_thread().ident
    assert main is not None
    with psycopg.connect(database_url) as blocker:

        def press_again() -> None:
            until(lambda: lock._holding._leave_keeping.requested)
            signal.pthread_kill(main, signal.SIGINT)
            blocker.rollback()

        lock = LeaseLock(make(lease_interval_seconds=0.05))
        timer = threading.Thread(target=press_again)
        with pytest.raises(kind), lock:
            blocker.execute("SELECT FROM key_value FOR UPDATE")
            until(waiting_for(database_url))
            timer.start()
            raise KeyboardInterrupt
        timer.join()
    assert live() == set()
    until(lambda: connections() == 0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dislock")]


def test_without_a_thread_there_is_no_lease(
    make: MakeContext, live: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def scarce(self: threading.Thread) -> None:
        if self.name == "dislock-leases":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(DislockError, match="no thread"), acquire_locks(make(), BOTH):
        pytest.fail("entered")
    assert live() == set()


@pytest.mark.parametrize("strategies", [["lease"], ["schedule"]])
def test_an_error_that_interrupts_the_wait_for_a_lock_comes_as_it_is(
    make: MakeContext, database_url: str, strategies: list[str]
) -> None:
    """A time limit of the program's own, from a signal handler, say."""

    class TimeIsUpError(RuntimeError):
        pass

    def handler(*_: object) -> None:
        raise TimeIsUpError

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK TABLE key_value")
            timer = threading.Thread(
                target=lambda: (until(waiting_for(database_url)), signal.pthread_kill(main, signal.SIGUSR2))
            )
            timer.start()
            with pytest.raises(TimeIsUpError), acquire_locks(make(), strategies):
                pytest.fail("entered")
            timer.join()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_function_around_a_coroutine_function_is_refused_at_its_call(make: MakeContext) -> None:
    async def body() -> None:
        pytest.fail("without its lock")

    @with_locks(make(), ["lease"])
    def plain() -> Any:
        return body()

    with pytest.raises(ConfigurationError, match=r"plain.*dislock\.aio"):
        plain()


def waiting_for(url: str) -> Callable[[], bool]:
    def look() -> bool:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND application_name LIKE 'dislock%'"
            ).fetchone()
        return row is not None and row[0] > 0

    return look


def test_a_claim_whose_answer_was_lost_is_never_taken_for_anothers(
    make: MakeContext, database_url: str, proxy: Proxy, db: Connection
) -> None:
    proxy.lose_answer(b"INSERT INTO", then_cut=True)
    with pytest.raises(UnknownOutcomeError), LeaseLock(make(url=proxy.url(database_url), connect_timeout_seconds=3)):
        pytest.fail("an unknown outcome was taken for a lock")
    assert db.execute("SELECT count(*) FROM key_value").fetchone() == (1,)


def test_a_renewal_whose_answer_was_lost_is_recognised(
    make: MakeContext, database_url: str, proxy: Proxy, db: Connection
) -> None:
    context = make(url=proxy.url(database_url), run_ttl_seconds=6.0, lease_interval_seconds=0.3)
    with LeaseLock(context):
        first = db.execute("SELECT expire_at FROM key_value").fetchone()
        before = proxy.accepted
        proxy.lose_answer(b"UPDATE", then_cut=True)
        until(lambda: proxy.accepted > before, what="a second connection")
        until(lambda: db.execute("SELECT expire_at > %s + interval '1 s' FROM key_value", first).fetchone() == (True,))


def test_a_release_whose_answer_was_lost_recognises_its_own(
    make: MakeContext, database_url: str, proxy: Proxy, live: Callable[[], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with LeaseLock(make(url=proxy.url(database_url))):
        proxy.lose_answer(b"UPDATE", then_cut=True)
    assert live() == set()
    assert not caplog.records


def test_a_database_that_hangs_delays_a_loss_by_nothing(make: MakeContext, database_url: str, proxy: Proxy) -> None:
    context = make(url=proxy.url(database_url), run_ttl_seconds=1.5, lease_interval_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(LeaseLostError) as caught, LeaseLock(context) as session:
        proxy.wedge()
        assert session.lease_lost is not None
        assert session.lease_lost.wait(10)
        took = time.monotonic() - started
    assert caught.value.reason is LossReason.UNCONFIRMED
    # Not a measurement: the loss must come at the TTL, and not when the hanging call gives up.
    assert took < 5
    assert time.monotonic() - started - took < 6, "leaving takes at most 5 s"


def test_a_database_that_is_away_at_the_end_is_a_warning(
    make: MakeContext, database_url: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with LeaseLock(make(url=proxy.url(database_url), run_ttl_seconds=60)):
        proxy.refuse()
        proxy.cut()
    assert "could not be freed" in caplog.text


def test_a_table_with_schema_and_odd_names(make: MakeContext, db: Connection) -> None:
    db.execute('CREATE SCHEMA "my.schema"')
    db.execute(
        'CREATE TABLE "my.schema"."Ta""b%s" (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)'
    )
    with LeaseLock(make(table_parts=["my.schema", 'Ta"b%s'])) as session:
        assert session.fencing_token


def test_between_two_renewals_no_transaction_is_open(make: MakeContext, db: Connection) -> None:
    with LeaseLock(make()):
        state = db.execute(
            "SELECT state, xact_start IS NOT NULL AND state <> 'idle' FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'dislock job'"
        ).fetchall()
    assert state == [("idle", False)]


def test_a_loss_is_never_told_without_its_reason(make: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event may be set by whoever enters, before the renewing thread had any time."""
    monkeypatch.setattr(Holding, "_start_keeping", lambda self: None)
    acquire = Holding.acquire

    def held_up(self: Holding) -> bool:
        held = acquire(self)
        lease = self.acquisition.lease
        assert lease is not None
        from dislock.drivers.clock import clock

        until(lambda: lease.overdue(clock()))
        return held

    monkeypatch.setattr(Holding, "acquire", held_up)
    with pytest.raises(LeaseLostError), LeaseLock(make(run_ttl_seconds=0.3, lease_interval_seconds=0.1)) as session:
        assert session.lease_lost is not None
        assert session.lease_lost.is_set()
        assert session.loss is not None
        assert session.loss_reason is LossReason.UNCONFIRMED
