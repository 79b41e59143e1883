"""The check that the direct path works with the installed version of aiohttp.

The direct path uses undocumented names of aiohttp. It is used only if the version is one that was tested, if
these names have the expected parameters, and if the parser behaves as `connection` expects. Otherwise
requests are sent through `ClientSession.request`.
"""

from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp

from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import DIRECT_AIOHTTP, buffered_body, is_tested, minor_version
from loanasync._transport.fast.connection import new_parser

if TYPE_CHECKING:
    from collections.abc import Callable


def request_methods() -> tuple[object, object]:
    """Return the methods of `ClientSession` that libraries such as aioresponses replace."""
    return aiohttp.ClientSession.request, getattr(aiohttp.ClientSession, "_request", None)


# The settings that are read before each request of a user's session. Some have no public property.
_SETTINGS = {
    "_connector",
    "_cookie_jar",
    "_default_auth",
    "_default_headers",
    "_default_proxy",
    "_default_proxy_auth",
    "_request_class",
    "_response_class",
    "_trace_configs",
    "_trust_env",
    "_version",
}
REQUEST_METHODS = request_methods()  # at import; `_has_expected_api` checks that they are aiohttp's


@cache
def is_possible() -> bool:
    """Return True if the direct path can be used with the installed aiohttp."""
    version = aiohttp.__version__
    return is_tested(version) and minor_version(version) in DIRECT_AIOHTTP and _has_expected_api()


def _has_expected_api() -> bool:
    try:
        from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415  (a later aiohttp may lack it)
        from aiohttp.client_reqrep import ConnectionKey  # noqa: PLC0415  (the same)
        from aiohttp.connector import Connection  # noqa: PLC0415  (the same)
        from aiohttp.tracing import Trace  # noqa: PLC0415  (the same)

        return (
            _takes(aiohttp.BaseConnector.connect, "self", "req", "traces", "timeout")
            and _takes(aiohttp.ClientRequest.__init__, "self", "method", "url", "loop", "session")
            and _takes(vars(aiohttp.BaseConnector)["_get"], "self", "key", "traces")
            and callable(vars(aiohttp.BaseConnector)["_release"])
            and _SETTINGS <= aiohttp.ClientSession.ATTRS
            and isinstance(aiohttp.ClientRequest.connection_key, property)
            and "proxy_headers_hash" in ConnectionKey._fields
            and _takes(Trace.send_connection_reuseconn, "self")
            and _takes(Connection.close, "self")
            and _takes(Connection.release, "self")
            and _takes(ResponseHandler.connection_lost, "self", "exc")
            and isinstance(Connection.transport, property)
            and isinstance(Connection.protocol, property)
            and isinstance(ResponseHandler.should_close, property)
            and isinstance(ResponseHandler.writing_paused, property)
            and is_parser_usable()
            and all(map(_is_of_client_session, REQUEST_METHODS))
        )
    except Exception:  # noqa: BLE001  (another version may raise any error)
        return False


def _is_of_client_session(method: object) -> bool:
    # The method may already be monkeypatched (by aioresponses, say) when this module is imported. Then
    # REQUEST_METHODS holds the patch, and a later patch could not be noticed.
    code = getattr(method, "__code__", None)
    return str(getattr(code, "co_qualname", "")).startswith("ClientSession.")


def _takes(function: "Callable[..., object]", *names: str) -> bool:
    parameters = signature(function).parameters
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    return needed <= set(names) <= parameters.keys()


def is_parser_usable() -> bool:
    """Return True if the parser behaves as `connection` expects. May raise any exception, which means False.

    A body may end by its Content-Length, by its last chunk, or with the connection.
    """
    return _parses_length() and _parses_chunks() and _parses_to_eof() and _pauses()


class _ParserProbe:
    """A new parser that has parsed the given head of a response."""

    def __init__(self, head: bytes, limit: int = failures.MAX_BODY_SIZE) -> None:
        self.pauses = 0
        protocol = SimpleNamespace(pause_reading=self._pause, resume_reading=lambda **_: None)
        self.parser = new_parser(protocol, None, limit)
        received = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n"
        [(self.head, self.content)], self.is_upgraded, _ = self.parser.feed_data(received)

    def _pause(self) -> None:
        self.pauses += 1
        self.parser.pause_reading()

    def body_state(self) -> tuple[bool, BaseException | None, bytes]:
        """Return whether the body is complete, its error, and the bytes received since the last call."""
        return self.content.is_eof(), self.content.exception(), buffered_body(self.content)


def _parses_length() -> bool:
    probe = _ParserProbe(b"Content-Length: 2\r\n")
    head = probe.head
    head_state = head.code, head.should_close, head.chunked, probe.is_upgraded
    before = probe.body_state()
    probe.parser.feed_data(b"{}")
    states = before, probe.body_state(), probe.content.total_bytes
    return head_state == (200, False, False, False) and states == ((False, None, b""), (True, None, b"{}"), 2)


def _parses_chunks() -> bool:
    probe = _ParserProbe(b"Transfer-Encoding: chunked\r\n")
    probe.parser.feed_data(b"1\r\n{\r\n")
    before = probe.body_state()
    probe.parser.feed_data(b"1\r\n}\r\n0\r\n\r\n")
    return probe.head.chunked and (before, probe.body_state()) == ((False, None, b"{"), (True, None, b"}"))


def _parses_to_eof() -> bool:
    probe = _ParserProbe(b"")
    probe.parser.feed_data(b"{}")
    before = probe.body_state()
    probe.parser.feed_eof()
    return probe.head.should_close and (before, probe.body_state()) == (
        (False, None, b"{}"),
        (True, None, b""),
    )


def _pauses() -> bool:
    head = b"Content-Length: 99\r\n"
    stopped, whole = (_ParserProbe(head, limit) for limit in (10, failures.MAX_BODY_SIZE))
    for probe in (stopped, whole):
        probe.parser.feed_data(b" " * 50)
    arrived = stopped.content.total_bytes, len(buffered_body(stopped.content))
    return stopped.pauses > 0 and arrived == (50, 50) and whole.pauses == 0
