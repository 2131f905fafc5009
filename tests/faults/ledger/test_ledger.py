"""The ledger for a while, and proof that its checker finds what it is there to find."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ci import in_ci
from tests.faults.ledger.__main__ import run
from tests.faults.ledger.check import Verdict, check
from tests.faults.ledger.record import Failover, Ledger, Work, Wrapper, append

pytestmark = pytest.mark.integration
#: For both kinds of replication together: three and a half minutes at most with CI=true, one and a half otherwise, with
#: the start and the end of it all.
SECONDS = float(os.environ.get("DISLOCK_LEDGER_SECONDS", "150" if in_ci() else "40"))
SEED = int(os.environ.get("DISLOCK_LEDGER_SEED", "0")) or int.from_bytes(os.urandom(3), "big")


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_nobody_twice_and_no_exit_code_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, synchronous: bool
) -> None:
    report = run(tmp_path, SECONDS / 2, SEED, synchronous=synchronous)
    with capsys.disabled():
        print(f"\n{report}")
    assert not report.verdict.violations, str(report)
    assert report.verdict.counts["runs"], "a ledger without a run proves nothing"
    assert any("failover" in kind for kind in report.faults), "a ledger without a failover proves little"


def test_the_checker_catches_a_program_that_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same world, the same files, and in place of the lock a program that just runs its command."""
    unlocked = Path(__file__).with_name("unlocked.py")
    monkeypatch.setenv("DISLOCK_TEST_COMMAND", f"{sys.executable} {unlocked}")
    report = run(tmp_path, 10.0, 1, wrappers=8)
    assert any("two at one time" in violation for violation in report.verdict.violations)


def wrapper(number: int, began: float, ended: float, code: int = 0, **more: object) -> Wrapper:
    values = {"err": "dislock: warning: the lease was lost\n" if code == 75 else "", "wanted": 0, **more}
    return Wrapper(owner=f"host:{number}", began=began, ended=ended, code=code, **values)  # type: ignore[arg-type]


def work(number: int, start: float, last: float, *, finished: bool = True) -> Work:
    return Work(token=number, owner=f"host:{number}", start=start, last=last, finished=finished)


def verdict(wrappers: list[Wrapper], works: list[Work]) -> tuple[list[str], int]:
    works.sort(key=lambda each: each.start)
    result = check(Ledger(4.0, wrappers, [], works))
    return result.violations, len(result.excused)


def test_runs_in_turn_are_well() -> None:
    wrappers = [wrapper(1, 0, 5), wrapper(2, 4, 9), wrapper(3, 4, 5)]
    assert verdict(wrappers, [work(1, 1, 4), work(2, 5, 8)]) == ([], 0)


def test_two_at_one_time_is_a_violation() -> None:
    found, _ = verdict([wrapper(1, 0, 5), wrapper(2, 1, 9)], [work(1, 1, 4), work(2, 3, 8)])
    assert any("two at one time" in violation for violation in found)


def test_two_at_one_time_of_a_paused_wrapper_is_excused_if_its_token_is_the_smaller_one() -> None:
    paused = wrapper(1, 0, 9, 75, done=["pause"])
    assert verdict([paused, wrapper(2, 1, 9)], [work(1, 1, 6, finished=False), work(2, 5, 8)]) == ([], 1)
    paused = wrapper(3, 0, 9, 75, done=["pause"])
    found, _ = verdict([paused, wrapper(2, 1, 9)], [work(3, 1, 6, finished=False), work(2, 5, 8)])
    assert any("two at one time" in violation for violation in found)


@pytest.mark.parametrize("word", ["force", "clock"])
def test_a_run_that_lost_its_row_may_be_overlapped_and_overlaps_nobody(word: str) -> None:
    robbed = wrapper(1, 0, 9, 75, done=[word])
    assert verdict([robbed, wrapper(2, 1, 9)], [work(1, 1, 6, finished=False), work(2, 5, 8)]) == ([], 1)
    robbed = wrapper(2, 1, 9, 75, done=[word])
    found, _ = verdict([wrapper(1, 0, 9), robbed], [work(1, 1, 6), work(2, 5, 8, finished=False)])
    assert any("two at one time" in violation for violation in found)


def test_a_pause_of_the_other_one_is_no_excuse() -> None:
    wrappers = [wrapper(1, 0, 9, 75), wrapper(2, 1, 9, 75, done=["pause"])]
    found, _ = verdict(wrappers, [work(1, 1, 6, finished=False), work(2, 5, 8, finished=False)])
    assert any("two at one time" in violation for violation in found)


def test_a_server_that_forgets_excuses_an_overlap_only_if_the_tokens_tell() -> None:
    ledger = Ledger(4.0, [wrapper(1, 0, 9, 75), wrapper(2, 1, 9)], [], [work(1, 1, 6, finished=False), work(2, 5, 8)])
    assert check(ledger).violations
    assert len(check(ledger, forgetful=True).revealed) == 1
    ledger = Ledger(4.0, [wrapper(3, 0, 9, 75), wrapper(2, 1, 9)], [], [work(3, 1, 6, finished=False), work(2, 5, 8)])
    assert check(ledger, forgetful=True).violations


#: What the servers of these ledgers show of a lease that had 1 for its token, and of the one that came after it.
FIRST, SECOND = work(1, 1, 6, finished=False), work(9, 5, 8)


def after(
    failover: Failover, first: Wrapper | None = None, earlier: Work = FIRST, later: Work = SECOND
) -> tuple[Verdict, str]:
    """The verdict on a failover between two runs, and its violations."""
    works = sorted([earlier, later], key=lambda each: each.start)
    wrappers = [first or wrapper(earlier.token, 0, 7, 75), wrapper(later.token, 4, 9)]
    result = check(Ledger(4.0, wrappers, [], works, failovers=[failover]))
    return result, "\n".join(result.violations)


@pytest.mark.parametrize("row", [(None, None), ("host:0", 2)])
def test_an_acquisition_that_an_asynchronous_failover_lost_is_counted_and_revealed_by_the_tokens(
    row: tuple[str | None, int | None],
) -> None:
    result, found = after(Failover(3, False, 5, *row))
    assert not found
    assert (len(result.forgotten), len(result.revealed), len(result.excused)) == (1, 1, 0)


def test_an_acquisition_that_was_lost_counts_also_where_nobody_came_next_in_time() -> None:
    result, found = after(Failover(3, False, 5, None, None), later=work(9, 7, 8))
    assert not found
    assert (len(result.forgotten), len(result.revealed)) == (1, 0)


def test_an_acquisition_that_an_asynchronous_failover_kept_is_not_overlapped_before_its_end() -> None:
    result, found = after(Failover(3, False, 5, "host:1", 9))
    assert (found, len(result.forgotten), len(result.revealed)) == ("", 0, 1)
    _, found = after(Failover(3, False, 5, "host:1", 10))
    assert "two at one time" in found


def test_an_acquisition_that_began_on_the_same_server_may_not_overlap() -> None:
    for clock in (1, 10):
        _, found = after(Failover(3, False, clock, None, None))
        assert "two at one time" in found


def test_a_lost_acquisition_whose_token_is_not_the_smaller_one_is_a_violation() -> None:
    for clock in (1, 10):
        _, found = after(Failover(3, False, clock, None, None), earlier=work(9, 1, 6), later=work(1, 5, 6.5))
        assert "two at one time" in found
        _, found = after(Failover(3, False, clock, None, None), earlier=work(9, 1, 4), later=work(1, 5, 6.5))
        assert "the token fell" in found


def test_a_lost_acquisition_whose_command_begins_after_its_successor_is_revealed_too() -> None:
    result, found = after(Failover(3, False, 5, None, None), earlier=work(1, 6, 7, finished=False))
    assert (found, len(result.forgotten), len(result.revealed)) == ("", 1, 1)


def test_a_run_that_goes_on_after_the_end_of_a_lost_lease_is_a_violation() -> None:
    _, found = after(Failover(3, False, 5, None, None), earlier=work(1, 1, 7.5, finished=False), later=work(9, 8, 9))
    assert "went on without the lock" in found


@pytest.mark.parametrize("code", [0, 7])
def test_a_lost_acquisition_that_is_not_reported_is_a_violation_unless_nobody_answered(code: int) -> None:
    lost = Failover(3, False, 5, None, None)
    ran = work(1, 1, 4)
    _, found = after(lost, wrapper(1, 0, 5, code, wanted=code), earlier=ran)
    assert "on a lock that another had" in found
    unfreed = "dislock: warning: the lease could not be freed (no answer in time)\n"
    _, found = after(lost, wrapper(1, 0, 5, code, wanted=code, err=unfreed), earlier=ran)
    assert not found


def test_an_acquisition_that_a_synchronous_failover_lost_is_a_violation_with_an_overlap_and_without() -> None:
    for later in (SECOND, work(9, 7, 8)):
        result, found = after(Failover(3, True, 5, None, None), later=later)
        assert "a synchronous failover lost" in found
        assert not result.forgotten
        _, found = after(Failover(3, True, 5, "host:1", 9), later=later)
        assert ("two at one time" in found) == (later is SECOND)
        assert "failover lost" not in found


@pytest.mark.parametrize("word", ["pause", "kill", "force", "clock"])
def test_a_failover_loses_nothing_of_what_was_taken_away_before(word: str) -> None:
    for synchronous in (True, False):
        result, found = after(Failover(3, synchronous, 5, None, None), wrapper(1, 0, 7, 75, done=[word]))
        assert not found
        assert (len(result.forgotten), len(result.revealed), len(result.excused)) == (0, 0, 1)


@pytest.mark.parametrize("at", [0.5, 6])
def test_a_failover_before_or_after_a_run_loses_nothing_of_it(at: float) -> None:
    result, found = after(Failover(at, True, 5, None, None), later=work(9, 7, 8))
    assert (found, result.forgotten) == ("", [])


def sealed_twice(*failovers: Failover) -> Verdict:
    works = [Work(token, f"host:{token}", token, token + 1, finished=True, tick="03:00") for token in (1, 5)]
    return check(Ledger(4.0, [wrapper(1, 0, 3), wrapper(5, 4, 7)], [], works, failovers=list(failovers)))


def test_a_tick_that_was_sealed_is_not_sealed_again_unless_an_asynchronous_failover_came_between() -> None:
    for failovers in ([], [Failover(3, True, 4, None, None)], [Failover(7, False, 8, None, None)]):
        result = sealed_twice(*failovers)
        assert ["succeeded twice" in violation for violation in result.violations] == [True]
        assert not result.sealed_again
    result = sealed_twice(Failover(3, False, 4, None, None))
    assert (result.violations, len(result.sealed_again)) == ([], 1)


def test_success_on_a_lock_that_another_had_is_a_violation() -> None:
    for word, err in (("pause", ""), ("pause", "the lease could not be freed\n"), ("force", "")):
        robbed = wrapper(1, 0, 9, 0, done=[word], err=err)
        found, _ = verdict([robbed, wrapper(2, 1, 9)], [work(1, 1, 6), work(2, 5, 8)])
        assert any("success on a lock that another had" in violation for violation in found)


def test_a_token_that_falls_is_a_violation() -> None:
    found, _ = verdict([wrapper(2, 0, 4), wrapper(1, 5, 9)], [work(2, 1, 3), work(1, 6, 8)])
    assert any("the token fell" in violation for violation in found)


def test_a_token_twice_is_a_violation() -> None:
    again = Work(token=1, owner="host:2", start=6, last=8, finished=True)
    found, _ = verdict([wrapper(1, 0, 4), wrapper(2, 5, 9)], [work(1, 1, 3), again])
    assert any("token 1 was given 2 times" in violation for violation in found)


@pytest.mark.parametrize(
    ("liar", "ran"),
    [
        pytest.param(wrapper(1, 0, 5, 0), work(1, 1, 4, finished=False), id="a success that did not come to its end"),
        pytest.param(wrapper(1, 0, 5, 0), None, id="a skip for nobody"),
        pytest.param(wrapper(1, 0, 5, 75, err=""), work(1, 1, 4), id="a loss without a word"),
        pytest.param(wrapper(1, 0, 5, 75, err="the run succeeded\n"), work(1, 1, 4), id="a seal without a word"),
        pytest.param(wrapper(1, 0, 5, 1, err="no lock\n"), work(1, 1, 4), id="a failure that ran"),
        pytest.param(wrapper(1, 0, 5, 1), None, id="a failure without a word"),
        pytest.param(wrapper(1, 0, 5, 143), None, id="terminated by nobody"),
        pytest.param(wrapper(1, 0, 5, 137), None, id="killed by nobody"),
        pytest.param(wrapper(1, 0, 5, 7), work(1, 1, 4), id="another code than the command's"),
        pytest.param(wrapper(1, 0, 5, 0, err="Traceback\n"), work(1, 1, 4), id="a traceback"),
    ],
)
def test_an_exit_code_that_lies_is_a_violation(liar: Wrapper, ran: Work | None) -> None:
    assert verdict([liar], [ran] if ran else [])[0]


def test_a_ledger_is_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "ttl").write_text("4.0")
    (tmp_path / "faults").write_text('{"at": 1.0, "kind": "x", "target": "y"}\n')
    (tmp_path / "wrappers").write_text('{"owner": "h:1", "began": 1, "wanted": 0, "ended": 2, "code": 0}\n')
    # The last line of a command that was killed may be half of one.
    (tmp_path / "command-5-1").write_text("start 1.00 5 h:1\nalive 1.05 5 h:1\nali")
    (tmp_path / "command-6-2").write_text("alive 1.00 6 h:2\n")
    (tmp_path / "command-7-3").write_text("start 2.00 7 h:3 03:00\nend 2.05 7 h:3 03:00\n")
    failover = Failover(1.5, False, 6, None, None)
    append(tmp_path / "failovers", failover)
    ledger = Ledger.read(tmp_path)
    assert ledger.works == [
        Work(5, "h:1", 1.0, 1.05, finished=False),
        Work(7, "h:3", 2.0, 2.05, finished=True, tick="03:00"),
    ]
    assert ledger.failovers == [failover]
    assert ledger.unreadable == ["command-6-2"]
    assert [fault.kind for fault in ledger.faults] == ["x"]
