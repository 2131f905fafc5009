"""A wrapper that is killed or stopped: the command dies with it or is ended at once, and nobody's row is touched."""

from __future__ import annotations

import signal
from datetime import datetime, timezone

import psutil
import pytest

from tests.faults.conftest import LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration
SHORT = {**LEASE, "RUN_LOCK_TTL_SECONDS": 2}


def test_a_killed_wrapper_takes_its_command_along_and_the_row_ends_by_itself(
    start: Start, database_url: str, table: Table
) -> None:
    first = start(database_url, SHORT).up()
    assert first.send(signal.SIGKILL).ended() == (137, "")
    until(lambda: not alive(first.command), what="the death of the command")
    # Whether the row has ended yet is a race against the TTL; that the lock can be had again is not.
    until(lambda: not table.live(), PATIENCE, "the end of the row")
    second = start(database_url, SHORT).up()
    assert second.told["DISLOCK_FENCING_TOKEN"] > first.told["DISLOCK_FENCING_TOKEN"]
    assert second.tell().ended() == (0, "")


def test_a_killed_wrapper_leaves_a_slot_taken(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, SLOT).up()
    # A schedule-only wrapper has become the command.
    assert run.command == run.pid
    run.send(signal.SIGKILL)
    run.code()
    again = start(database_url, SLOT)
    assert again.ended() == (0, "")
    assert not again.started


@pytest.mark.parametrize("taken", [False, True])
def test_a_wrapper_stopped_past_its_ttl_ends_the_command_and_leaves_the_successor_alone(
    start: Start, database_url: str, table: Table, taken: bool
) -> None:
    first = start(database_url, SHORT).up()
    first.send(signal.SIGSTOP)
    until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED, what="the stop")
    until(lambda: not table.live(), PATIENCE, "the end of the row")
    second = start(database_url, SHORT).up() if taken else None
    assert alive(first.command), "a stopped wrapper cannot end its command: this is the overlap that is documented"
    first.send(signal.SIGCONT)
    code, err = first.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "was lost" in err
    assert not alive(first.command)
    if second:
        assert table.live() == {"lease": second.told["DISLOCK_OWNER"]}
        assert second.tell(7).ended() == (7, "")
    assert table.live() == {}


def test_a_stopped_command_is_ended_on_a_loss_all_the_same(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, LEASE).up()
    psutil.Process(run.command).suspend()
    table.ask("UPDATE key_value SET value = 'thief:1'")
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "thief:1" in err
    assert not alive(run.command)
    assert table.live() == {"lease": "thief:1"}


def test_a_command_that_ignores_sigterm_is_killed_before_the_row_ends(
    start: Start, server: Postgres, own_table: Table
) -> None:
    stubborn = ("sh", "-c", 'trap "" TERM; echo $$ >"$FOLDER/pid"; while :; do sleep 600; done')
    run = start(server.url(), LEASE, command=stubborn).up()
    first = own_table.ends()
    until(lambda: own_table.renewed(first), what="a renewal")
    frozen = server.processes()
    for process in frozen:
        process.suspend()
    until(lambda: not alive(run.command), PATIENCE, "the end of the command")
    ended = datetime.now(timezone.utc)
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    for process in frozen:
        process.resume()
    assert ended < own_table.ends(), "host and server have one clock here"


@pytest.mark.parametrize("taken", [False, True])
def test_a_command_that_succeeds_while_its_wrapper_is_stopped_past_its_ttl_is_no_success(
    start: Start, database_url: str, table: Table, taken: bool
) -> None:
    first = start(database_url, SHORT).up()
    first.send(signal.SIGSTOP)
    until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED, what="the stop")
    first.tell(0)
    until(lambda: not alive(first.command), PATIENCE, "the end of the command")
    until(lambda: not table.live(), PATIENCE, "the end of the row")
    second = start(database_url, SHORT).up() if taken else None
    code, err = first.send(signal.SIGCONT).ended()
    assert (code, err.count("\n")) == (75, 1)
    if second:
        assert table.live() == {"lease": second.told["DISLOCK_OWNER"]}
        assert second.tell().ended() == (0, "")


def test_a_wrapper_stopped_while_its_claim_is_answered_never_starts_its_command(
    start: Start, database_url: str, table: Table
) -> None:
    """The lease was good for two seconds, and they are over when it learns that it has it."""
    table.ask(
        "CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$"
    )
    table.ask("CREATE TRIGGER slow AFTER INSERT ON key_value FOR EACH ROW EXECUTE FUNCTION take_time()")
    run = start(database_url, SHORT)
    until(lambda: table.waiting("PgSleep"), PATIENCE, "the claim")
    run.send(signal.SIGSTOP)
    until(lambda: table.ask("SELECT 1 FROM key_value WHERE expire_at <= clock_timestamp()"), PATIENCE, "its end")
    code, err = run.send(signal.SIGCONT).ended()
    assert (code, err.count("\n")) == (1, 1)
    assert not run.started
