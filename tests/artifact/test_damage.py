"""A file that was copied in part, or changed: one sentence says so, and nothing passes for a success."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest

from tests.artifact.support import SHELLS, Zipapp, lock, on_the_disk, one_line, shell
from tests.support.contract import Ran


@pytest.fixture(scope="module")
def parts(pyz: Path) -> dict[str, int]:
    """Where what begins in the file."""
    content = pyz.read_bytes()
    with zipfile.ZipFile(pyz) as archive:
        program = min(member.header_offset for member in archive.infolist())
    return {
        "shebang": 11,
        "say": content.index(b"say()") + 20,
        "in the loop": content.index(b"for _dislock_folder in $_dislock_absolute") + 5,
        "before exec": content.index(b'exec "$_dislock_python"'),
        "after exec": content.index(b'"$0" "$@"') + 10,
        "guard": content.index(b"\n# Any Python"),
        "in guard": content.index(b"sys.exit(2)") + 12,
        "in place": content.index(b"def check(") + 3,
        "before main": content.index(b"def main(*, launched"),
        "program": program,
        "half": 13_000_000,
        "most": 20_000_000,
        "directory": len(content) - 5_000,
        "one byte": len(content) - 1,
    }


class TestCutShort:
    PARTS = (
        "shebang", "say", "in the loop", "before exec", "after exec", "guard", "in guard", "in place", "before main",
        "program", "half", "most", "directory", "one byte",
    )  # fmt: skip

    def cut(self, zipapp: Zipapp, parts: dict[str, int], part: str) -> bool:
        """Whether what is left of the file has the whole program."""
        assert parts.keys() == set(self.PARTS)
        content = zipapp.file.read_bytes()[: parts[part]]
        zipapp.file.unlink()
        zipapp.file.write_bytes(content)
        zipapp.file.chmod(0o755)
        return parts[part] >= parts["program"]

    @pytest.mark.parametrize("part", PARTS)
    def test_at_a_first_start(self, zipapp: Zipapp, parts: dict[str, int], part: str) -> None:
        self.cut(zipapp, parts, part)
        for name in SHELLS:
            ran = zipapp.run("--version", command=shell(name))
            if parts[part] >= parts["guard"]:
                one_line(ran, 1, str(zipapp.file), "damaged")
            else:
                # The shell's own words.
                assert ran.code == 2
                assert "dislock.pyz: " in ran.err
        assert zipapp.caches() == []

    @pytest.mark.parametrize("part", PARTS)
    def test_at_a_later_start(self, zipapp: Zipapp, parts: dict[str, int], part: str) -> None:
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)
        whole = self.cut(zipapp, parts, part)
        ran = zipapp.run("--version")
        if whole:
            assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")
            one_line(zipapp.run("--python", "-c", "pass"), 1, "damaged")
        else:
            assert ran.code in (1, 2)
            assert ran.out == ""
            assert "Traceback" not in ran.err

    @pytest.mark.parametrize("part", PARTS[-3:])
    def test_with_python_in_front(self, zipapp: Zipapp, parts: dict[str, int], part: str) -> None:
        self.cut(zipapp, parts, part)
        ran = zipapp.run("--version", command=[str(zipapp.folder / "bin" / "python3.15")])
        assert ran.code == 1
        assert str(zipapp.file) in ran.err


class TestDamaged:
    MEMBERS = ("sums", "unpack.py", "ahead.py", "tidy.py", "start.py", "place.py", "script.py")

    def damage(self, zipapp: Zipapp, member: str, how: bytes) -> None:
        with zipfile.ZipFile(zipapp.file) as archive:
            found = archive.getinfo(f"_bootstrap/{member}")
        content = bytearray(zipapp.file.read_bytes())
        begin = found.header_offset + 30 + len(found.filename) + found.compress_size // 2
        content[begin : begin + len(how)] = how
        zipapp.file.unlink()
        zipapp.file.write_bytes(content)
        zipapp.file.chmod(0o755)

    @pytest.mark.parametrize("how", [b"\xff" * 100, b"\0" * 100, b"damaged"], ids=["ones", "zeros", "text"])
    @pytest.mark.parametrize("member", MEMBERS)
    def test_a_part_of_the_program(self, zipapp: Zipapp, member: str, how: bytes) -> None:
        self.damage(zipapp, member, how)
        by_python = [str(zipapp.folder / "bin" / "python3.15")]
        for command in ([], by_python):
            if member == "place.py" and not command:
                continue  # the launcher has another copy of it
            ran = zipapp.run("--python", "-c", "pass", command=command)
            # Damaged text may have made Python warn of it.
            one_line(Ran(ran.code, "", ran.err.splitlines(True)[-1]), 1, "damaged", str(zipapp.file))
            assert "Traceback" not in ran.err

    @pytest.mark.parametrize("member", ["tidy.py", "start.py"])
    def test_a_start_that_needs_it_beside_the_run_only(self, zipapp: Zipapp, member: str) -> None:
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)
        lock(zipapp).write_bytes(Path("/proc/sys/kernel/random/boot_id").read_bytes().strip())
        # So long ago that the process that sees to the disk must have been killed.
        os.utime(lock(zipapp), (time.time() - 3600,) * 2)
        self.damage(zipapp, member, b"\0" * 100)
        ran = zipapp.run("--version")
        assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")
