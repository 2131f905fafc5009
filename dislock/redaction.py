"""What must not be printed: passwords, wherever a slip of the hand put them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

#: Shorter ones are in any text, and blotting them out would only tell what they are.
SHORTEST = 4
#: What libpq and PostgreSQL say of themselves while connecting. A password that is one of these words is blotted out
#: only where something quotes it: the sentence would be spoilt, and would tell the password by its gap.
PHRASES = """
connection to server at port failed connection refused timeout expired FATAL ERROR password authentication
failed for user role database does not exist no pg_hba.conf entry host SSL encryption off no encryption could
not translate hostname address failed to resolve name or service not known is the server running on that
accepting TCP/IP connections socket file or directory closed unexpectedly terminated abnormally before while
processing request fe_sendauth no password supplied certificate verify failed root table permission denied
relation column type statement cancelled postgresql
"""

_KEY_VALUE = re.compile(r"""password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)""", re.IGNORECASE)
#: All before the last "@"; without one, what stands where the port would be.
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
    """The URL and what may be a password in it, longest first; also where a slip of the hand put it elsewhere.

    With an "@" forgotten or mistyped, libpq takes the password for a port or a database, and errors name those.
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
    # A message that lacks the user's name helps nobody, and that the password is the same cannot be told from it.
    return [url, *sorted(found - {user}, key=len, reverse=True)]
