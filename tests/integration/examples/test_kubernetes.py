"""What docs/kubernetes.md tells to do before a pod can run: the images to make, and the tables."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.integration.examples.test_examples import EXAMPLES, run

pytestmark = pytest.mark.integration
IMAGE = EXAMPLES / "kubernetes" / "image"
SETUP = IMAGE / "setup.sql"
DOCUMENT = EXAMPLES.parent / "docs" / "kubernetes.md"


@pytest.fixture
def role(database_url: str) -> Iterator[str]:
    """A role with no more rights than setup.sql gives it, in a database where nothing else was made."""
    name = f"cron_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("DROP TABLE key_value")
        # As PostgreSQL has it from version 15 on.
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        owner.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        owner.execute(re.sub(r"\bcron\b", name, SETUP.read_text()).encode())
        yield name
        owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_the_job_runs_with_what_the_setup_gives_its_role(database_url: str, role: str) -> None:
    url = psycopg.conninfo.make_conninfo(database_url, options=f"-c role={role}")
    variables = {"DATABASE_URL": url, "LOCK_KEY": "daily-report", "LOCK_STRATEGY": "schedule,lease"}
    variables |= {"CRON_SCHEDULE": "0 0 1 1 *", "CRON_TZ": "Etc/UTC"}
    command = [sys.executable, "-m", "dislock", "DATABASE_URL", sys.executable, str(IMAGE / "report.py")]
    assert run(command, {**os.environ, **variables}) == "written\n"
    # The next run by hand: the slot is taken.
    assert run(command, {**os.environ, **variables}) == ""


def test_the_document_shows_the_setup() -> None:
    statements = [line for line in SETUP.read_text().splitlines() if not line.startswith("--")]
    assert statements
    assert "\n".join(["```sql", *statements, "```"]) in DOCUMENT.read_text()


def test_each_image_of_ours_is_made_and_pushed_before_it_is_used() -> None:
    text = DOCUMENT.read_text().replace("$registry", "registry.example.com")
    used = re.findall(r"registry\.example\.com/(?:dislock|daily-report):\S+", "\n".join(
        path.read_text() for path in sorted((EXAMPLES / "kubernetes").glob("*/*")) if path.suffix != ".sql"
    ))  # fmt: skip
    assert {name.partition(":")[0] for name in used} == {
        "registry.example.com/dislock",
        "registry.example.com/daily-report",
    }
    for name in used:
        built, pushed = (text.index(command) for command in (f" -t {name} ", f"docker push {name}\n"))
        assert built < pushed
