"""Requests written straight to the connections of an aiohttp session of our own.

For each request a session sees to cookies, redirects, middlewares, uploads and traces: more work than all
else that a call does. None of it is wanted here. So the pool of the session is asked for a connection, head
and body are written to it at once, and aiohttp's own parser reads the answer. The names that this takes are
public in aiohttp and yet not documented: whoever finds them changed (`is_possible`), or finds a test's hand
on the session, sends through the session as its documentation says.
"""

import asyncio
from functools import cache, cached_property
from inspect import signature
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

from loanasync import _replies as replies
from loanasync._calls import NoAnswer, Reply, Request
from loanasync._events import warn_once
from loanasync._transport import Transport, connecting

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.http import RawResponseMessage

__all__ = ["Direct", "is_possible"]

# Bytes, as much as asyncio holds back for nobody: of more, some may still wait here when the answer has come.
_AT_ONCE = 1 << 16


def _sends() -> tuple[object, object]:
    # What aioresponses and others put their own in place of.
    return aiohttp.ClientSession.request, getattr(aiohttp.ClientSession, "_request", None)


_SENDS = _sends()
_SEEN = "something has taken the place of aiohttp's ClientSession._request: it sees fiscal codes and tokens"


@cache
def is_possible() -> bool:
    """Whether aiohttp has what is used here in the form in which it is used."""
    try:
        from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415  (a later aiohttp may not have it)
        from aiohttp.connector import Connection  # noqa: PLC0415  (as above)

        return (
            _takes(aiohttp.BaseConnector.connect, "self", "req", "traces", "timeout")
            and _takes(aiohttp.ClientRequest.__init__, "self", "method", "url", "loop", "session")
            and _takes(Connection.close, "self")
            and _takes(Connection.release, "self")
            and _takes(ResponseHandler.read, "self")
            and _takes(ResponseHandler.set_response_params, "self", "read_until_eof")
            and isinstance(Connection.protocol, property)
            and isinstance(ResponseHandler.should_close, property)
            and all(map(_is_aiohttps, _SENDS))
        )
    except (ImportError, AttributeError):
        return False


def _is_aiohttps(method: object) -> bool:
    # A test's hand may have been there before us: an import within it would take its doing for aiohttp's.
    code = getattr(method, "__code__", None)
    return str(getattr(code, "co_qualname", "")).startswith("ClientSession.")


def _takes(function: "Callable[..., object]", *names: str) -> bool:
    parameters = signature(function).parameters
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    return needed <= set(names) <= parameters.keys()


class Direct:
    """One aiohttp session of one event loop, our own, whose connections are written to directly."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._through_session = Transport(session, owned=True)
        self._places: dict[str, _Place] = {}

    def check(self) -> None:
        """Look whether a call can begin: it can."""

    async def aclose(self) -> None:
        """Close the session."""
        await self._session.close()

    async def send(self, request: Request, *, connect: float, within: float) -> Reply | NoAnswer:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""
        is_replaced = _sends() != _SENDS
        if is_replaced:
            warn_once(_SEEN)
        if is_replaced or self._session.closed:
            return await self._through_session.send(request, connect=connect, within=within)
        exchange = _Exchange()
        try:
            async with asyncio.timeout(within):
                return await exchange.make(self._session, self._place(request), request, connect)
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError) as error:
            try:
                return exchange.failed(error)
            finally:
                replies.drop_frames(error)
        except asyncio.CancelledError as given_up:
            replies.drop_frames(given_up)  # an error report with local variables would show token and answer
            raise
        finally:
            exchange.end()

    def _place(self, request: Request) -> "_Place":
        origin = request.url[: _path_of(request.url)]
        try:
            return self._places[origin]
        except KeyError:
            place = self._places[origin] = _Place(
                "POST", URL(origin), loop=asyncio.get_running_loop(), session=self._session
            )
            return place


class _Place(aiohttp.ClientRequest):
    """Where connections lead to, in the form in which aiohttp's pool is asked for one."""

    @cached_property
    def connection_key(self) -> "ConnectionKey":  # a property there, made each time
        return super().connection_key

    @cached_property
    def name(self) -> str:
        return self.url.host_port_subcomponent or ""


class _Exchange:
    """One request and its answer on one connection."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._has_left = False
        self._head: RawResponseMessage | None = None
        self._can_be_kept = False

    async def make(
        self, session: aiohttp.ClientSession, place: _Place, request: Request, connect: float
    ) -> Reply:
        connector = session.connector
        assert connector is not None  # noqa: S101  (the session is open)
        try:
            self._connection = await connector.connect(place, [], connecting(connect))
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError("no connection in time") from error
        protocol = self._connection.protocol
        # What the server said before it was asked would be taken for the answer.
        if protocol is None or protocol.transport is None or protocol.should_close:
            raise aiohttp.ClientConnectionResetError("not a clean connection")
        if protocol.transport.is_closing():
            raise aiohttp.ClientConnectionResetError("a connection that ends")
        protocol.set_response_params(read_until_eof=True)
        protocol.transport.write(_written(request, place.name))  # no local variable: reports show those
        self._has_left = True
        head, content = await protocol.read()
        while 100 <= head.code < 200 and head.code != 101:  # noqa: PLR2004  (RFC 9110 §15.2: the answer follows)
            head, content = await protocol.read()
        self._head = head
        reply = await replies.read(head.code, head.headers, content)
        self._can_be_kept = reply.fault is None and len(request.body) < _AT_ONCE
        return reply

    def failed(self, error: Exception) -> Reply | NoAnswer:
        if self._head is None:
            return replies.no_answer(error, never_left=not self._has_left)
        return replies.half_an_answer(self._head.code, self._head.headers, error)

    def end(self) -> None:
        if self._connection is None:
            return
        if self._can_be_kept:
            self._connection.release()  # which closes it, if nothing more can come of it
            return
        if self._connection.transport is not None:
            self._connection.transport.abort()  # closing alone would go on sending what was given up
        self._connection.close()


def _path_of(url: str) -> int:
    return url.index("/", len("https://"))


def _written(request: Request, host: str) -> bytes:
    """A request as it goes over the wire."""
    if not "".join(request.headers.values()).isprintable():
        raise ValueError("a header must not hold line breaks")  # one would begin another header
    headers = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
    head = (
        f"{request.method} {request.url[_path_of(request.url) :]} HTTP/1.1\r\n"
        f"Host: {host}\r\nContent-Length: {len(request.body)}\r\n{headers}\r\n"
    )
    return head.encode() + request.body
