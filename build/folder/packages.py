"""Unpacks from the zipapp what one interpreter on one platform needs, as a first start of the zipapp does."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

from build.folder.interpreter import MACHINE, CannotBuildError
from build.zipapp.natives import BILL

#: Stays packed in the folder too, because dislock itself never imports it.
PACKED = "sqlalchemy.zip"
NATIVES = f"natives/glibc-{MACHINE}"
#: Only for tests of other SQLAlchemy dialects.
LEFT_OUT = "sqlalchemy/testing/"


def unpack(zipapp: Path, site: Path, packed: Path) -> None:
    """Fills ``site``, and ``packed`` with the files for ``PACKED``. The zipapp must have the layout of build/pyz."""
    folders = {
        "site-packages/": "",
        f"{NATIVES}/psycopg_binary.libs/": "psycopg_binary.libs/",
        f"{NATIVES}/{sys.implementation.cache_tag}/": "psycopg_binary/",
    }
    with open_zipapp(zipapp) as archive:
        names = archive.namelist()
        for old, new in folders.items():
            found = [name for name in names if name.startswith(old)]
            if not found:
                raise CannotBuildError(f"{zipapp} holds no {old}")
            for name in found:
                write(site / f"{new}{name.removeprefix(old)}", archive.read(name))
        for name, folder in (("later/tzdata.zip", site), (f"later/{PACKED}", packed)):
            with zipfile.ZipFile(io.BytesIO(archive.read(name))) as inner:
                for member in inner.namelist():
                    if not member.startswith(LEFT_OUT):
                        write(folder / member, inner.read(member))


def bill(zipapp: Path) -> bytes:
    """The bill of materials of psycopg's wheel, which names the libraries bundled in it."""
    with open_zipapp(zipapp) as archive:
        return archive.read(f"{NATIVES}/{BILL}")


def open_zipapp(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise CannotBuildError(f"{path} is not there: build/pyz makes it") from None


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
