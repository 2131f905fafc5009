"""What the documents say of settings, exit codes, files and versions is so."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

import dislock
from dislock import aio
from dislock.cli.actions import ACTIONS, MODIFIERS
from dislock.cli.options import EXIT_CODES, GIVEN, OPTIONS, Option
from dislock.cli.settings import Help, Unanswerable, Version, load
from dislock.protocol.records import CREATE_JOURNAL, INDEX_JOURNAL, INDEX_SUCCESSES

ROOT = Path(dislock.__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*/README.md"))]

pytestmark = pytest.mark.skipif(not README.exists(), reason="the documents are not installed with the package")


def tables(text: str) -> list[list[str]]:
    """The rows of all tables, as lists of cells."""
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def plain(cell: str) -> str:
    return cell.replace("`", "")


SETTINGS = {plain(row[0]): row for row in tables(README.read_text()) if len(row) == 4} if README.exists() else {}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.variable)
def test_the_readme_has_each_setting_with_its_option_and_default(option: Option) -> None:
    row = SETTINGS[option.variable]
    assert plain(row[1]) == option.option
    if option.default is not None:
        assert plain(row[2]) == option.default
    elif option.shown.startswith("required"):
        assert plain(row[2]) == option.shown
    else:
        # Derived ones are said in words, with the same numbers.
        assert re.findall(r"[\d.]+", row[2]) == re.findall(r"[\d.]+", option.shown)
        assert row[2]
    assert row[3]


def test_the_readme_has_no_setting_that_does_not_exist() -> None:
    known = {option.variable for option in OPTIONS}
    assert {name for name in SETTINGS if re.fullmatch(r"[A-Z_]+", name)} == known
    options = {each.option for each in (*OPTIONS, *ACTIONS, *MODIFIERS)}
    commands = [
        command
        for document in DOCUMENTS
        for command in re.findall(r"dislock(?:\.pyz)? (--[^\n]*?) DATABASE_URL", document.read_text())
    ]
    assert commands
    for command in commands:
        assert set(re.findall(r"(?<![\w'-])(--[a-z][a-z-]+)", command)) <= options, command


def consoles(text: str) -> list[str]:
    """The dislock commands of all console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in re.findall(r"^\$ dislock\.pyz (.*)$", block, re.MULTILINE)]


@pytest.mark.parametrize("document", ["README.md", "docs/howto.md"])
def test_each_command_of_a_console_is_understood(document: str) -> None:
    environ = {"DATABASE_URL": "postgresql://h/d", "LOCK_JOURNAL": "dislock_runs"}
    commands = consoles((ROOT / document).read_text())
    assert commands
    for command in commands:
        words = shlex.split(re.sub(r" (&|>.*)$", "", command))
        assert not isinstance(load(words, environ), (Help, Version, Unanswerable)), command


def test_the_operations_have_each_of_the_operators_commands_and_the_journals_form() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert all(f"`{action.option}" in text for action in ACTIONS)
    columns = CREATE_JOURNAL.replace("{table}", "dislock_runs")
    assert all(
        " ".join(sql.replace("{table}", "dislock_runs").split()) in " ".join(text.split())
        for sql in (columns, INDEX_JOURNAL, INDEX_SUCCESSES)
    )


def test_the_readme_has_each_exit_code() -> None:
    rows = {plain(row[0]): row[1] for row in tables(README.read_text()) if len(row) == 2}
    told = " ".join(f"{code} {meaning}" for code, meaning in rows.items())
    for code, _ in EXIT_CODES:
        assert re.search(rf"(?<!\d){re.escape(code)}(?!\d)", told) or code == "other", code
    assert "the command's own" in rows
    assert set(rows) >= {"0", "1", "2", str(dislock.LEASE_LOST_EXIT_CODE), "126, 127"}


def test_the_readme_has_what_the_command_is_given() -> None:
    assert all(f"`{name}`" in README.read_text() for name, _ in GIVEN)


def test_the_library_has_each_field_and_each_name() -> None:
    text = (ROOT / "docs" / "library.md").read_text()
    fields = {row[0]: row for row in tables(text) if len(row) == 3}
    for field in dataclasses.fields(dislock.LockContext):
        row = fields[f"`{field.name}`"]
        if isinstance(field.default, float):
            assert f"{field.default:.1f}" in row[2]
    for name in {*dislock.__all__, *aio.__all__} - {"__version__"}:
        assert re.search(rf"\b{name}\b", text), name


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


def test_contributors_are_sent_to_what_there_is() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:benchmarks|ci|docs|tests)/[\w./]*)[ `]", text)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_document_can_be_found_from_the_readme() -> None:
    found, open_ones = {README}, [README]
    while open_ones:
        document = open_ones.pop()
        for target in re.findall(r"\]\(([^)\s#]+\.md)", document.read_text()):
            file = (document.parent / target).resolve()
            if "://" not in target and file not in found and file.exists():
                found.add(file)
                open_ones.append(file)
    assert {each for each in DOCUMENTS if each.parent.name == "docs"} <= found


def test_the_changelog_keeps_its_format() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n")
    assert "keepachangelog.com" in text
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings
    released = [heading for heading in headings if heading != "[Unreleased]"]
    assert headings in (released, ["[Unreleased]", *released])
    dates = []
    for heading in released:
        match = re.fullmatch(r"\[(\d+\.\d+\.\d+(?:[a-z]+\d+)?)\] - (\d{4}-\d\d-\d\d)", heading)
        assert match, heading
        dates.append(match[2])
    assert dates == sorted(dates, reverse=True)
    kinds = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    for kind in re.findall(r"^### (.*)$", text, re.MULTILINE):
        assert kind.split()[0] in kinds, kind
    items = re.sub(r"\A.*?^## ", "## ", text, flags=re.MULTILINE | re.DOTALL)
    assert all(re.match(r"(#|- |  |\[|[A-Z]|$)", line) for line in items.splitlines())
