"""Nobody outside of this machine is asked for anything while tests run: a plugin of pytest's that sees to it.

It stands on what Python tells of its own sockets. Out of its sight are other processes, such as a browser,
and libraries that do without these sockets, as uvloop does where it looks a name up.
"""

import sys
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

__all__ = ["OutsideError", "asked", "nobody_outside_is_asked"]

_SENDING = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_NAMING = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}

asked: list[str] = []  # since a test last ended


class OutsideError(AssertionError):
    """Somebody outside of this machine would have been asked."""


def _host(event: str, arguments: tuple[object, ...]) -> object:
    """Who is asked; None for nobody, a path of the file system, or whom a connection already leads to."""
    if event in _NAMING:
        return arguments[0]
    if event in _SENDING and isinstance(arguments[1], tuple):
        return arguments[1][0]
    return None


def _is_here(host: object) -> bool:
    try:
        return host == "localhost" or ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    host = _host(event, arguments)
    if host is not None and not _is_here(host):
        asked.append(f"{event} of {host!r}")
        raise OutsideError(f"tests stay on this machine, and this does not: {asked[-1]}")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def nobody_outside_is_asked() -> Iterator[None]:
    """Fail a test that asked, even where the error was caught by what is tested."""
    yield
    told = ", ".join(asked)
    asked.clear()
    if told:
        pytest.fail(f"tests stay on this machine, and this one does not: {told}")
