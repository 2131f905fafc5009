"""Loads psycopg in a process that has nothing else to do, without what psycopg only needs to know its own version."""

from __future__ import annotations

import sys
from types import ModuleType

METADATA = "importlib.metadata"


class _NotFoundError(Exception):
    pass


def load_psycopg() -> None:
    """Loads psycopg. For a process of our own alone: while it lasts, other threads would be misled too.

    psycopg asks the metadata of its packages for their versions, which loads `email`, `zipfile` and more: a twentieth
    of a run. It goes on where they are not found, and shows them only in texts that we do not print.
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
