"""``dislock --install FOLDER``: copies the runtime folder, so that an init container can give it to another image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

USAGE = "usage: dislock --install FOLDER"


def install(root: Path, target: Path) -> None:
    """Copies every file under a temporary name first, and the programs last.

    So a file that is being executed is replaced and not overwritten, a killed init container can be run again, and when
    ``dislock`` exists it is complete. Every account may read the copy, whatever the umask.
    """
    make_folder(target)
    programs = [root / "bin" / "python3", root / "dislock"]
    for folder, _, names in os.walk(root):
        here = target / Path(folder).relative_to(root)
        if here != target:
            here.mkdir(exist_ok=True)
            here.chmod(0o755)
        for name in names:
            if Path(folder, name) not in programs:
                replace(Path(folder, name), here / name)
    for path in programs:
        replace(path, target / path.relative_to(root))


def make_folder(folder: Path) -> None:
    """Makes the folder and its parents. A folder that exists already keeps its mode."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def replace(source: Path, target: Path) -> None:
    new = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, new)
    new.chmod(source.stat().st_mode & 0o755)
    new.replace(target)


def main(root: str, arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    target = Path(arguments[0])
    if Path(root) in (target.resolve(), *target.resolve().parents):
        print(f"dislock: {target} lies inside {root}, which is what would be copied", file=sys.stderr)
        return 2
    try:
        install(Path(root), target)
        # The target may allow no programs, for example on a mount with noexec, or a quota may have cut the files.
        subprocess.run([target / "dislock", "--version"], check=True, stdout=subprocess.DEVNULL)
    except OSError as error:
        print(f"dislock: cannot install into {target}: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"dislock: installed into {target}, but it cannot be started there: {error}", file=sys.stderr)
        return 1
    return 0
