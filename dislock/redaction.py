"""Keeps passwords out of what is printed, also where a typo put them into the wrong place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

#: Shorter secrets occur in any text, so blotting them out would reveal them.
SHORTEST = 4
#: Words that libpq and PostgreSQL use themselves while connecting. A password that is one of them is blotted out only
#: where it is quoted: elsewhere the gap in the sentence would reveal it.
PHRASES = """
connection to server at port failed connection refused timeout expired FATAL ERROR password authentication
failed for user role database does not exist no pg_hba.conf entry host SSL encryption off no encryption could
not translate hostname address failed to resolve name or service not known is the server running on that
accepting TCP/IP connections socket file or directory closed unexpectedly terminated abnormally before while
processing request fe_sendauth no password supplied certificate verify failed root table permission denied
relation column type statement cancelled postgresql
"""

_KEY_VALUE = re.compile(r"""password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)""", re.IGNORECASE)
#: Everything before the last "@"; without one, what stands in the place of the port.
_USER_INFO = re.compile(r"//(.*)@")
_PORT = re.compile(r"//[^:/?]*:([^/?]*)")


def blot_out(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, which should come longest first."""
    for secret in secrets:
        if len(secret) < SHORTEST:
            continue
        if secret.lower() in PHRASES.lower():
            text = re.sub(rf"(?<=['\":/@]){re.escape(secret)}(?=['\":/@])", "***", text)
        else:
            text = text.replace(secret, "***")
    return text


def secrets_of(url: str) -> list[str]:
    """The URL and what may be a password in it, longest first; also one that a typo put into another place.

    If an "@" is missing or mistyped, libpq takes the password for a port or a database, and its errors show those.
    """
    found = {word.strip("'") for word in _KEY_VALUE.findall(url)}
    pieces: list[str] = []
    user = ""
    if match := _USER_INFO.search(url):
        user, _, password = match[1].partition(":")
        if "/" in user:
            pieces = re.split("[:/?&@,]", match[1])
        else:
            found.add(password)
            pieces = re.split("[:/?&@,]", password)
    elif match := _PORT.search(url):
        pieces = [match[1], *re.split("[:@,]", match[1])]
    # Numbers are ports.
    found |= {piece for piece in pieces if not piece.isdigit()}
    found |= {unquote(word) for word in found}
    # A message without the user's name helps nobody, and nothing in it shows that the password is the same.
    return [url, *sorted(found - {user}, key=len, reverse=True)]
