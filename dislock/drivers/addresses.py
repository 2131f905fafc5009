"""The servers behind one name: looked up anew for each connection, and tried one by one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence

from dislock.drivers.clock import clock
from dislock.protocol.steps import Answer, Failed, Failure, silent

Parameters = dict[str, str]


def is_name(parameters: Parameters) -> bool:
    """Whether the host has to be looked up: it is no socket and no address, and none is given beside it."""
    host = parameters.get("host", "")
    if host == "" or host[0] in "/@" or parameters.get("hostaddr"):
        return False
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return True
    return False


def addresses(parameters: Parameters) -> list[Parameters]:
    """One set of parameters for each address of a name, which stays with it for TLS. May block, for any time.

    libpq goes from one address to the next only when one refuses; a server that says nothing would keep it for good.
    """
    host = parameters["host"]
    try:
        found = socket.getaddrinfo(host, parameters.get("port"), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"failed to resolve host {host!r}: {error.strerror}") from None
    each = [{**parameters, "hostaddr": address} for address in dict.fromkeys(str(info[4][0]) for info in found)]
    if parameters.get("load_balance_hosts") == "random":
        random.shuffle(each)
    return each


def shares(candidates: Sequence[Parameters], by: float) -> Iterator[tuple[Parameters, float]]:
    """Each with the moment by which it must have answered: an equal share of the time that is then left."""
    for index, parameters in enumerate(candidates):
        now = clock()
        yield parameters, now + (by - now) / (len(candidates) - index)


def failure_at(name: str, parameters: Parameters, answer: Answer) -> Failure:
    """What went wrong at one address of several."""
    return answer.failure if isinstance(answer, Failed) else silent(f"{name} at {parameters['hostaddr']}")
