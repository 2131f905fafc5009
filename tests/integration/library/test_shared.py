"""Many locks of one process share their connections, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from dislock import LeaseLock, LeaseLostError, LockContext, LockNotAcquiredError, LossReason, aio, holding
from dislock.drivers import shared, shared_courier
from dislock.drivers.aio import Tasks
from dislock.drivers.clock import clock
from dislock.drivers.targets import Database
from dislock.protocol.lease import Lease, Terms
from dislock.protocol.sharing_tickets import renew_many
from dislock.protocol.statements import MoveExpiry, Renewed
from dislock.protocol.steps import Connect, Done, Execute, Steps
from tests.conftest import KEY_VALUE
from tests.integration.library.conftest import MakeContext
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.statements import SETTINGS, watch
from tests.support.wait import until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
SHORT = {"run_ttl_seconds": 1.5, "lease_interval_seconds": 0.3}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dislock")]


class Program:
    """A program that holds locks, synchronous or asynchronous, told what to do from a test's thread."""

    def __init__(self, *, asynchronous: bool) -> None:
        self._loop = asyncio.new_event_loop() if asynchronous else None
        self._thread = threading.Thread(target=self._loop.run_forever) if self._loop else None
        if self._thread:
            self._thread.start()
        self._held: list[Any] = []

    def _do(self, coroutine: Any) -> Any:
        assert self._loop
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def enter(self, context: LockContext) -> Any:
        lock: Any = aio.LeaseLock(context) if self._loop else LeaseLock(context)
        session = self._do(lock.__aenter__()) if self._loop else lock.__enter__()
        self._held.append(lock)
        return session

    def leave(self, number: int = -1) -> None:
        lock = self._held.pop(number)
        if self._loop:
            self._do(lock.__aexit__(None, None, None))
        else:
            lock.__exit__(None, None, None)

    def close(self) -> None:
        with contextlib.suppress(LeaseLostError):
            while self._held:
                self.leave()
        if self._loop and self._thread:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@pytest.fixture(params=["sync", "async"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    program = Program(asynchronous=request.param == "async")
    yield program
    program.close()


@contextmanager
def locked(url: str, key: str) -> Iterator[None]:
    """Somebody's transaction has locked the row of a lease."""
    with psycopg.connect(url) as blocker:
        blocker.execute("SELECT FROM key_value WHERE key LIKE %s FOR UPDATE", (f"%:{key}",))
        yield
        blocker.rollback()


def ends(db: Connection) -> dict[str, Any]:
    return dict(db.execute("SELECT key, expire_at FROM key_value").fetchall())


# Beats


def rows_after(url: str, moves: Sequence[MoveExpiry]) -> tuple[Renewed, ...]:
    """What a beat of these answers."""

    def steps() -> Steps[Any]:
        assert isinstance((yield Connect(0, clock() + 10)), Done)
        answer = yield Execute(renew_many(moves, "5000ms"), clock() + 10)
        assert isinstance(answer, Done), answer
        return answer.rows

    async def main() -> Any:
        driver = Tasks(Database(url, "dislock"), ["key_value"])
        try:
            return await driver.run(steps())
        finally:
            await driver.close()

    rows: tuple[Renewed, ...] = asyncio.run(main())
    return rows


def test_a_beat_renews_what_its_owners_hold_and_nothing_else(db: Connection, database_url: str) -> None:
    """Each row is decided as ``MoveExpiry`` would decide it alone."""
    (now,) = db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone() or (0,)
    soon, late = now + 60_000_000, now + 90_000_000
    rows = {
        "ours": ("o:1", soon),
        "of an earlier try": ("o:1", soon + 1),
        "moved by a try whose answer was lost": ("o:1", late),
        "another's": ("o:2", soon),
        "with another end": ("o:1", soon + 7),
        "over": ("o:1", now - 1),
        "locked": ("o:1", soon),
        "endless": ("o:1", None),
    }
    for key, (owner, end) in rows.items():
        micros = "timestamptz 'epoch' + %s::float8 * interval '1 microsecond'"
        moment = micros if end else "coalesce(%s::timestamptz, 'infinity')"
        db.execute(f"INSERT INTO key_value VALUES (%s, %s, {moment})".encode(), (key, owner, end))
    keys = [*rows, "without a row"]
    moves = [MoveExpiry(key, "o:1", "9s", [now - 1 if key == "over" else soon, soon + 1], late) for key in keys]
    with psycopg.connect(database_url) as blocker:
        blocker.execute("SELECT FROM key_value WHERE key = 'locked' FOR UPDATE")
        renewed = {keys[row.number] for row in rows_after(database_url, moves)}
    assert renewed == {"ours", "of an earlier try", "moved by a try whose answer was lost"}
    moved = db.execute(
        "SELECT key FROM key_value WHERE expire_at = timestamptz 'epoch' + %s::float8 * interval '1 microsecond'",
        (late,),
    ).fetchall()
    assert {key for (key,) in moved} == renewed


def test_a_beat_is_safe_for_a_role_with_any_settings(db: Connection, database_url: str) -> None:
    db.execute("CREATE TABLE seen (value text)")
    db.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN new; END $$"
    )
    db.execute("INSERT INTO key_value VALUES ('k', 'o:1', clock_timestamp() + interval '1 h')")
    db.execute("CREATE TRIGGER note BEFORE UPDATE ON key_value FOR EACH ROW EXECUTE FUNCTION note()")
    row = db.execute("SELECT (extract(epoch FROM expire_at) * 1000000)::bigint FROM key_value").fetchone()
    assert row is not None
    url = psycopg.conninfo.make_conninfo(database_url, options="-c synchronous_commit=off")
    assert rows_after(url, [MoveExpiry("k", "o:1", "9s", [row[0]], row[0] + 1)])
    assert db.execute("SELECT value FROM seen").fetchall() == [("on",)]


# Together


@pytest.fixture(scope="module")
def counting() -> Iterator[Postgres]:
    with Postgres(SETTINGS) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE)
        yield server


def test_many_leases_need_two_connections_and_one_statement_at_a_time(
    make: MakeContext, counting: Postgres, program: Program
) -> None:
    """They are taken over two connections, and then renewed over one."""
    contexts = [make(url=counting.url(), lock_key=f"many-{n}", lease_interval_seconds=1.0) for n in range(60)]
    with watch(counting, "postgres") as traffic:
        sessions = [program.enter(context) for context in contexts]
    assert traffic.connections <= 2
    with psycopg.connect(counting.url(), autocommit=True) as look, watch(counting, "postgres") as traffic:
        before = ends(look)
        until(lambda: all(ends(look)[key] > end for key, end in before.items()))
    # Taken at different times, they are renewed at the same ones.
    assert len([text for text in traffic.statements if "SKIP LOCKED" in text]) < len(contexts) / 3
    assert len([name for name in threads() if name == "dislock-leases"]) <= 1
    assert not any(session.loss for session in sessions)


def test_with_nothing_to_do_there_is_no_thread_and_no_connection(
    make: MakeContext, program: Program, connections: Callable[[], int]
) -> None:
    for key in "ab":
        program.enter(make(lock_key=key))
    program.leave()
    program.leave()
    assert threads() == []
    until(lambda: connections() == 0)
    assert not shared_courier._couriers
    assert not shared._groups


def test_a_row_that_somebody_has_locked_delays_nobody_else(
    make: MakeContext, database_url: str, db: Connection, program: Program
) -> None:
    for key in ("locked", "free"):
        program.enter(make(lock_key=key, **SHORT))
    free = "cronjob-lock:lease:free"
    with locked(database_url, "locked"):
        first = ends(db)[free]
        until(lambda: (ends(db)[free] - first).total_seconds() > 2 * SHORT["run_ttl_seconds"])
        # Others are taken and freed meanwhile, and what is held by another is refused.
        program.enter(make(lock_key="new", **SHORT))
        program.leave()
        with pytest.raises(LockNotAcquiredError):
            program.enter(make(lock_key="free", owner="host:2", **SHORT))
    program.leave()
    with pytest.raises(LeaseLostError) as caught:
        program.leave()
    assert caught.value.reason is LossReason.UNCONFIRMED


def test_a_lease_that_was_skipped_is_asked_alone_and_kept(
    make: MakeContext, database_url: str, db: Connection, program: Program
) -> None:
    sessions = [program.enter(make(lock_key=key, run_ttl_seconds=20, lease_interval_seconds=0.1)) for key in "ab"]
    with locked(database_url, "a"):
        until(
            lambda: db.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone(),
            what="a renewal that waits alone",
        )
    before = ends(db)
    until(lambda: all(end > before[key] for key, end in ends(db).items()))
    assert not any(session.loss for session in sessions)


def test_one_row_taken_by_force_is_one_loss(make: MakeContext, db: Connection, program: Program) -> None:
    sessions = {key: program.enter(make(lock_key=key, lease_interval_seconds=0.1)) for key in "abc"}
    db.execute("UPDATE key_value SET value = 'thief:1' WHERE key LIKE '%:b'")
    until(lambda: sessions["b"].loss)
    assert sessions["b"].loss.reason is LossReason.TAKEN
    before = ends(db)
    until(lambda: all(end > before[key] or key.endswith(":b") for key, end in ends(db).items()))
    assert not sessions["a"].loss
    assert not sessions["c"].loss


def test_a_row_that_raises_takes_no_other_along(make: MakeContext, db: Connection, program: Program) -> None:
    sessions = {key: program.enter(make(lock_key=key, **SHORT)) for key in "abc"}
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF new.key LIKE '%:b' THEN RAISE 'not this one'; END IF; RETURN new; END $$"
    )
    db.execute("CREATE TRIGGER refuse BEFORE UPDATE ON key_value FOR EACH ROW EXECUTE FUNCTION refuse()")
    until(lambda: sessions["b"].loss)
    assert "not this one" in str(sessions["b"].loss)
    first = ends(db)
    until(lambda: (ends(db)["cronjob-lock:lease:a"] - first["cronjob-lock:lease:a"]).total_seconds() > 2)
    assert not sessions["a"].loss
    assert not sessions["c"].loss


def test_a_database_that_hangs_costs_each_lease_no_more_than_its_own_time(
    make: MakeContext, database_url: str, proxy: Proxy, program: Program
) -> None:
    url = proxy.url(database_url)
    long = program.enter(make(url=url, lock_key="long", run_ttl_seconds=60, lease_interval_seconds=0.3))
    short = program.enter(make(url=url, lock_key="short", **SHORT))
    proxy.wedge()
    until(lambda: short.loss)
    assert long.loss is None
    proxy.resume()
    with pytest.raises(LeaseLostError):
        program.leave()


def test_a_silent_connection_costs_another_lease_half_a_second(
    make: MakeContext, database_url: str, db: Connection, proxy: Proxy, program: Program
) -> None:
    """The answer to the renewal of a long lease never comes: it is waited for longer than the short one lasts."""
    url = proxy.url(database_url)
    program.enter(make(url=url, lock_key="long", run_ttl_seconds=60, lease_interval_seconds=1))
    short = program.enter(make(url=url, lock_key="short", run_ttl_seconds=4, lease_interval_seconds=0.5))
    until(proxy.lose_answer(b"lease:long", then_cut=False).is_set)
    first = ends(db)["cronjob-lock:lease:short"]
    until(lambda: short.loss or (ends(db)["cronjob-lock:lease:short"] - first).total_seconds() > 4)
    assert short.loss is None


def test_nothing_stays_of_a_lease_whose_renewal_could_not_be_stopped(
    make: MakeContext,
    connections: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(record: logging.LogRecord) -> bool:
        if "is renewed" in record.getMessage():
            begun.set()
            end.wait(20)
        return True

    monkeypatch.setattr(holding, "STOP_SECONDS", 0.1)
    logger = logging.getLogger("dislock")
    logger.addFilter(slow)
    caplog.set_level(logging.DEBUG, "dislock")
    try:
        lock = LeaseLock(make(lease_interval_seconds=0.1))
        lock.__enter__()
        assert begun.wait(20)
        with pytest.raises(LeaseLostError, match="could not be stopped"):
            lock.__exit__(None, None, None)
    finally:
        end.set()
        logger.removeFilter(slow)
    until(lambda: not threads() and not connections())


def test_leases_of_other_tables_do_not_share(make: MakeContext, db: Connection, program: Program) -> None:
    db.execute("CREATE TABLE other (LIKE key_value INCLUDING ALL)")
    program.enter(make())
    program.enter(make(table_parts=["other"]))
    assert len(ends(db)) == 1
    (count,) = db.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dislock job'"
    ).fetchone() or (0,)
    assert count == 2


# Forks and loops


def test_a_forked_child_shares_nothing_with_its_parent(
    make: MakeContext, db: Connection, live: Callable[[], set[str]]
) -> None:
    with ExitStack() as stack:
        for key in "ab":
            stack.enter_context(LeaseLock(make(lock_key=key, **SHORT)))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # A lock of its own, and one that the parent holds.
                with LeaseLock(make(lock_key="c")):
                    code = 2
                with pytest.raises(LockNotAcquiredError):
                    LeaseLock(make(lock_key="a", owner="host:2")).__enter__()
                stack.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        before = ends(db)
        until(lambda: all(end > before[key] for key, end in ends(db).items() if not key.endswith(":c")))
    assert live() == set()


# What was never closed is closed by the collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_loop_has_its_own_and_a_closed_one_none(make: MakeContext, connections: Callable[[], int]) -> None:
    async def forgotten() -> None:
        await aio.LeaseLock(make(lock_key="forgotten")).__aenter__()

    async def used() -> None:
        async with aio.LeaseLock(make()):
            assert {where[1] for where in shared._groups} == {asyncio.get_running_loop()}

    loop = asyncio.new_event_loop()
    loop.run_until_complete(forgotten())
    # Without a word to its tasks: nobody cancels them, and nobody closes what they hold.
    loop.close()
    asyncio.run(used())
    assert not shared._groups
    gc.collect()
    until(lambda: connections() == 0)


def test_a_lease_whose_terms_are_known_is_what_a_beat_moves() -> None:
    """The statement of a beat is made of the statements of its leases."""
    lease = Lease(Terms("k", "o:1", 10.0, 3.0), sent=100.0, acquired=5, expires=10_000_005)
    move = lease.renewal(103.0, 105.0)
    assert renew_many([move], "1ms").expires == [move.expires] * 2
