"""What an ELF library says of itself: the machine, the libraries that it needs, and where they are looked for."""

from __future__ import annotations

import struct

_MACHINES = {62: "x86_64", 183: "aarch64"}
_DYNAMIC, _NEEDED, _STRTAB, _RPATH, _RUNPATH = 2, 1, 5, 15, 29


class Library:
    """A 64-bit little-endian library, as both machines have them (System V ABI, chapters 4 and 5)."""

    def __init__(self, content: bytes) -> None:
        assert content[:6] == b"\x7fELF\x02\x01"
        (machine,) = struct.unpack_from("<H", content, 18)
        self.machine = _MACHINES[machine]
        (start,) = struct.unpack_from("<Q", content, 32)
        size, number = struct.unpack_from("<HH", content, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", content, start + index * size) for index in range(number)]

        def offset(address: int) -> int:
            return int(next(h[2] + address - h[3] for h in headers if h[0] == 1 and h[3] <= address < h[3] + h[5]))

        [(_, _, where, _, _, length, _, _)] = [header for header in headers if header[0] == _DYNAMIC]
        entries = list(struct.iter_unpack("<QQ", content[where : where + length]))
        strings = offset(next(value for tag, value in entries if tag == _STRTAB))

        def text(place: int) -> str:
            return content[strings + place : content.index(b"\0", strings + place)].decode()

        self.needed = {text(value) for tag, value in entries if tag == _NEEDED}
        self.search = [part for tag, value in entries if tag in (_RPATH, _RUNPATH) for part in text(value).split(":")]
