"""The examples, and those of the documents, run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pg_advisory_lock import PgAdvisoryLockLost, advisory_key
from tests.integration.advisory.actors import sqlalchemy_url

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[3] / "examples"
DOCUMENT = Path(__file__).parents[3] / "docs" / "pg_advisory_lock.md"
Meanwhile = Callable[..., "Future[Any]"]


def snippets(heading: str) -> list[str]:
    """The Python in one section of the document."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def database(conninfo: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS account")
        connection.execute("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
        connection.execute("INSERT INTO account VALUES (7, 100)")
        yield connection


def run(name: str, conninfo: str, *arguments: str, driver: str = "psycopg") -> subprocess.CompletedProcess[str]:
    url = sqlalchemy_url(conninfo, driver).render_as_string(hide_password=False)
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "DATABASE_URL": url},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def balance(database: psycopg.Connection) -> int:
    row = database.execute("SELECT balance FROM account WHERE id = 7").fetchone()
    assert row is not None
    return int(row[0])


def test_payment(conninfo: str, database: psycopg.Connection) -> None:
    assert run("advisory_payment.py", conninfo, "7", "60").stdout == "charged\n"
    assert run("advisory_payment.py", conninfo, "7", "60").stdout == "not enough money\n"
    assert balance(database) == 40
    database.execute("SELECT pg_advisory_lock(%s::bigint)", [advisory_key(["accounts", 7])])
    busy = run("advisory_payment.py", conninfo, "7", "10")
    assert busy.returncode == 1
    assert f"pid {database.info.backend_pid} " in busy.stderr
    assert balance(database) == 40


def test_only_one_worker(conninfo: str, database: psycopg.Connection) -> None:
    assert run("advisory_only_one_worker.py", conninfo, "nightly").stdout == "done\n"
    database.execute("SELECT pg_advisory_lock(%s::bigint)", [advisory_key(["only_one_worker", "nightly"])])
    taken = run("advisory_only_one_worker.py", conninfo, "nightly")
    assert taken.stdout == f"taken by {database.info.backend_pid}\n"
    assert balance(database) == 101


def test_readers_and_writer(conninfo: str, database: psycopg.Connection) -> None:
    done = run("advisory_readers_and_writer.py", conninfo)
    assert done.stdout.splitlines() == ["two read", "not changed: somebody reads", "changed"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_asyncio(conninfo: str, database: psycopg.Connection, driver: str) -> None:
    done = run("advisory_asyncio.py", conninfo, "7", driver=driver)
    assert done.stdout == "balance 120\n", done.stderr


def test_every_example_is_run() -> None:
    text = Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("advisory_*.py"))


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def test_the_first_example_of_the_document_loses_no_update(
    conninfo: str, database: psycopg.Connection, meanwhile: Meanwhile
) -> None:
    (example,) = snippets("First example")
    names: dict[str, Any] = {"Account": Account}
    exec(example, names)
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))
    together = threading.Barrier(4)

    def request() -> None:
        # Such as a web framework has loaded it for the request, and keeps it.
        with Session(engine, expire_on_commit=False) as session:
            account = session.get(Account, 7)
            session.commit()
            together.wait(60)
            names["charge"](session, 7, 5)
            assert account is not None

    for done in [meanwhile(request) for _ in range(4)]:
        done.result(60)
    assert balance(database) == 80
    engine.dispose()


MIGRATIONS = {
    "one": "op.execute('CREATE TABLE migrated (n int)')",
    "two": "op.execute('ALTER TABLE migrated ADD m int')",
    "concurrently": """
    with op.get_context().autocommit_block():
        op.execute('CREATE INDEX CONCURRENTLY ON migrated (n)')""",
}


def migrate(conninfo: str, folder: Path, env: str, migrations: list[str]) -> None:
    (folder / "versions").mkdir(parents=True)
    url = sqlalchemy_url(conninfo, "psycopg").render_as_string(hide_password=False)
    imports = (
        "from alembic import context\nfrom sqlalchemy import create_engine, pool\n"
        "from pg_advisory_lock import PgAdvisoryLock\n"
    )
    made = f"target_metadata = None\nengine = create_engine({url!r}, poolclass=pool.NullPool)\n"
    (folder / "env.py").write_text(imports + made + env)
    before = None
    for name in migrations:
        (folder / "versions" / f"{name}.py").write_text(
            f"from alembic import op\nrevision = {name!r}\ndown_revision = {before!r}\n"
            f"def upgrade():\n    {MIGRATIONS[name]}\n"
        )
        before = name
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "head")


@pytest.fixture
def columns(database: psycopg.Connection) -> Callable[[], int]:
    """How many columns the migrations made; none before the test."""
    database.execute("DROP TABLE IF EXISTS migrated, alembic_version")
    asked = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'migrated'"
    return lambda: int((database.execute(asked).fetchone() or [0])[0])


def test_the_documents_recipes_for_alembic(conninfo: str, columns: Callable[[], int], tmp_path: Path) -> None:
    one_transaction, _ = snippets("Alembic")
    migrate(conninfo, tmp_path / "a", one_transaction, ["one", "two"])
    assert columns() == 2


def test_the_documents_recipe_for_migrations_in_transactions_of_their_own(
    conninfo: str, columns: Callable[[], int], tmp_path: Path
) -> None:
    _, one_each = snippets("Alembic")
    migrate(conninfo, tmp_path / "a", one_each, ["one", "two", "concurrently"])
    assert columns() == 2


def test_the_other_recipe_says_that_it_is_the_wrong_one_there(
    conninfo: str, columns: Callable[[], int], tmp_path: Path
) -> None:
    one_transaction, _ = snippets("Alembic")
    env = one_transaction.replace("_metadata)", "_metadata, transaction_per_migration=True)")
    with pytest.raises(PgAdvisoryLockLost):
        migrate(conninfo, tmp_path / "a", env, ["one"])
