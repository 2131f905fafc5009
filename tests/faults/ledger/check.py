"""The checker: what the files of a ledger prove, and what they disprove. It asks nobody else."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import combinations

from tests.faults.ledger.record import Failover, Ledger, Work, Wrapper

LOST = 75
#: A wrapper that was stopped or killed cannot end its command: what happens then is documented, and for this one alone.
EXCUSES = {"pause", "kill"}
#: Its row was changed by force, or the server's clock was set forward past the row's end: somebody else may begin
#: before the holder has heard of it.
TAKEN_AWAY = EXCUSES | {"force", "clock"}
#: What a wrapper says that ends with its command's own code, and does not know what became of its row.
UNANSWERED = ("could not be freed", "the answer to the release")
#: Lines of standard error for one wrapper: warnings about a clock, a tick and a release, and why it ended.
LINES = 4


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    """Overlaps of a run whose wrapper was paused or killed, or whose row was taken from it by force or by the server's
    clock."""
    forgotten: list[str] = field(default_factory=list)
    """Acquisitions that an asynchronous failover has lost while their commands ran."""
    revealed: list[str] = field(default_factory=list)
    """Overlaps that a failover has allowed, by losing an acquisition or its last renewals."""
    sealed_again: list[str] = field(default_factory=list)
    """Ticks that were sealed a second time, after a failover had lost the first seal."""
    counts: Counter[str] = field(default_factory=Counter)


def check(ledger: Ledger, *, forgetful: bool = False) -> Verdict:
    """``forgetful``: a failover that is not in the ledger may have lost what was confirmed, whatever it was."""
    verdict = Verdict()
    owners = Counter(wrapper.owner for wrapper in ledger.wrappers)
    # Process numbers come round again after a while; then a name does not tell whose run it was.
    wrappers = {wrapper.owner: wrapper for wrapper in ledger.wrappers if owners[wrapper.owner] == 1}
    works = [work for work in ledger.works if owners[work.owner] <= 1]
    for name in ledger.unreadable:
        verdict.violations.append(f"{name} cannot be read")
    _check_order(works, wrappers, ledger, verdict, forgetful=forgetful)
    for failover in ledger.failovers:
        _check_failover(failover, works, wrappers, ledger.ttl, verdict)
    _check_seals(works, wrappers, ledger.failovers, verdict, forgetful=forgetful)
    _check_codes(ledger, {work.owner: work for work in works}, wrappers, verdict)
    for work in works:
        if work.owner not in wrappers:
            verdict.violations.append(f"{work} belongs to no wrapper")
    verdict.counts["runs"] = len(works)
    return verdict


def _check_order(
    works: list[Work], wrappers: dict[str, Wrapper], ledger: Ledger, verdict: Verdict, *, forgetful: bool
) -> None:
    """No two runs at one time, and each token larger than all before: in the order in which the commands began."""
    tokens = Counter(work.token for work in works)
    verdict.violations += [f"token {token} was given {times} times" for token, times in tokens.items() if times > 1]
    for earlier, later in combinations(works, 2):
        overlap = later.start < earlier.last
        fell = later.token <= earlier.token
        if not overlap and not fell:
            continue
        # The one that went on too long has the smaller token: whatever compares them refuses its work.
        loser, winner = (later, earlier) if fell else (earlier, later)
        # Held up between its claim and its start, it begins after its successor; nothing else is a reason for that.
        excused = (EXCUSES if fell else TAKEN_AWAY) & _done(loser, wrappers)
        lost = (forgetful and not fell) or _forgotten(loser, winner, ledger)
        if excused or lost:
            if overlap:
                (verdict.excused if excused else verdict.revealed).append(f"{loser} and {winner}")
        elif overlap:
            troubled = TAKEN_AWAY & (_done(earlier, wrappers) | _done(later, wrappers))
            verdict.violations.append(f"two at one time: {earlier} and {later} ({sorted(troubled)})")
        else:
            verdict.violations.append(f"the token fell: {earlier}, then {later}")
        if overlap:
            _check_end(loser, wrappers, verdict)


def _forgotten(loser: Work, winner: Work, ledger: Ledger) -> bool:
    """Whether an asynchronous failover between the two acquisitions gave the second one what the first one had."""
    for failover in ledger.failovers:
        between = loser.token < failover.clock <= winner.token
        # The acquisition was lost, or its last renewals were, so that the row ended before.
        free = failover.owner != loser.owner or (failover.ends is not None and failover.ends <= winner.token)
        # No renewal was confirmed since, so it has stopped in time.
        if not failover.synchronous and between and free and loser.last <= failover.at + ledger.ttl:
            return True
    return False


def _check_end(loser: Work, wrappers: dict[str, Wrapper], verdict: Verdict) -> None:
    """Whose lock another had reports no end of its command as if it were well, unless nobody answered when it ended."""
    wrapper = wrappers.get(loser.owner)
    if wrapper is None or wrapper.code != wrapper.wanted:
        return
    if EXCUSES & set(wrapper.done) or not any(words in wrapper.err for words in UNANSWERED):
        verdict.violations.append(f"{wrapper} reports its command's success on a lock that another had")


def _check_failover(
    failover: Failover, works: list[Work], wrappers: dict[str, Wrapper], ttl: float, verdict: Verdict
) -> None:
    """A synchronous failover loses no acquisition. If another one did, the run stops in time and reports the loss."""
    for work in works:
        # Tokens of both servers can be compared where the clock is not set back, which it is with a synchronous one.
        before = work.start < failover.at if failover.synchronous else work.token < failover.clock
        if not before or work.last <= failover.at or work.owner == failover.owner:
            continue
        if TAKEN_AWAY & _done(work, wrappers):
            continue
        if failover.synchronous:
            verdict.violations.append(f"a synchronous failover lost {work}: {failover}")
            continue
        verdict.forgotten.append(f"{work}: {failover}")
        if work.last > failover.at + ttl:
            verdict.violations.append(f"{work} went on without the lock that was lost: {failover}")
        _check_end(work, wrappers, verdict)


def _check_seals(
    works: list[Work],
    wrappers: dict[str, Wrapper],
    failovers: list[Failover],
    verdict: Verdict,
    *,
    forgetful: bool,
) -> None:
    """No tick has two successes; an asynchronous failover between them may have lost the first one's seal."""
    sealed = defaultdict(list)
    for work in works:
        if work.tick and work.owner in wrappers and wrappers[work.owner].code == 0:
            sealed[work.tick].append(work)
    verdict.counts["sealed"] = len(sealed)
    for tick, successes in sealed.items():
        for first, second in combinations(successes, 2):
            lost = any(
                not failover.synchronous and first.token < failover.clock <= second.token for failover in failovers
            )
            entry = f"{tick} succeeded twice: {first} and {second}"
            (verdict.sealed_again if lost or forgetful else verdict.violations).append(entry)


def _done(work: Work, wrappers: dict[str, Wrapper]) -> set[str]:
    return set(wrappers[work.owner].done) if work.owner in wrappers else set()


def _check_codes(ledger: Ledger, works: dict[str, Work], wrappers: dict[str, Wrapper], verdict: Verdict) -> None:
    """No exit code lies: each has a reason in the files, and the reason has no other code."""
    for wrapper in wrappers.values():
        work = works.get(wrapper.owner)
        kind, lie = _judge(wrapper, work, ledger)
        verdict.counts[kind] += 1
        if lie:
            verdict.violations.append(f"{lie}: {wrapper} {work or '(no run)'}")
        if "Traceback" in wrapper.err or wrapper.err.count("\n") > LINES:
            verdict.violations.append(f"too much on standard error: {wrapper}")


def _judge(wrapper: Wrapper, work: Work | None, ledger: Ledger) -> tuple[str, str]:
    """What became of a wrapper, and what is untrue about its exit code."""
    code = wrapper.code
    if code == 137:
        # Its own, or that of a command that was killed for a loss and would have had to say 75.
        return "killed", "" if "kill" in wrapper.done else "killed by nobody"
    if code == 143:
        return "terminated", "" if "term" in wrapper.done else "terminated by nobody"
    if code == LOST:
        told = "lost" in wrapper.err or "was not sealed" in wrapper.err
        return "lost", "" if told else "a loss without a word"
    if code == 1:
        kind = "waited" if "gave up after" in wrapper.err else "failed"
        return kind, "a failure to get the lock, and a run" if work else "" if wrapper.err else "no word why"
    if work and code == wrapper.wanted:
        return "done", "" if work.finished else "the command did not come to its end"
    if code == 0 and not work:
        # Silence says that another had the lock: there must have been one, or a row that one had left behind.
        return "skipped", "" if _somebody(wrapper, ledger) else "skipped for nobody"
    return "other", f"no reason for {code}"


def _somebody(wrapper: Wrapper, ledger: Ledger) -> bool:
    """Whether another may have held the row while this one looked."""
    for other in ledger.wrappers:
        # Who skipped itself held nothing.
        skipped = other.code == 0 and not any(work.owner == other.owner for work in ledger.works)
        # A row outlives its wrapper by the TTL at most, and an abandoned statement may write it a little later.
        in_time = other.began < wrapper.ended and wrapper.began < other.ended + 3 * ledger.ttl
        if other is not wrapper and not skipped and in_time:
            return True
    return False
