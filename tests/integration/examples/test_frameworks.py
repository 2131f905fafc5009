"""Each snippet of the how-to pages is run as it stands, with the real framework."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytestmark = pytest.mark.integration
PAGES = Path(__file__).parents[3] / "docs" / "howto"


def write(page: str, folder: Path) -> None:
    """The files that a page shows: each block of Python or of a Dockerfile names its own in its first line."""
    for block in re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL):
        file = folder / re.match(r"# (\S+)\n", block).group(1)  # type: ignore[union-attr] # a block without a name fails the test
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block)


def python(program: str, folder: Path, **variables: str) -> str:
    """What the program prints, in a process of its own: frameworks keep settings for a whole process."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def sqlalchemy(database_url: str) -> str:
    words = psycopg.conninfo.conninfo_to_dict(database_url)
    return (
        f"postgresql+psycopg://{words['user']}:{words.get('password', '')}@/{words['dbname']}"
        f"?host={words['host']}&port={words['port']}"
    )


def hold(database_url: str) -> None:
    """Lets somebody else hold the one lock that there is."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE key_value SET value = 'other:1', expire_at = clock_timestamp() + interval '1 day'")


def drop_the_table(database_url: str) -> None:
    """Makes every lock a ``ConfigurationError``."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP TABLE key_value")


def test_celery(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("celery", reason="celery is not installed")
    write("celery.md", tmp_path)
    program = (
        "from celery.contrib.testing.worker import start_worker\n"
        "from tasks import app, nightly_import\n"
        "with start_worker(app, pool='solo', perform_ping_check=False):\n"
        "    print(nightly_import.delay(3).get(timeout=60, propagate=False))\n"
    )
    variables = {"DATABASE_URL": database_url, "BROKER_URL": "memory://", "RESULT_BACKEND": "cache+memory://"}
    assert python(program, tmp_path, **variables) == "done\n"
    hold(database_url)
    assert python(program, tmp_path, **variables) == "skipped: other:1 runs it\n"
    drop_the_table(database_url)
    assert python(program, tmp_path, **variables).startswith("the table key_value does not exist")


def test_fastapi_runs_its_loop_in_one_worker(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    write("fastapi.md", tmp_path)
    program = (
        "import asyncio, logging, psycopg, os, sys\n"
        "import app as module\n"
        "logging.basicConfig(stream=sys.stdout, format='%(levelname)s %(message)s')\n"
        "app, refresh = module.app, module.refresh_prices\n"
        "async def fail_once(app):\n"
        "    module.refresh_prices = refresh\n"
        "    raise ValueError('no prices')\n"
        "module.refresh_prices = fail_once\n"
        "async def main():\n"
        "    async with app.router.lifespan_context(app):\n"
        "        while not getattr(app.state, 'refreshed', False):\n"
        "            await asyncio.sleep(0.05)\n"
        "    with psycopg.connect(os.environ['DATABASE_URL']) as c:\n"
        "        print(c.execute('SELECT expire_at <= clock_timestamp() FROM key_value').fetchall())\n"
        "asyncio.run(main())\n"
    )
    said = python(program, tmp_path, DATABASE_URL=database_url)
    assert said.startswith("ERROR refresh-prices failed, and is tried again\nTraceback")
    assert said.endswith("\nValueError: no prices\n[(True,)]\n")


def test_fastapi_logs_a_wrong_setting_at_once_and_raises_it_at_the_end(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    write("fastapi.md", tmp_path)
    drop_the_table(database_url)
    program = (
        "import asyncio, logging, sys\n"
        "from app import app\n"
        "from dislock import ConfigurationError\n"
        "logging.basicConfig(stream=sys.stdout, format='%(levelname)s %(message)s')\n"
        "async def main():\n"
        "    async with app.router.lifespan_context(app):\n"
        "        while len(asyncio.all_tasks()) > 1:\n"
        "            await asyncio.sleep(0.05)\n"
        "        print('serving')\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except ConfigurationError as error:\n"
        "    print(error)\n"
    )
    logged, _, at_the_end = python(program, tmp_path, DATABASE_URL=database_url).partition("\nserving\n")
    assert logged.startswith("ERROR refresh-prices failed, and is not tried again\nTraceback")
    assert at_the_end.startswith("the table key_value does not exist")


def test_fastapi_pays_an_order_once_at_a_time(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    write("fastapi.md", tmp_path)
    program = (
        "import asyncio, os, psycopg\n"
        "from payments import app\n"
        "from pg_advisory_lock import advisory_key\n"
        "async def post():\n"
        "    sent = []\n"
        "    async def receive(): return {'type': 'http.request', 'body': b'', 'more_body': False}\n"
        "    async def send(message): sent.append(message)\n"
        "    scope = {'type': 'http', 'asgi': {'version': '3.0'}, 'http_version': '1.1', 'method': 'POST',\n"
        "             'path': '/orders/7/pay', 'raw_path': b'/orders/7/pay', 'query_string': b'', 'headers': [],\n"
        "             'scheme': 'http', 'server': ('test', 80), 'client': ('test', 1), 'root_path': ''}\n"
        "    await app(scope, receive, send)\n"
        "    return sent[0]['status']\n"
        "print(asyncio.run(post()))\n"
        "with psycopg.connect(os.environ['LIBPQ_URL']) as other:\n"
        "    other.execute('SELECT pg_advisory_xact_lock(%s)', [advisory_key(['orders', 7])])\n"
        "    print(asyncio.run(post()))\n"
    )
    assert python(program, tmp_path, DATABASE_URL=sqlalchemy(database_url), LIBPQ_URL=database_url) == "200\n409\n"


def test_django(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("django", reason="django is not installed")
    write("django.md", tmp_path)
    setup = (
        "import django, sys\n"
        "from django.conf import settings\n"
        "from django.core.management import CommandError, call_command\n"
        "from dislock import ConfigurationError\n"
        "from dislock.testing import in_memory\n"
        "settings.configure(INSTALLED_APPS=['app'])\n"
        "django.setup()\n"
    )
    program = setup + "call_command('nightly', stderr=sys.stdout)\n"
    assert python(program, tmp_path, DATABASE_URL=database_url) == "part 0\npart 1\npart 2\n"
    hold(database_url)
    assert python(program, tmp_path, DATABASE_URL=database_url) == "other:1 runs it already\n"
    losing = setup + (
        "class Output:\n"
        "    def write(self, text): server.take_away('nightly')\n"
        "with in_memory() as server:\n"
        "    try: call_command('nightly', stdout=Output())\n"
        "    except CommandError as error: print(error.returncode, error)\n"
    )
    assert python(losing, tmp_path, DATABASE_URL=database_url).startswith(
        "75 the lease cronjob-lock:lease:nightly was lost"
    )
    drop_the_table(database_url)
    refused = setup + "try: call_command('nightly')\nexcept ConfigurationError as error: print(error)\n"
    assert python(refused, tmp_path, DATABASE_URL=database_url).startswith("the table key_value does not exist")


def test_alembic(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("alembic", reason="alembic is not installed")
    write("alembic.md", tmp_path)
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "one.py").write_text(
        "from alembic import op\n"
        "revision = 'one'\n"
        "down_revision = None\n"
        "def upgrade():\n"
        "    op.execute('CREATE TABLE made (at timestamptz)')\n"
        "    op.execute('SELECT pg_sleep(0.5)')\n"
    )
    program = (
        "import os\n"
        "from alembic import command\n"
        "from alembic.config import Config\n"
        "config = Config()\n"
        "config.set_main_option('script_location', os.getcwd())\n"
        "command.upgrade(config, 'head')\n"
    )
    environment = {**os.environ, "DATABASE_URL": sqlalchemy(database_url)}
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    # Without the lock the second one finds the table made, and fails.
    assert [(each.communicate(timeout=120)[1], each.returncode) for each in both] == [(b"", 0)] * 2
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("one",)]


def test_apscheduler(database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("apscheduler", reason="apscheduler is not installed")
    write("schedulers.md", tmp_path)
    program = (
        "import logging, threading, datetime\n"
        "logging.basicConfig(format='%(message)s')\n"
        "import jobs\n"
        "from apscheduler.events import EVENT_JOB_EXECUTED\n"
        "done = threading.Event()\n"
        "jobs.scheduler.add_listener(lambda event: done.set(), EVENT_JOB_EXECUTED)\n"
        "jobs.scheduler.start()\n"
        "jobs.scheduler.modify_job('report', next_run_time=datetime.datetime.now(datetime.timezone.utc))\n"
        "assert done.wait(60)\n"
        "jobs.scheduler.shutdown()\n"
    )
    assert python(program, tmp_path, DATABASE_URL=database_url) == "report written\n"
    assert python(program, tmp_path, DATABASE_URL=database_url) == ""


def test_the_dockerfile_is_the_example() -> None:
    [shown] = re.findall(r"^```dockerfile\n(.*?)^```", (PAGES / "docker.md").read_text(), re.MULTILINE | re.DOTALL)
    example = (PAGES.parents[1] / "examples/kubernetes/copy/Dockerfile").read_text()
    image = re.search(r"ARG DISLOCK_RUNTIME=(\S+)", example).group(1)  # type: ignore[union-attr] # an example without it fails the test
    for line in shown.splitlines():
        assert line.replace(f"--from={image}", "--from=dislock") in example.splitlines()


def test_the_network_policy_is_valid() -> None:
    yaml = pytest.importorskip("yaml", reason="kubernetes-validate is not installed")
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    blocks = re.findall(r"^```yaml\n(.*?)^```", (PAGES / "kubernetes.md").read_text(), re.MULTILINE | re.DOTALL)
    [shown] = [block for block in blocks if "kind: NetworkPolicy" in block]
    validate.validate(yaml.safe_load(shown), validate.latest_version(), strict=True)


def test_the_init_container_is_a_part_of_a_valid_deployment() -> None:
    yaml = pytest.importorskip("yaml", reason="kubernetes-validate is not installed")
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    [shown] = re.findall(r"^```yaml\n(.*?)^```", (PAGES / "migrations.md").read_text(), re.MULTILINE | re.DOTALL)
    pod = {**yaml.safe_load(shown), "containers": [{"name": "service", "image": "service:7"}]}
    labels = {"app": "service"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "service"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    validate.validate(deployment, validate.latest_version(), strict=True)
