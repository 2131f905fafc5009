"""The interpreters that the file is for, and how much of the contract it is tested for on each."""

from __future__ import annotations

import functools

from ci.pythons import Interpreter, find

#: Those that the file is for, as far as there are some here; the last three are emulated, or have another C library.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13-aarch64", "3.13-musl", "3.13-aarch64-musl")


@functools.cache
def interpreters() -> dict[str, Interpreter]:
    """All of this machine, by names such as 3.11, 3.13-aarch64 and 3.13-musl."""
    return {found.name: found for found in find()}


def there() -> list[str]:
    """Those of PYTHONS that this machine has; ``test_platforms.py`` names each one that it has not, once."""
    return [name for name in PYTHONS if name in interpreters()]


def ends() -> list[str]:
    """The oldest and the newest native one."""
    native = [name for name in there() if interpreters()[name].native]
    return list(dict.fromkeys([*native[:1], *native[-1:]]))
