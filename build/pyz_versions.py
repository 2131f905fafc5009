"""Which project a library bundled in psycopg's wheels is part of, and in which version: the files themselves tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

#: The starts of file names, by project. That com_err is krb5's own; e2fsprogs' has the number 2.
PARTS = {
    "openssl": ("libcrypto-", "libssl-"),
    "krb5": ("libkrb5-", "libkrb5support-", "libk5crypto-", "libgssapi_krb5-"),
    "cyrus-sasl": ("libsasl2-",),
    "openldap": ("libldap-", "liblber-"),
    "postgresql": ("libpq-",),
    "keyutils": ("libkeyutils-",),
}
KRB5_COM_ERR = re.compile(r"libcom_err-[0-9a-f]+\.so\.3\.")


def text(pattern: bytes) -> Callable[[bytes], str | None]:
    def find(content: bytes) -> str | None:
        found = re.search(pattern, content)
        return found[1].decode() if found else None

    return find


def numbers(content: bytes, x86: bytes, arm: bytes, low: int, high: int) -> set[int]:
    """Numbers between the two that the library's machine code holds as operands where the patterns say.

    ``arm`` matches an instruction, whose bits 5 to 20 are the lower half of the number; the upper half is ``low``'s.
    """
    found = {int.from_bytes(operand, "little") for operand in re.findall(x86, content, re.DOTALL)}
    upper = low & ~0xFFFF
    words = (match[1] for match in re.finditer(arm, content, re.DOTALL) if match.start() % 4 == 0)
    found |= {upper | int.from_bytes(word, "little") >> 5 & 0xFFFF for word in words}
    return {number for number in found if low <= number <= high}


def postgresql(content: bytes) -> str | None:
    """What PQlibVersion returns, 180006 for 18.6: a function of two or three instructions, so its number is in them."""
    # mov eax, N; ret -- movz w0, N; movk w0, 2, lsl 16; ret. 2 is the upper half from 13.1 to 19.
    arm = rb"(?=(..[\x80-\x9f]\x52)\x40\x00\xa0\x72\xc0\x03\x5f\xd6)"
    found = numbers(content, rb"\xb8(..\x02\x00)\xc3", arm, 0x20000, 0x2FFFF)
    return "{}.{}".format(*divmod(number, 10000)) if len(found) == 1 and (number := found.pop()) else None


def openldap(content: bytes) -> str | None:
    """What ldap_get_option stores as the vendor's version, 20616 for 2.6.16, at 32 in LDAPAPIInfo."""
    # mov dword [r+32], N -- movz w, N.
    found = numbers(content, rb"\xc7[\x40-\x47]\x20(..\x00\x00)", rb"(?=(..[\x80-\x9f]\x52))", 20600, 20699)
    if len(found) != 1:
        return None
    number = found.pop()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


#: The file that tells the version of its project, and how to read it there.
TELLERS: dict[str, tuple[str, Callable[[bytes], str | None]]] = {
    "openssl": ("libcrypto-", text(rb"OpenSSL (\d+\.\d+\.\d+[a-z]?) ")),
    "krb5": ("libkrb5-", text(rb"KRB5_BRAND: krb5-(\d+(?:\.\d+)+)")),
    "cyrus-sasl": ("libsasl2-", text(rb"\0(2\.\d+\.\d+)\0")),
    "openldap": ("libldap-", openldap),
    "postgresql": ("libpq-", postgresql),
    "keyutils": ("libkeyutils-", text(rb"keyutils-(\d+(?:\.\d+)+)")),
}


def project_of(name: str) -> str | None:
    if KRB5_COM_ERR.match(name):
        return "krb5"
    return next((project for project, starts in PARTS.items() if name.startswith(starts)), None)


def versions(files: Mapping[str, bytes]) -> dict[str, str]:
    """The versions of the projects that these libraries, of one platform, are parts of, as far as they tell."""
    found = {}
    for name, content in files.items():
        for project, (start, read) in TELLERS.items():
            if name.startswith(start) and (version := read(content)):
                found[project] = version
    return found
