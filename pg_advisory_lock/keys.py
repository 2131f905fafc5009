"""Computes the 64-bit number that PostgreSQL locks from structured arguments. Needs only the standard library.

Deployed programs of different versions exclude each other only if they compute the same number, so nothing here may
change.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Protocol, TypeAlias, TypeGuard, TypeVar

from pg_advisory_lock.errors import PgAdvisoryLockError

LockArg: TypeAlias = str | int | uuid.UUID
_Kind = TypeVar("_Kind")


class LockArgs(Protocol):
    """What type checkers accept as ``lock_args``: a list or tuple of parts, and not a bare string.

    A string is a sequence of strings too, but its ``__contains__`` differs. At run time ``normalise`` decides.
    """

    def __contains__(self, part: object, /) -> bool: ...
    def __iter__(self) -> Iterator[LockArg]: ...
    def __reversed__(self) -> Iterator[LockArg]: ...
    def __len__(self) -> int: ...


#: CPython's default limit for turning an int into digits. Every process must accept or refuse the same arguments, so it
#: is fixed here: a process can change its own limit, and old versions have none.
MOST_DIGITS = 4300
_FIRST_TOO_LONG = 10**MOST_DIGITS


def advisory_key(lock_args: LockArgs) -> int:
    """The signed 64-bit key of ``lock_args``, the same as ``PgAdvisoryLock(lock_args).lock_key``.

    Raises ``PgAdvisoryLockError`` for arguments that cannot name a lock (see ``normalise``).
    """
    return key_of(normalise(lock_args))


def key_of(names: tuple[str, ...]) -> int:
    """The key of normalised arguments."""
    # JSON keeps the components separate, whatever characters they contain.
    text = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def normalise(lock_args: LockArgs) -> tuple[str, ...]:
    """The components as plain strings; 1 and '1' become the same.

    Raises ``PgAdvisoryLockError`` unless ``lock_args`` is a list or tuple with at least one component, each a ``str``,
    ``int`` or ``uuid.UUID`` (or a subclass, which counts by its base type's content), a string is valid Unicode, and an
    integer has no more than 4,300 digits. ``bool`` is refused, although Python derives it from ``int``.
    """
    if not (is_truly(lock_args, list) or is_truly(lock_args, tuple)):
        raise PgAdvisoryLockError(
            f"lock_args must be a list or tuple, not {_kind(lock_args)}: write ['payment_processing'] for one component"
        )
    if not lock_args:
        raise PgAdvisoryLockError("lock_args must have at least one component: all empty locks would be one lock")
    return tuple(_normalise_one(position, value) for position, value in enumerate(lock_args))


def _normalise_one(position: int, value: object) -> str:
    # By the base types' own methods. A subclass may format itself in any way: an Enum member has its name on one
    # version of Python and its value on another. And two processes that disagree on the key do not exclude each other.
    if is_truly(value, bool):
        raise PgAdvisoryLockError(f"lock_args[{position}] is a bool: write 1 or 'true', whichever is meant")
    if is_truly(value, str):
        text = str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PgAdvisoryLockError(f"lock_args[{position}] is not valid Unicode: it has a lone surrogate") from None
        return text
    if is_truly(value, int):
        number = int.__index__(value)
        if not -_FIRST_TOO_LONG < number < _FIRST_TOO_LONG:
            raise PgAdvisoryLockError(f"lock_args[{position}] is an integer of more than {MOST_DIGITS} digits")
        # Decimal, unlike str(), does not depend on the process's limit of digits.
        return str(Decimal(number))
    if is_truly(value, uuid.UUID):
        return uuid.UUID.__str__(value)
    raise PgAdvisoryLockError(
        f"lock_args[{position}] must be a str, int or uuid.UUID, not {_kind(value)}: other values may print"
        " differently in every process, and such a lock would exclude nobody"
    )


def is_truly(value: object, kind: type[_Kind]) -> TypeGuard[_Kind]:
    """Like ``isinstance()``, but False for a proxy that claims another class, because what it stands for may change."""
    return issubclass(type(value), kind)


def _kind(value: object) -> str:
    return type(value).__name__
