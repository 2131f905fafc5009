"""Compiles in the background what a first run is about to import, which would take half of that run's time.

The run compiles from the first import on, this process from the last one backwards, until they meet. Nobody waits for
it, and it ends with its start.
"""

from __future__ import annotations

import _imp
import marshal
import os
import sys
from _frozen_importlib_external import MAGIC_NUMBER, cache_from_source
from contextlib import suppress

from _bootstrap import tidy
from _bootstrap.place import sealed
from _bootstrap.start import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _bootstrap.unpack import Archive

#: What a run imports, in that order; `tests/artifact/test_costs.py` compares it with a run.
IMPORTS = "_bootstrap/imports"
#: The flag of bytecode that is not compared with its source (PEP 552): both are written once, at the same time.
UNCHECKED = (1).to_bytes(4, "little")


def begin(new: str, place: str, archive: Archive) -> None:
    """Fills the bytecode folders of the cache that is being made in `new` and will be moved to `place`."""
    if sys.dont_write_bytecode or sys.pycache_prefix or processors() == 1:
        return

    def work(parent: int) -> None:
        # The folder may be moved meanwhile.
        os.chdir(new)
        os.set_blocking(parent, False)
        for name in reversed(archive.read(IMPORTS).decode().split()):
            target = cache_from_source(f"site-packages/{name}")
            if os.path.exists(target) or gone(parent):
                return
            write(target, bytecode(archive.read(f"site-packages/{name}"), f"{place}/site-packages/{name}"))

    # The other end of the pipe stays open until this process ends or becomes the command.
    with suppress(OSError):
        tidy.apart(work)


def bytecode(source: bytes, name: str) -> bytes:
    """The content of a bytecode file."""
    code = compile(source, name, "exec", dont_inherit=True)
    return sealed(MAGIC_NUMBER + UNCHECKED + source_hash(source) + marshal.dumps(code))


def processors() -> int:
    """How many processors this process may use. With only one, a background process would slow the start down."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gone(parent: int) -> bool:
    """Whether the start has ended, or has become the command."""
    try:
        return not os.read(parent, 1)
    except BlockingIOError:
        return False


def source_hash(source: bytes) -> bytes:
    return _imp.source_hash(int.from_bytes(MAGIC_NUMBER, "little"), source)
