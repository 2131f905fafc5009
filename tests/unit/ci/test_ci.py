"""The test command's own judgement: a mistake here would let a failure pass for a success."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import ci.__main__ as command
from ci import kinds, pythons
from ci.environments import ROOT, Environment, clean_environ
from ci.kinds import Options, Outcome, floors_of
from ci.tally import Tally, read_junit, total
from tests.support.need import need

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="passes"/>
<testcase classname="a" name="fails"><failure message="no"/></testcase>
<testcase classname="a" name="breaks"><error message="no fixture"/></testcase>
<testcase classname="a" name="skips"><skipped message="no engine"/></testcase>
<testcase classname="a" name="teardown"/>
<testcase classname="a" name="teardown"><error message="left something"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    tally = read_junit(path)
    assert str(tally) == "1 passed, 3 failed, 1 skipped"
    assert tally.failures == ["a::fails", "a::breaks", "a::teardown"]
    assert tally.reasons == {"no engine": 1}


def test_tallies_add_up() -> None:
    assert str(total([Tally(1, 2, 3), Tally(10, 0, 1)])) == "11 passed, 2 failed, 4 skipped"


@pytest.mark.parametrize(
    ("in_ci", "line"), [("true", "0 passed, 1 failed, 0 skipped"), ("", "0 passed, 0 failed, 1 skipped")]
)
def test_what_the_machine_lacks_is_a_failure_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_ci: str, line: str
) -> None:
    monkeypatch.setenv("CI", in_ci)
    monkeypatch.setattr(Environment, "make", lambda _: None)
    monkeypatch.setattr(command, "outcomes", lambda *_: iter([Outcome("image", Tally(), lack="no engine")]))
    code = command.main(["image"])
    assert capsys.readouterr().out == f"image         not run: no engine\n{line}\n"
    assert code == (1 if in_ci else 0)


@pytest.mark.parametrize(("in_ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_need_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch, in_ci: str, outcome: type[BaseException]) -> None:
    monkeypatch.setenv("CI", in_ci)
    need(True, "never said")
    with pytest.raises(outcome, match="apt install faketime"):
        need(False, "apt install faketime")


@pytest.mark.parametrize(
    ("asked", "there", "not_there", "deep"),
    [
        ([], ("unit", "faults", "image", "docs"), ("minimum", "pythons", "cluster", "benchmarks"), False),
        (["all"], ("unit", "faults", "image", "docs", "minimum", "pythons", "cluster", "benchmarks"), (), True),
        (["fast"], ("lint", "unit", "simulation"), ("faults", "artifact", "image", "demo"), False),
        (["fast", "cluster"], ("lint", "unit", "cluster"), ("faults",), False),
        (["unit", "lint"], ("lint", "unit"), ("types", "integration"), False),
    ],
)
def test_which_kinds_are_run(asked: list[str], there: tuple[str, ...], not_there: tuple[str, ...], deep: bool) -> None:
    chosen, options = command._parse([*asked, "--", "-k", "x"])
    assert set(there) <= set(chosen)
    assert not set(not_there) & set(chosen)
    assert chosen == sorted(chosen, key=kinds.KINDS.index)
    assert options == Options(fast="fast" in asked, deep=deep, pytest=("-k", "x"))


def test_no_kind_goes_without_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Environment, "make", lambda _: None)
    monkeypatch.setattr(command, "outcomes", lambda kind, _: iter([Outcome(kind, Tally(passed=1))]))
    command.main([])
    *lines, left, _ = capsys.readouterr().out.splitlines()
    told = {line.split()[0] for line in lines} | set(left.removeprefix("left to `ci/test all`: ").split(", "))
    assert told == set(kinds.KINDS)


@pytest.mark.parametrize(
    ("given", "deep", "histories"), [(None, False, "2000"), (None, True, "10000"), ("30", True, "30")]
)
def test_ci_runs_more_histories_unless_told_how_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, deep: bool, histories: str
) -> None:
    if given is None:
        monkeypatch.delenv("SIMULATION_HISTORIES", raising=False)
    else:
        monkeypatch.setenv("SIMULATION_HISTORIES", given)
    asked = []

    def run(_name: str, _command: object, _limit: float, environ: dict[str, str]) -> tuple[int, Path]:
        asked.append(environ["SIMULATION_HISTORIES"])
        return 0, tmp_path

    monkeypatch.setattr(kinds, "run", run)
    kinds._pytest("simulation", Path(sys.executable), ["tests/simulation"], Options(deep=deep))
    assert asked == [histories]


@pytest.mark.parametrize(("given", "lacks"), [("", True), ("/a/cluster", False)])
def test_failovers_need_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, lacks: bool) -> None:
    (tmp_path / "tests/cluster").mkdir(parents=True)
    (tmp_path / "tests/cluster/test_failover.py").touch()
    monkeypatch.setattr(kinds, "ROOT", tmp_path)
    monkeypatch.setattr(kinds, "_pytest", lambda name, *_: Outcome(name, Tally(passed=1)))
    monkeypatch.setenv("DISLOCK_TEST_CLUSTER", given)
    (outcome,) = kinds.outcomes("cluster", Options())
    assert ("DISLOCK_TEST_CLUSTER" in outcome.lack, outcome.tally.passed) == ((True, 0) if lacks else (False, 1))


def test_the_contract_is_run_on_each_artifact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def run(name: str, command: list[str], *_: object) -> tuple[int, Path]:
        if "tests/contract" in command:
            asked.append((name, [word for word in command if word.startswith("--artifact=")]))
        return 0, tmp_path

    monkeypatch.setattr(kinds, "run", run)
    for kind in ("integration", "artifact", "image"):
        list(kinds.outcomes(kind, Options()))
    assert asked == [
        ("integration", []),
        ("contract-zipapp", ["--artifact=zipapp"]),
        ("contract-folder", ["--artifact=folder"]),
        ("contract-image", ["--artifact=image"]),
    ]


def test_pytest_that_breaks_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    options = Options(pytest=("--no-such-option",))
    outcome = kinds._pytest("broken", Path(sys.executable), [str(tmp_path)], options)
    assert (outcome.tally.failed, "--no-such-option" in outcome.trouble) == (1, True)


def test_the_floors_are_those_of_the_metadata() -> None:
    text = 'name = "x"\ndependencies = [\n  "psycopg[binary]>=3.1",\n  # why\n  "croniter>=6.1",\n  "tzdata",\n]\n'
    assert floors_of(text) == ["psycopg[binary]==3.1", "croniter==6.1"]
    assert len(floors_of((ROOT / "pyproject.toml").read_text())) >= 3


def test_interpreters_are_named_by_colons_or_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISLOCK_TEST_PYTHONS", f"/a/python:/b/python {sys.executable}\n/c/python")
    assert pythons.named() == ["/a/python", "/b/python", sys.executable, "/c/python"]
    own = pythons.probe(sys.executable)
    assert own is not None
    assert own.native
    assert own.version == sys.version_info[:2]
    assert pythons.probe("/a/python") is None


def test_a_developers_settings_do_not_reach_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ("PGHOST", "PGSERVICEFILE", "PYTHONPATH", "PYTEST_ADDOPTS", "LOCK_KEY", "CRON_TZ", "RUN_LOCK_TTL_SECONDS")
    kept = ("DISLOCK_TEST_PYTHONS", "TEST_DATABASE_URL", "PIP_INDEX_URL", "CI", "HOME", "PATH")
    for name in (*foreign, *kept):
        monkeypatch.setenv(name, "x")
    assert not set(foreign) & set(clean_environ())
    assert set(kept) <= set(clean_environ())


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder for PATH with a shell and its tools, and no Python."""
    for name in ("sh", "tr"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return tmp_path


def pick(path: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": str(path), "HOME": str(path)}
    return subprocess.run([ROOT / "ci/pick-python"], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.skipif(find_spec("ensurepip") is None, reason="this very Python cannot make virtual environments")
def test_a_suitable_python_is_found_behind_an_old_one(bare_path: Path) -> None:
    for name, line in (("python3", "exit 3"), ("python", f'exec {sys.executable} "$@"')):
        (bare_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (bare_path / name).chmod(0o755)
    assert pick(bare_path).stdout == f"{sys.executable}\n"


def test_without_a_suitable_python_one_sentence_says_what_to_do(bare_path: Path) -> None:
    done = pick(bare_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "apt install" in done.stderr


def test_ignored_and_blocked_signals_do_not_reach_the_tests() -> None:
    script = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from ci.__main__ import _plain_process
_plain_process()
subprocess.run([sys.executable, "-c", '''
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGHUP) == signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
'''], check=True)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
