"""The check that the direct path can use the connections and the parser of the installed aiohttp.

The direct path uses names that are public in aiohttp and not documented. So it needs a tested version,
the known parameters, and a parser that behaves as `connection` expects.
"""

from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp

from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import is_tested, rest_of
from loanasync._transport.fast.connection import new_parser

if TYPE_CHECKING:
    from collections.abc import Callable


def request_methods() -> tuple[object, object]:
    """Return the methods that aioresponses and others replace, to see requests or to answer them."""
    return aiohttp.ClientSession.request, getattr(aiohttp.ClientSession, "_request", None)


REQUEST_METHODS = request_methods()


@cache
def is_possible() -> bool:
    """Return True if this aiohttp was tested, and has what is used here in the form in which it is used."""
    return is_tested(aiohttp.__version__) and _has_what_is_used()


def _has_what_is_used() -> bool:
    try:
        from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415  (a later aiohttp may not have it)
        from aiohttp.connector import Connection  # noqa: PLC0415  (the same)

        return (
            _takes(aiohttp.BaseConnector.connect, "self", "req", "traces", "timeout")
            and _takes(aiohttp.ClientRequest.__init__, "self", "method", "url", "loop", "session")
            and _takes(Connection.close, "self")
            and _takes(ResponseHandler.connection_lost, "self", "exc")
            and isinstance(Connection.transport, property)
            and isinstance(Connection.protocol, property)
            and isinstance(ResponseHandler.should_close, property)
            and is_parser_usable()
            and all(map(_is_aiohttps, REQUEST_METHODS))
        )
    except Exception:  # noqa: BLE001  (whatever another aiohttp raises)
        return False


def _is_aiohttps(method: object) -> bool:
    # A test's hand may have been there before us: an import within it would take its doing for aiohttp's.
    code = getattr(method, "__code__", None)
    return str(getattr(code, "co_qualname", "")).startswith("ClientSession.")


def _takes(function: "Callable[..., object]", *names: str) -> bool:
    parameters = signature(function).parameters
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    return needed <= set(names) <= parameters.keys()


def is_parser_usable() -> bool:
    """Return True if the parser behaves as `connection` expects, for each way in which a body can end.

    Any exception means the same as False.
    """
    return _parses_length() and _parses_chunks() and _parses_to_eof() and _pauses()


class _Reading:
    """A response that a new parser reads, and what is known of it after each part."""

    def __init__(self, head: bytes, limit: int = failures.LARGEST_BODY) -> None:
        self.pauses = 0
        protocol = SimpleNamespace(pause_reading=self._pause, resume_reading=lambda **_: None)
        self.parser = new_parser(protocol, None, limit)
        received = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n"
        [(self.head, self.content)], self.is_upgraded, _ = self.parser.feed_data(received)

    def _pause(self) -> None:
        self.pauses += 1
        self.parser.pause_reading()

    def state(self) -> tuple[bool, BaseException | None, bytes]:
        """Return whether the body is whole, its error, and what arrived since the last time."""
        return self.content.is_eof(), self.content.exception(), rest_of(self.content)


def _parses_length() -> bool:
    reading = _Reading(b"Content-Length: 2\r\n")
    head = reading.head
    known = head.code, head.should_close, head.chunked, reading.is_upgraded
    before = reading.state()
    reading.parser.feed_data(b"{}")
    states = before, reading.state(), reading.content.total_bytes
    return known == (200, False, False, False) and states == ((False, None, b""), (True, None, b"{}"), 2)


def _parses_chunks() -> bool:
    reading = _Reading(b"Transfer-Encoding: chunked\r\n")
    reading.parser.feed_data(b"1\r\n{\r\n")
    before = reading.state()
    reading.parser.feed_data(b"1\r\n}\r\n0\r\n\r\n")
    return reading.head.chunked and (before, reading.state()) == ((False, None, b"{"), (True, None, b"}"))


def _parses_to_eof() -> bool:
    reading = _Reading(b"")
    reading.parser.feed_data(b"{}")
    before = reading.state()
    reading.parser.feed_eof()
    return reading.head.should_close and (before, reading.state()) == (
        (False, None, b"{}"),
        (True, None, b""),
    )


def _pauses() -> bool:
    stopped, whole = (_Reading(b"Content-Length: 99\r\n", limit) for limit in (10, failures.LARGEST_BODY))
    for reading in (stopped, whole):
        reading.parser.feed_data(b" " * 50)
    arrived = stopped.content.total_bytes, len(rest_of(stopped.content))
    return stopped.pauses > 0 and arrived == (50, 50) and whole.pauses == 0
