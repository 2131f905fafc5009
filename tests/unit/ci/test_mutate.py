"""What `ci/mutate` breaks: each rule by itself, and nothing that is no rule."""

from __future__ import annotations

import pytest

from ci.mutate import failure_in, mutants_of


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("return x < y", ["(x <= y)"]),
        ("return not x", ["(x)"]),
        ("return f(x) or y is None", ["(f(x) and y is None)", "(y is not None)"]),
        ("return min(x, y + z)", ["(max(x, y + z))", "(y - z)"]),
        ("return x if y else 'text'", ["(x if not y else 'text')"]),
        ("if x: return", ["(not (x))"]),
        ("flag = True", ["(False)"]),
        ("limit = 0.2", ["(1.2)"]),
        ("self.x = y", ["pass"]),
        ("self.forget()", ["pass"]),
    ],
)
def test_a_rule_is_broken_in_every_small_way(line: str, changes: list[str]) -> None:
    source = f"def rule(self, x, y, z):\n    {line}\n"
    found = mutants_of("a.py", source)
    assert [mutant.new for mutant in found] == changes
    for mutant in found:
        compile(mutant.apply(source.encode()), "a.py", "exec")


@pytest.mark.parametrize(
    "source",
    [
        '"""What it is for: 1 < 2."""\n',
        "def rule(x: int | None) -> list[int]: ...\n",
        "if TYPE_CHECKING:\n    from x import y\n",
        "text = f'{x + 1} s'\n",
        "text = 'a' + x\n",
    ],
)
def test_what_is_no_rule_is_left_alone(source: str) -> None:
    assert [str(mutant) for mutant in mutants_of("a.py", source)] == []


def test_an_offset_counts_bytes() -> None:
    (mutant,) = mutants_of("a.py", "größer = 1\n")
    assert mutant.apply("größer = 1\n".encode()) == "größer = (2)\n".encode()


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        ("F\nFAILED tests/unit/a.py::test_b[x] - assert 1 == 2\n1 failed\n", "tests/unit/a.py::test_b[x]"),
        ("ERROR tests/unit/a.py - ImportError: x\n", "tests/unit/a.py"),
        (
            "7 histories\npython -m tests.simulation 73  # one start per slot: process 6\n",
            "simulation: one start per slot",
        ),
        ("7 passed\n", ""),
    ],
)
def test_the_test_that_noticed_it_is_named(output: str, failure: str) -> None:
    assert failure_in(output) == failure
