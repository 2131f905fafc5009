"""Finds a time zone by its IANA name; no other names are accepted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dislock.errors import ConfigurationError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

#: The shape of an IANA name. POSIX settings such as ``<+03>-03``, which PostgreSQL knows too, do not have it.
_SHAPE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*", re.ASCII)
#: Names that PostgreSQL or the system may know, but that differ in meaning between hosts.
_LOCAL = {"localtime", "posixrules", "factory"}
#: Folders with copies of the zones; those in ``right`` count leap seconds and are off by half a minute.
_VARIANTS = {"posix", "right"}


def find_zone(name: str) -> ZoneInfo:
    """The zone of an IANA name in upper or lower case, as PostgreSQL reads it. Raises ``ConfigurationError``.

    It reads the system's zone files first, as the cron daemon that starts the job does, then the ``tzdata`` package.
    If the files of two hosts differ in age, their slots differ only around a change that one of them does not know.
    """
    name = name.strip()
    problem = ConfigurationError(f"unknown time zone {name!r}: it must be an IANA name such as Europe/Berlin or UTC")
    lower = name.lower()
    if not _SHAPE.fullmatch(name) or lower in _LOCAL or lower.split("/")[0] in _VARIANTS:
        raise problem
    found = _open(name)
    if found is None and (spelling := _canonical(lower)):
        found = _open(spelling)
    if found is None:
        raise problem
    return found


def _open(name: str) -> ZoneInfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # No file, not a zone file, or a folder: each means that there is no zone of this name.
        return None


def _canonical(lower: str) -> str | None:
    """The spelling that ``tzdata`` gives to a name in lower case."""
    from importlib.resources import files

    try:
        names = files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    except (ModuleNotFoundError, OSError):
        return None
    return next((name for name in names if name.lower() == lower), None)
