"""The one file beside a plain shiv build, a virtual environment, and the package of the same name on the index.

Everything that is compared runs in turn, round after round, so that other load on the machine meets all alike; a ratio
is the median of the ratios round by round. Beside it stands that of processor time, which other load disturbs less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.conftest import KEY_VALUE
from tests.support.postgres import Postgres

ROOT = Path(__file__).resolve().parents[1]
PYZ = ROOT / "dist" / "dislock.pyz"
VERSION = ("--version",)
RUN = ("DATABASE_URL", "true")


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
        # Each run finds its slot free.
        environment = {**environment, "LOCK_KEY": uuid.uuid4().hex}
        argv = [*self.command, *arguments]
        quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        began = time.perf_counter()
        _, status, used = os.wait4(os.posix_spawn(argv[0], argv, environment, file_actions=quiet), 0)
        took = time.perf_counter() - began
        if status:
            sys.exit(f"{self.name} {' '.join(arguments)}: exit code {os.waitstatus_to_exitcode(status)}")
        self.times.setdefault(what, []).append(took)
        self.processor.setdefault(what, []).append(used.ru_utime + used.ru_stime)

    def median(self, what: str) -> float:
        return statistics.median(self.times[what])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="exit 1 where a ratio is beyond its limit")
    options = parser.parse_args()
    if not PYZ.is_file():
        sys.exit("no dist/dislock.pyz: run build/pyz")
    store = ROOT / ".cache" / "benchmarks"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, Postgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE.encode())
        (Path(name) / "bin").mkdir()
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (Path(name) / "bin" / version).symlink_to(Path(sys.base_prefix) / "bin" / version)
        environment = {
            "PATH": f"{name}/bin:/usr/bin:/bin",
            "HOME": name,
            "XDG_CACHE_HOME": f"{name}/cache",
            "SHIV_ROOT": f"{name}/shiv",
            "DATABASE_URL": server.url(),
            "CRON_SCHEDULE": "0 0 1 1 *",
        }
        compare(contenders(store), environment, options.rounds, options.check)


def contenders(store: Path) -> dict[str, Contender]:
    """Ours, and what it is measured against; made once and kept below .cache."""
    ours, peer = environment(store / "ours", str(ROOT)), environment(store / "peer", "dislock")
    shiv = environment(store / "shiv", "shiv")
    plain = store / "plain.pyz"
    locked = ("-r", str(ROOT / "build" / "pyz.lock"), "-r", str(ROOT / "build" / "natives.lock"))
    staged = store / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    subprocess.run(
        [str(shiv / "python"), "-m", "pip", "install", "-q", "--no-deps", "--target", str(staged), str(ROOT)],
        check=True,
    )
    subprocess.run(
        [str(shiv / "shiv"), "--reproducible", "--site-packages", str(staged), "-c", "dislock", "-o", str(plain),
         "--no-deps", "--require-hashes", *locked],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return {
        "pyz": Contender("dislock.pyz", [str(PYZ)], "XDG_CACHE_HOME"),
        "plain": Contender("plain shiv", [str(Path(sys.base_prefix) / "bin" / "python3"), str(plain)], "SHIV_ROOT"),
        "venv": Contender("virtual environment", [str(ours / "dislock")]),
        "peer": Contender("dislock of the index", [str(peer / "dislock")]),
    }


def environment(folder: Path, *requirements: str) -> Path:
    """The programs of a virtual environment with these packages, at their newest."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # Away from the checkout, where a package of that name would be found installed.
    subprocess.run([*pip, "--upgrade", *requirements], check=True, cwd=folder)
    return folder / "bin"


def compare(all_of_them: dict[str, Contender], environment: Mapping[str, str], rounds: int, check: bool) -> None:
    pyz, plain, venv, peer = (all_of_them[name] for name in ("pyz", "plain", "venv", "peer"))
    for number in range(max(5, rounds // 2) + 1):
        # In both orders, since what one has written reaches the disk while the next runs.
        for one in (pyz, plain) if number % 2 else (plain, pyz):
            shutil.rmtree(environment[one.cache], ignore_errors=True)
            one.run("first", RUN, environment)
        if number == 0:
            # That one read the files from the disk.
            for one in (pyz, plain):
                one.times.clear()
                one.processor.clear()
    sizes = {one.name: written(Path(environment[one.cache])) for one in (pyz, plain)}
    for number in range(rounds + 1):
        for one in (pyz, venv, plain):
            one.run("warm --version", VERSION, environment)
        for one in (pyz, venv, plain, peer):
            one.run("warm run", RUN, environment)
        if number == 0:
            # That one wrote bytecode.
            for one in all_of_them.values():
                for figures in (one.times, one.processor):
                    for what in figures.keys() - {"first"}:
                        figures[what].clear()
    rows: list[tuple[str, float, float | None, float | None]] = [
        ("size of the file, MB", PYZ.stat().st_size / 1e6, None, 27.0),
        ("a first run writes, MB", sizes[pyz.name] / 1e6, None, 16.0),
        ("  (plain shiv), MB", sizes[plain.name] / 1e6, None, None),
        ("first run / plain shiv's", *ratios("first", pyz, plain), 0.5),
        ("warm --version / virtual environment's", *ratios("warm --version", pyz, venv), 1.15),
        ("warm run / virtual environment's", *ratios("warm run", pyz, venv), 1.15),
        ("  (plain shiv's / virtual environment's)", *ratios("warm run", plain, venv), None),
        ("warm run / the index's dislock, pip-installed", *ratios("warm run", pyz, peer), 1.0),
    ]
    beyond = False
    print(f"{'':<48} {'elapsed':>8} {'CPU':>8}")
    for text, value, processor, limit in rows:
        verdict = "" if limit is None else f"   limit {limit:g}" + ("" if value <= limit else "   BEYOND")
        beyond |= limit is not None and value > limit
        print(f"{text:<48} {value:8.2f} {'' if processor is None else format(processor, '8.2f'):>8}{verdict}")
    print("\nmedians, ms: ", end="")
    print("; ".join(f"{c.name} {w} {c.median(w) * 1000:.0f}" for c in all_of_them.values() for w in c.times))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, {rounds} rounds")
    sys.exit(bool(check and beyond))


def ratios(what: str, one: Contender, other: Contender) -> tuple[float, float]:
    """Of the time that passed, and of processor time."""
    return median_ratio(one.times[what], other.times[what]), median_ratio(one.processor[what], other.processor[what])


def median_ratio(some: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(some, others, strict=True))


def written(folder: Path) -> int:
    """Bytes on the disk."""
    return sum(entry.lstat().st_blocks * 512 for entry in folder.rglob("*"))


if __name__ == "__main__":
    main()
