"""An archive whose bytes follow from the files' names and contents alone."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path


def pack(root: Path, archive: Path) -> None:
    """Writes ``root`` as the one top folder of ``archive``, owned by root, dated SOURCE_DATE_EPOCH or 1980."""
    date = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = date
        return member

    temporary = archive.with_suffix(".new")
    with (
        temporary.open("wb") as file,
        # The file's name and the time of compression would be part of the header otherwise.
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=9, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted([root, *root.rglob("*")]):
            tar.add(path, str(Path(root.name) / path.relative_to(root)), recursive=False, filter=plain)
    temporary.replace(archive)


def size(root: Path) -> int:
    """Bytes in files, as a file system without blocks would count them."""
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
