"""pytest plugin that fails tests which connect to other machines.

It uses the audit events of Python's sockets. It does not see other processes, such as a browser, and
libraries with their own sockets, such as the name resolution of uvloop.
"""

import sys
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

_CONNECT_EVENTS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_LOOKUP_EVENTS = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}

attempts: list[str] = []  # since the last test ended


class OutsideError(AssertionError):
    """A connection to another machine was attempted."""


def _host(event: str, arguments: tuple[object, ...]) -> object:
    """Return the host of an event. None for Unix sockets and for sockets that are connected already."""
    if event in _LOOKUP_EVENTS:
        return arguments[0]
    if event in _CONNECT_EVENTS and isinstance(arguments[1], tuple):
        return arguments[1][0]
    return None


def _is_local(host: object) -> bool:
    try:
        return host == "localhost" or ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    host = _host(event, arguments)
    if host is not None and not _is_local(host):
        attempts.append(f"{event} of {host!r}")
        raise OutsideError(f"tests must not connect to other machines: {attempts[-1]}")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def no_outside_connections() -> Iterator[None]:
    """Fail a test that attempted a connection, even if the tested code caught the error."""
    yield
    summary = ", ".join(attempts)
    attempts.clear()
    if summary:
        pytest.fail(f"the test tried to connect to other machines: {summary}")
