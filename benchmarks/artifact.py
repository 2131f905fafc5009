"""The one file beside a plain shiv build, a virtual environment, and the published package of the same name.

Everything that is compared runs in turn, round after round, so that other load on the machine meets all alike; a ratio
is the median of the ratios round by round. Beside it stands that of processor time, which other load disturbs less.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import peers
from benchmarks.bench import Bench, run

VERSION = ("--version",)
RUN = ("DATABASE_URL", "true")
#: What docs/artifact.md promises, in megabytes.
SIZE, WRITES = 27.0, 16.0


@dataclass
class Contender:
    """One way to run dislock."""

    name: str
    command: list[str]
    cache: str = ""
    """The variable that says where it unpacks itself, if it does."""
    times: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)

    def run(self, what: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        used = run([*self.command, *arguments], environment)
        if used.code:
            sys.exit(f"{self.name} {' '.join(arguments)}: exit code {used.code}")
        self.times.setdefault(what, []).append(used.seconds)
        self.processor.setdefault(what, []).append(used.processor)

    def median(self, what: str) -> float:
        return statistics.median(self.times[what])


#: What the file of plain shiv is made of: the same as ours.
LOCKS = tuple(peers.ROOT / "build" / "zipapp" / f"{name}.lock" for name in ("packages", "natives"))


def measure(bench: Bench) -> None:
    if bench.quick:
        _sizes(bench)
        return
    assert bench.pyz
    url = bench.database()
    _compare(bench, url, _contenders(bench, bench.pyz))


def _sizes(bench: Bench) -> None:
    """Without a second to lose: how large the file is, and what its first run writes."""
    if not bench.pyz:
        bench.say("no dist/dislock.pyz, so nothing of the file is measured; build/pyz makes it")
        return
    table = bench.table("artifact", "The one file")
    cache = bench.folder / "first"
    environment = {**bench.environment(bench.database()), "XDG_CACHE_HOME": str(cache)}
    Contender("dislock.pyz", [str(bench.pyz)]).run("first", RUN, environment)
    for what, value, limit in (
        ("size of the file", bench.pyz.stat().st_size, SIZE),
        ("a first run writes", _written(cache), WRITES),
    ):
        table.add(what, "dislock.pyz", "", "MB", value / 1e6)
        bench.at_most(f"{what}, bytes", value, int(limit * 1e6))


def _contenders(bench: Bench, pyz: Path) -> dict[str, Contender]:
    """Ours, and what it is measured against; made once and kept below .cache."""
    shiv, plain, staged = peers.programs("shiv"), peers.STORE / "plain.pyz", peers.STORE / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    subprocess.run(
        [str(shiv / "python"), "-m", "pip", "install", "-q", "--no-deps", "--target", str(staged), str(peers.ROOT)],
        check=True,
    )
    subprocess.run(
        [str(shiv / "shiv"), "--reproducible", "--site-packages", str(staged), "-c", "dislock", "-o", str(plain),
         "--no-deps", "--require-hashes", *(f"--requirement={path}" for path in LOCKS)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    published = bench.peer("published")
    assert published
    return {
        "pyz": Contender("dislock.pyz", [str(pyz)], "XDG_CACHE_HOME"),
        "plain": Contender("plain shiv", [str(Path(sys.base_prefix) / "bin" / "python3"), str(plain)], "SHIV_ROOT"),
        "venv": Contender("virtual environment", [str(bench.product / "dislock")]),
        "peer": Contender("dislock of the index", [str(published / "dislock")]),
    }


def _compare(bench: Bench, url: str, found: dict[str, Contender]) -> None:
    pyz, plain, venv, peer = (found[name] for name in ("pyz", "plain", "venv", "peer"))
    rounds = bench.rounds(9)

    def environment() -> dict[str, str]:
        # Each run finds its slot free.
        return {**bench.environment(url), "SHIV_ROOT": f"{bench.folder}/shiv"}

    for number in range(max(5, rounds // 2) + 1):
        # In both orders, since what one has written reaches the disk while the next runs.
        for one in (pyz, plain) if number % 2 else (plain, pyz):
            shutil.rmtree(environment()[one.cache], ignore_errors=True)
            one.run("first", RUN, environment())
        if number == 0:
            # That one read the files from the disk.
            for one in (pyz, plain):
                one.times.clear()
                one.processor.clear()
    sizes = {one.name: _written(Path(environment()[one.cache])) for one in (pyz, plain)}
    for number in range(rounds + 1):
        for one in (pyz, venv, plain):
            one.run("warm --version", VERSION, environment())
        for one in (pyz, venv, plain, peer):
            one.run("warm run", RUN, environment())
        if number == 0:
            # That one wrote bytecode.
            for one in found.values():
                for figures in (one.times, one.processor):
                    for what in figures.keys() - {"first"}:
                        figures[what].clear()
    table = bench.table("artifact", "The one file: sizes, and ratios to other installations")
    for what, size, limit in (
        ("size of the file, MB", Path(pyz.command[0]).stat().st_size, SIZE),
        (f"a whole first run writes, MB (plain shiv: {sizes[plain.name] / 1e6:.1f})", sizes[pyz.name], WRITES),
    ):
        table.add(what, "", "elapsed", "", size / 1e6)
        table.add(what, "", "limit", "", limit)
        bench.limit(what, size / 1e6, limit)
    table.units = {"elapsed": "", "CPU": "", "limit": ""}
    rows: list[tuple[str, str, Contender, Contender, float | None]] = [
        ("first whole run ÷ plain shiv's", "first", pyz, plain, 0.5),
        ("warm `--version` ÷ virtual environment's", "warm --version", pyz, venv, 1.15),
        ("warm run ÷ virtual environment's", "warm run", pyz, venv, 1.15),
        ("plain shiv's warm run ÷ virtual environment's", "warm run", plain, venv, None),
        ("warm run ÷ the published `dislock`, pip-installed", "warm run", pyz, peer, 1.0),
    ]
    for text, what, one, other, promised in rows:
        elapsed, processor = ratios(what, one, other)
        table.add(text, "", "elapsed", "", elapsed)
        table.add(text, "", "CPU", "", processor)
        if promised is not None:
            table.add(text, "", "limit", "", promised)
            bench.limit(text, elapsed, promised)
    medians = ". ".join(
        f"{one.name} {what} {one.median(what) * 1000:.0f}" for one in found.values() for what in one.times
    )
    table.notes.append(f"Medians of {rounds} rounds in ms: {medians}.")


def ratios(what: str, one: Contender, other: Contender) -> tuple[float, float]:
    """Of the time that passed, and of processor time."""
    return median_ratio(one.times[what], other.times[what]), median_ratio(one.processor[what], other.processor[what])


def median_ratio(some: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(some, others, strict=True))


def _written(folder: Path) -> int:
    """Bytes on the disk."""
    return sum(entry.lstat().st_blocks * 512 for entry in folder.rglob("*"))
