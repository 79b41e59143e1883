"""Undocumented names of aiohttp, each with the reason for its use, and the versions that have them.

`connection` also uses attributes of the objects that this module returns. `session` works with every version
of aiohttp: it uses no undocumented name without a default.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from inspect import signature
from logging import WARNING
from traceback import walk_tb
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import aiohttp
from aiohttp import http
from yarl import URL

from loanasync._telemetry.log import log

if TYPE_CHECKING:
    from aiohttp import client_reqrep, connector

    OpenedConnection: TypeAlias = connector.Connection

MAX_BODY_SIZE = 1 << 20  # bytes after decoding; a decision has about a thousand
# More than aiohttp's default of 128 headers of 8 KiB: if the parser rejects a head, the status is lost.
MAX_HEADERS = 1000
MAX_FIELD_SIZE = 1 << 16  # bytes
# aiohttp's parser in C rejects a repeated Content-Length; the one in Python does not.
MUST_CHECK_LENGTHS = http.HttpResponseParser.__module__ != "aiohttp._http_parser"
# The packages of monitoring agents that wrap `ClientSession._request`. `nox -s agents` tests them.
_AGENTS = frozenset({"ddtrace", "elasticapm", "newrelic"})
# The function in which a request waits for a free slot of the session's pool. aiohttp raises the same error
# for this wait and for a slow connection, so only the traceback distinguishes them. If aiohttp renames the
# method, both are reported as slow connections.
_POOL_WAIT = getattr(getattr(aiohttp.BaseConnector, "_wait_for_available_connection", None), "__code__", None)


def tls_setting(connector: aiohttp.BaseConnector | None) -> object:
    """Return the connector's `ssl` setting; True for a connector without TLS, False if it is unknown."""
    # Connectors do not publish this setting. If aiohttp renames the attribute, the user's session is refused.
    return getattr(connector, "_ssl", not isinstance(connector, aiohttp.TCPConnector))


def has_proxy(session: aiohttp.ClientSession) -> bool:
    """Return True if a session sends its requests through a proxy."""
    # Sessions do not publish this setting. If aiohttp renames the attribute, the proxy is not used.
    return getattr(session, "_default_proxy", None) is not None


def belongs_to_other_loop(session: aiohttp.ClientSession) -> bool:
    """Return True if a session was created in another event loop than the running one."""
    # The public property is deprecated. If aiohttp renames the attribute, each request with it fails instead.
    loop = asyncio.get_running_loop()
    return getattr(session, "_loop", loop) is not loop


def waited_for_pool(error: BaseException | None) -> bool:
    """Return True if a timeout error ended the wait for a free slot of the session's pool."""
    while error is not None:
        if any(frame.f_code is _POOL_WAIT for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__cause__ or error.__context__  # early releases of 3.11 set no cause
    return False


def without_wrappers(method: object) -> object:
    """Return a method of `ClientSession` without the outer wrappers of agents, which record its URL."""
    while _package(method) in _AGENTS and (wrapped := getattr(method, "__wrapped__", None)) is not None:
        method = wrapped
    return method


def _package(wrapper: object) -> str:
    """Return the package of the function that a wrapper calls."""
    # Wrappers of the library wrapt have the module of the wrapped method, and the called function here.
    called = getattr(wrapper, "_self_wrapper", wrapper)
    called = getattr(called, "func", called)  # of a partial
    return str(getattr(called, "__module__", None)).partition(".")[0]


_METHODS = vars(aiohttp.ClientSession)  # the present ones
_AT_IMPORT = _METHODS["request"], _METHODS.get("_request")


def _is_of_aiohttp(method: object) -> bool:
    # A wrapper has the attributes of the function that it wraps, so this compares the type.
    return type(method) is FunctionType and method.__globals__ is vars(aiohttp.client)


def is_replaced() -> bool:
    """Return True if other code than an agent, such as a mock, replaced the methods that send a request."""
    request, send = _METHODS["request"], _METHODS.get("_request")
    if request is _AT_IMPORT[0] and send is _AT_IMPORT[1]:
        return _REPLACED_AT_IMPORT
    return not (_is_of_aiohttp(request) and _is_of_aiohttp(without_wrappers(send)))


_REPLACED_AT_IMPORT = not all(map(_is_of_aiohttp, map(without_wrappers, _AT_IMPORT)))


def send_method(session: aiohttp.ClientSession) -> Callable[..., Awaitable[aiohttp.ClientResponse]]:
    """Return `session.request`; if an agent has wrapped it, the function that it calls without the agent."""
    method = _METHODS.get("_request")
    wrapped: Any = without_wrappers(method)
    if wrapped is method or not _is_of_aiohttp(_METHODS["request"]):
        return session.request
    bound: Callable[..., Awaitable[aiohttp.ClientResponse]] = wrapped.__get__(session)
    return bound


class ClosingResponse(aiohttp.ClientResponse):
    """A response whose connection is closed after it; only by the server, if aiohttp renames a method."""

    opened_protocol: object = None

    async def start(self, *arguments: Any) -> aiohttp.ClientResponse:
        """Begin to read the response (called by aiohttp with the connection)."""
        with suppress(AttributeError, IndexError):
            self.opened_protocol = arguments[0].protocol  # aiohttp forgets it at the end of the body
            arguments[0].protocol.force_close()
        return await super().start(*arguments)


def has_next_response(response: aiohttp.ClientResponse) -> bool:
    """Return True if another response, or a part of its head, was received with this one."""
    # The queue of parsed responses, and the parser. If aiohttp renames them, a second response is missed.
    protocol = getattr(response, "opened_protocol", None)
    parser = getattr(protocol, "_parser", None)
    # The parser in Python keeps the begun line and the lines before it. The one in C returns the begun head.
    if any((getattr(protocol, "_buffer", ()), getattr(parser, "_tail", ()), getattr(parser, "_lines", ()))):
        return True
    try:
        return parser is not None and parser.feed_eof() is not None
    except Exception:  # noqa: BLE001  (any error means that the parser did not expect the end here)
        return True


class _ConnectRequest(aiohttp.ClientRequest):
    """A request that opens a connection and is never sent.

    Its key keeps the connections of clients apart from those of the user. A request of the user may leave a
    response on its connection, for example an upload that the server rejects before it has read the body.
    """

    @property
    def connection_key(self) -> "client_reqrep.ConnectionKey":
        """The key of the connection in the pool (read by the connector)."""
        return super().connection_key._replace(proxy_headers_hash=id(_ConnectRequest))


async def open_connection(
    session: aiohttp.ClientSession, url: URL, proxy: URL | None, timeout: aiohttp.ClientTimeout
) -> "OpenedConnection":
    """Return a new connection of the session's connector, which no request has used."""
    request = _ConnectRequest("POST", url, loop=asyncio.get_running_loop(), session=session, proxy=proxy)
    connector = session.connector
    if connector is None:
        raise aiohttp.ClientConnectionError("session closed")
    # No documented method opens a connection without sending a request.
    return await connector.connect(request, [], timeout)


def buffered_body(content: aiohttp.StreamReader | None) -> bytes:
    """Return the part of a body that was received and not read, even if the connection has failed since."""
    # The public methods raise the failure instead. If aiohttp renames this method, these bytes are lost.
    take = getattr(content, "_read_nowait", None)
    return take(-1) if callable(take) else b""


@cache
def is_direct_possible() -> bool:
    """Return True if direct connections can be used with the installed packages; log it once if not."""
    missing = "httptools" if find_spec("httptools") is None else "" if _has_expected_names() else _CHANGED
    if missing:
        log(WARNING, _NOT_DIRECT, missing)
    return not missing


_CHANGED = f"a known aiohttp (this one is {aiohttp.__version__})"
_NOT_DIRECT = (
    "no direct connections without %s: each call opens a connection, and takes 2 to 3 times the CPU time of "
    "plain aiohttp, over TLS 6 to 10 times"
)


def _has_expected_names() -> bool:
    """Return True if the undocumented names exist that open a connection, with the expected arguments."""
    try:
        from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415  (a later aiohttp may lack it)
        from aiohttp.client_reqrep import ConnectionKey  # noqa: PLC0415  (the same)
        from aiohttp.connector import Connection  # noqa: PLC0415  (the same)

        signature(aiohttp.ClientRequest).bind("POST", "url", loop=None, session=None, proxy=None)
        signature(aiohttp.BaseConnector.connect).bind("self", "request", [], "timeout")
        signature(ResponseHandler.connection_lost).bind("self", None)
        signature(Connection.close).bind("self")
        properties: list[object] = [aiohttp.ClientRequest.connection_key, Connection.protocol]
        properties.append(ResponseHandler.should_close)
        return (
            all(isinstance(each, property) for each in properties)
            and "proxy_headers_hash" in ConnectionKey._fields
        )
    except Exception:  # noqa: BLE001  (another version may raise any error)
        return False
