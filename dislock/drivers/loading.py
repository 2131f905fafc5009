"""Loads psycopg for the command line, without the modules that it needs only to find its own version."""

from __future__ import annotations

import sys
from types import ModuleType

METADATA = "importlib.metadata"


class _NotFoundError(Exception):
    pass


def load_psycopg() -> None:
    """Loads psycopg. Only for a process without other threads, because meanwhile they would get the stand-in too.

    psycopg reads its version from the metadata of its package, which loads `email`, `zipfile` and more: a twentieth of
    a run's time. It also works without that version, and shows it only in texts that we do not print.
    """
    if METADATA in sys.modules:
        return
    stand_in = ModuleType(METADATA)
    vars(stand_in).update(version=_no_version, PackageNotFoundError=_NotFoundError)
    sys.modules[METADATA] = stand_in
    try:
        import psycopg  # noqa: F401
    finally:
        del sys.modules[METADATA]


def _no_version(_package: str) -> str:
    raise _NotFoundError
