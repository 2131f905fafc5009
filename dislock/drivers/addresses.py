"""The addresses of one name: looked up for each connection, and tried one by one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence

from dislock.drivers.clock import clock
from dislock.protocol.steps import Answer, Failed, Failure, silent

Parameters = dict[str, str]


def is_name(parameters: Parameters) -> bool:
    """Whether the host must be looked up: it is neither a socket nor an address, and ``hostaddr`` is not set."""
    host = parameters.get("host", "")
    if host == "" or host[0] in "/@" or parameters.get("hostaddr"):
        return False
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return True
    return False


def addresses(parameters: Parameters) -> list[Parameters]:
    """One set of parameters for each address of a name. They keep the name, for TLS. Can block for any time.

    libpq tries the next address only if one refuses. It would not get past a server that does not answer.
    """
    host = parameters["host"]
    try:
        found = socket.getaddrinfo(host, parameters.get("port") or None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"failed to resolve host {host!r}: {error.strerror}") from None
    each = [{**parameters, "hostaddr": address} for address in dict.fromkeys(str(info[4][0]) for info in found)]
    if parameters.get("load_balance_hosts") == "random":
        random.shuffle(each)
    return each


def shares(candidates: Sequence[Parameters], by: float) -> Iterator[tuple[Parameters, float]]:
    """Each with the moment by which it must have answered: an equal share of the time that is left."""
    for index, parameters in enumerate(candidates):
        now = clock()
        yield parameters, now + (by - now) / (len(candidates) - index)


def failure_at(name: str, parameters: Parameters, answer: Answer) -> Failure:
    """The failure at one of several addresses, with the address: libpq's text has it only with newer psycopg."""
    address = parameters["hostaddr"]
    if not isinstance(answer, Failed):
        return silent(f"{name} at {address}")
    failure = answer.failure
    return failure if address in failure.text else failure._replace(text=f"{name} at {address}: {failure.text}")
