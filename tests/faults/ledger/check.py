"""The checker: what the files of a ledger prove, and what they disprove. It asks nobody else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.faults.ledger.record import Ledger, Work, Wrapper

LOST = 75
#: A wrapper that was stopped or killed cannot end its command: what happens then is documented, and for this one alone.
EXCUSES = {"pause", "kill"}
#: Its row was changed by force, or the server's clock was set forward past the row's end: somebody else may begin
#: before the holder has heard of it.
TAKEN_AWAY = EXCUSES | {"force", "clock"}
#: Lines of standard error for one wrapper: a warning about a clock or a release, and why it ended.
LINES = 3


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    """Overlaps of a run whose wrapper was paused or killed, or whose row was taken from it by force, by the server's
    clock, or by a server that forgets."""
    counts: Counter[str] = field(default_factory=Counter)


def check(ledger: Ledger, *, forgetful: bool = False) -> Verdict:
    """``forgetful``: a failover of the server may have lost what it had confirmed, so anybody may be overlapped."""
    verdict = Verdict()
    owners = Counter(wrapper.owner for wrapper in ledger.wrappers)
    # Process numbers come round again after a while; then a name does not tell whose run it was.
    wrappers = {wrapper.owner: wrapper for wrapper in ledger.wrappers if owners[wrapper.owner] == 1}
    works = [work for work in ledger.works if owners[work.owner] <= 1]
    for name in ledger.unreadable:
        verdict.violations.append(f"{name} cannot be read")
    _check_order(works, wrappers, verdict, forgetful=forgetful)
    _check_codes(ledger, {work.owner: work for work in works}, wrappers, verdict)
    for work in works:
        if work.owner not in wrappers:
            verdict.violations.append(f"{work} belongs to no wrapper")
    verdict.counts["runs"] = len(works)
    return verdict


def _check_order(works: list[Work], wrappers: dict[str, Wrapper], verdict: Verdict, *, forgetful: bool) -> None:
    """No two runs at one time, and each token larger than all before: in the order in which the commands began."""
    tokens = Counter(work.token for work in works)
    verdict.violations += [f"token {token} was given {times} times" for token, times in tokens.items() if times > 1]
    for index, later in enumerate(works):
        for earlier in works[:index]:
            troubled = TAKEN_AWAY & (_done(earlier, wrappers) | _done(later, wrappers))
            overlap = later.start < earlier.last
            if overlap and earlier.token < later.token and (forgetful or TAKEN_AWAY & _done(earlier, wrappers)):
                # The one that went on too long has the smaller token: whatever compares them refuses its work.
                verdict.excused.append(f"{earlier} and {later}")
            elif overlap and later.token < earlier.token and EXCUSES & _done(later, wrappers):
                verdict.excused.append(f"{later}, which was held up before its start, and {earlier}")
            elif overlap:
                verdict.violations.append(f"two at one time: {earlier} and {later} ({sorted(troubled)})")
            elif later.token <= earlier.token and not EXCUSES & _done(later, wrappers):
                verdict.violations.append(f"the token fell: {earlier}, then {later}")
            if overlap:
                _check_overlapped(min(earlier, later, key=lambda work: work.token), wrappers, verdict)


def _check_overlapped(loser: Work, wrappers: dict[str, Wrapper], verdict: Verdict) -> None:
    wrapper = wrappers.get(loser.owner)
    if wrapper and wrapper.code == wrapper.wanted:
        verdict.violations.append(f"{wrapper} reports its command's success on a lock that another had")


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
