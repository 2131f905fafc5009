"""How the command loads psycopg: without looking up its version, and with nothing left of that afterwards."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from dislock.drivers.loading import load_psycopg
load_psycopg()
print(*sorted({"psycopg", "email", "zipfile", "importlib.metadata"} & set(sys.modules)))
import psycopg
from importlib.metadata import version
print(psycopg.pq.version() > 0, version("psycopg") > "3")
"""


def test_psycopg_is_loaded_without_its_metadata() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "psycopg\nTrue True\n", "")
