"""What the documents say of settings, exit codes, files and versions is so."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from inspect import getdoc
from pathlib import Path

import pytest

import dislock
import pg_advisory_lock.aio
from dislock import aio
from dislock.cli.actions import ACTIONS, MODIFIERS
from dislock.cli.arguments import Help, Version
from dislock.cli.asked import Unanswerable
from dislock.cli.options import EXIT_CODES, GIVEN, OPTIONS
from dislock.cli.settings import load
from dislock.protocol.schema import CREATE_JOURNAL, INDEX_JOURNAL, INDEX_SUCCESSES

ROOT = Path(dislock.__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("[!.]*/README.md"))]
#: They are made from what the program prints.
LONG = [ROOT / "docs" / name for name in ("messages.md", "settings.md")]
EASY = [document for document in DOCUMENTS if document not in LONG]

pytestmark = pytest.mark.skipif(not README.exists(), reason="the documents are not installed with the package")


def tables(text: str) -> list[list[str]]:
    """The rows of all tables, as lists of cells."""
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    from build.pages import generated

    stale = [file for file, text in generated.fresh().items() if not file.exists() or file.read_text() != text]
    assert [str(file.relative_to(ROOT)) for file in stale] == [], "build/docs --refresh writes them anew"


def test_each_setting_and_exit_code_is_on_its_page() -> None:
    for document, names in (
        ("README.md", [name for option in OPTIONS for name in (option.variable, option.option)]),
        ("docs/settings.md", [name for option in OPTIONS for name in (option.variable, option.option)]),
        ("docs/exit-codes.md", [code for code, _ in EXIT_CODES]),
        ("build/pages/dislock.1", [action.option.replace("-", r"\-") for action in ACTIONS]),
    ):
        text = (ROOT / document).read_text()
        assert [name for name in names if name not in text] == [], document
    assert f"| {dislock.LEASE_LOST_EXIT_CODE} |" in (ROOT / "docs/exit-codes.md").read_text()


def test_the_documents_use_no_option_that_does_not_exist() -> None:
    options = {word.option for word in (*OPTIONS, *ACTIONS, *MODIFIERS)} | {"--help", "--version"}
    commands = [
        command
        for document in DOCUMENTS
        for command in re.findall(r"dislock(?:\.pyz)? (--[^\n]*?) DATABASE_URL", document.read_text())
    ]
    assert commands
    for command in commands:
        assert set(re.findall(r"(?<![\w'-])(--[a-z][a-z-]+)", command)) <= options, command


def test_the_operations_have_each_event() -> None:
    sources = [path.read_text() for path in (ROOT / "dislock").rglob("*.py")]
    names = {name for text in sources for name in re.findall(r'(?:_say|Event)\(\s*"([^"]+)"', text)}
    documented = (ROOT / "docs" / "operations.md").read_text().partition("## Messages as JSON")[2]
    assert len(names) > 10
    assert [name for name in sorted(names) if f"`{name}`" not in documented] == []


def consoles(text: str) -> list[str]:
    """The dislock commands of all console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in re.findall(r"^\$ dislock\.pyz (.*)$", block, re.MULTILINE)]


@pytest.mark.parametrize("document", ["README.md", "docs/howto.md"])
def test_each_command_of_a_console_is_understood(document: str) -> None:
    environ = dict.fromkeys(("DATABASE_URL", "OWNER_URL"), "postgresql://h/d") | {"LOCK_JOURNAL": "dislock_runs"}
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


def test_the_man_page_can_be_read() -> None:
    if shutil.which("man") is None:
        pytest.skip("there is no man on this machine")
    shown = subprocess.run(
        ["man", str(ROOT / "build/pages/dislock.1")],
        env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C", "MANPAGER": "cat", "MANROFFOPT": "-ww"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    text = re.sub(r".\x08", "", shown.stdout)
    assert [option.option for option in OPTIONS if option.option not in text] == []
    assert "dislock - run a command under locks" in text


def test_the_page_of_messages_has_what_is_printed() -> None:
    page = (ROOT / "docs" / "messages.md").read_text()
    for text in (
        "`no command was given; …`",
        "`the lease … was lost: …`",
        "`cannot run …: …`",
        "`must be terminate or continue, not …`",
        "`timeout_in_ms must be an int, not …`",
    ):
        assert text in page, text


def raised() -> set[str]:
    """The texts of all errors that a user can get, with three words or more."""
    found = set()
    for path in [*(ROOT / "dislock").rglob("*.py"), *(ROOT / "pg_advisory_lock").rglob("*.py")]:
        for error in (node.exc for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)):
            name = ast.unparse(error.func) if isinstance(error, ast.Call) else ""
            if isinstance(error, ast.Call) and name not in ("AssertionError", "AttributeError"):
                for text in error.args:
                    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                    texts = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
                    found.add("".join(text for text in texts if isinstance(text, str)))
    return {text for text in found if len(re.findall(r"[^\W\d_]+", text)) > 2}


def test_the_page_of_messages_has_each_error_and_no_sql() -> None:
    page = (ROOT / "docs" / "messages.md").read_text()
    assert len(raised()) > 100
    assert [text for text in sorted(raised()) if text not in page] == []
    for unseen in ("SAVEPOINT pg_advisory_lock", "pg_catalog.", "CAST(", "has no attribute", "does not end`"):
        assert unseen not in page, unseen


def sentences(text: str) -> list[str]:
    """The sentences of a document's prose: without code, tables, headings and targets of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\||#).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = re.split(r"\n\s*\n|^\s*(?:[-*:]|\d+\.) ", text, flags=re.MULTILINE)
    found = [re.split(r"(?<=[.!?])[*_]*\s+", " ".join(paragraph.split())) for paragraph in paragraphs]
    return [sentence for each in found for sentence in each if sentence]


@pytest.mark.parametrize("document", EASY, ids=lambda document: str(document.relative_to(ROOT)))
def test_sentences_are_short(document: Path) -> None:
    assert [each for each in sentences(document.read_text()) if len(each.split()) > 25] == []


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


def test_each_public_name_has_a_docstring() -> None:
    named = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (dislock, aio, pg_advisory_lock, pg_advisory_lock.aio)
        for name in getattr(module, "__all__", ["PgAdvisoryLock"])
    }
    undocumented = []
    for path, value in named.items():
        if isinstance(value, type):
            members = {f"{path}.{name}": member for name, member in vars(value).items() if not name.startswith("_")}
            undocumented += [name for name, member in members.items() if callable(member) and not getdoc(member)]
        if callable(value) and not getdoc(value):
            undocumented.append(path)
    assert undocumented == []


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


def test_the_images_that_are_named_are_of_this_version() -> None:
    named = {
        version
        for folder in ("docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        for version in re.findall(r"/dislock:([0-9][0-9.]*)", path.read_text(errors="replace"))
    }
    assert named == {dislock.__version__}


def test_contributors_are_sent_to_what_there_is() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:benchmarks|ci|docs|tests)/[\w./]*)[ `]", text)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_lists_every_page() -> None:
    listed = README.read_text().partition("## All pages\n")[2]
    pages = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)\s#]+\.md)\)", listed)}
    assert [
        str(each.relative_to(ROOT)) for each in DOCUMENTS if each.is_relative_to(ROOT / "docs") and each not in pages
    ] == []


def test_the_changelog_keeps_its_format() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n")
    assert "keepachangelog.com" in text
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings
    released = [heading for heading in headings if heading != "[Unreleased]"]
    assert headings in (released, ["[Unreleased]", *released])
    assert released[0].startswith(f"[{dislock.__version__}] ")
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
