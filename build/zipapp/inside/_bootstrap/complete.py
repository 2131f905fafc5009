"""`dislock.pyz --unpack`: makes a whole cache, compiled, and written to disk when it ends. For images and packagers."""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import cache_from_source

from _bootstrap import ahead, start, unpack
from _bootstrap.place import UnsafeError, check, key, roots


def run(archive: str) -> None:
    """Prints the folder that other accounts must be able to read, or why there can be none."""
    if len(sys.argv) > 2:
        start.fail("usage: dislock.pyz --unpack")
    for root, _ in roots()[:1]:
        try:
            complete(root, archive)
        except UnsafeError as reason:
            start.fail(f"--unpack: {reason}")
        except OSError as reason:
            start.fail(f"--unpack: {root}: {reason.strerror or reason}", 1)
        sys.stdout.write(f"{root}\n")
        return
    start.fail("--unpack: no place for a cache: DISLOCK_CACHE can name one")


@unpack.private()
def complete(root: str, archive: str) -> None:
    start.ready(root, archive) or unpack.into(root, archive)
    folder = f"{check(root)}/{key()}"
    whole = unpack.Archive(archive)
    for name, part in start.LATER.items():
        if part == name and not start.whole(f"{folder}/{part}"):
            unpack.join(folder, archive, part, whole.read(f"later/{part}.zip"))
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                compile_one(f"{place}/{name}")
    os.sync()
    os.truncate(f"{folder}/.lock", 0)


def compile_one(source: str) -> None:
    """Compiles it even if there is bytecode, which may come from elsewhere or be incomplete."""
    with open(source, "rb") as file:
        content = file.read()
    try:
        start.write(cache_from_source(source), ahead.bytecode(content, source))
    except SyntaxError:
        pass  # a file for newer Pythons, which this one does not import
