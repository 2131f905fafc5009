"""Packs an archive whose bytes depend only on the files' names and contents."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path


def pack(root: Path, archive: Path) -> None:
    """Writes ``root`` as the only top folder of ``archive``, owned by root, dated SOURCE_DATE_EPOCH or 1980."""
    date = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = date
        return member

    temporary = archive.with_suffix(".new")
    with (
        temporary.open("wb") as file,
        # Otherwise the header would contain the file's name and the time of compression.
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=9, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted([root, *root.rglob("*")]):
            tar.add(path, str(Path(root.name) / path.relative_to(root)), recursive=False, filter=plain)
    temporary.replace(archive)


def size(root: Path) -> int:
    """The sum of the sizes of all files, in bytes."""
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
