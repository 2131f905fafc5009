"""What a lock is: its arguments, its key and its modes. The two locker classes only add how it is taken."""

from __future__ import annotations

from pg_advisory_lock.errors import PgAdvisoryLockError
from pg_advisory_lock.keys import LockArgs, is_truly, key_of, normalise


class LockIdentity:
    """Checked at construction and never changed: threads, tasks and sessions can share an instance."""

    __slots__ = ("_lock_args", "_lock_key", "_raise_on_failure", "_shared")

    def __init__(self, lock_args: LockArgs, raise_on_failure: bool = True, *, shared: bool = False) -> None:
        self._lock_args = normalise(lock_args)
        self._lock_key = key_of(self._lock_args)
        self._raise_on_failure = _checked_bool("raise_on_failure", raise_on_failure)
        self._shared = _checked_bool("shared", shared)

    @property
    def lock_args(self) -> tuple[str, ...]:
        """The arguments as strings, from which the key is computed."""
        return self._lock_args

    @property
    def lock_key(self) -> int:
        """The signed 64-bit number that PostgreSQL locks."""
        return self._lock_key

    @property
    def raise_on_failure(self) -> bool:
        """Whether contention raises an error; else the methods return False."""
        return self._raise_on_failure

    @property
    def shared(self) -> bool:
        """Whether the lock is taken in shared mode, which excludes only exclusive locks."""
        return self._shared

    def __repr__(self) -> str:
        shared = ", shared=True" if self._shared else ""
        mode = "" if self._raise_on_failure else ", raise_on_failure=False"
        return f"{type(self).__name__}({list(self._lock_args)!r}{mode}{shared})"

    def __str__(self) -> str:
        # Long arguments are cut, because an integer can have 4,300 digits.
        args = ", ".join(repr(arg if len(arg) <= 60 else arg[:57] + "...") for arg in self._lock_args)
        return f"{'shared ' if self._shared else ''}advisory lock [{args}] (key {self._lock_key})"


def _checked_bool(name: str, value: object) -> bool:
    if not is_truly(value, bool):
        raise PgAdvisoryLockError(f"{name} must be True or False, not {value!r}")
    return value
