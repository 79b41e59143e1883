"""Requests written straight to the connections of an aiohttp session of our own.

For each request a session sees to cookies, redirects, middlewares, uploads and traces: more work than all
else that a call does. None of it is wanted here. So the session's connector makes a connection, head and
body are written to it at once, and aiohttp's own parser reads the answer. The names that this takes are
public in aiohttp and yet not documented. So it is done only with the aiohttp versions that this release was
tested with, and only if aiohttp passes a check (`is_possible`). Otherwise, and while a test replaces methods
of the session, requests go through `ClientSession.request`.
"""

import asyncio
from contextlib import suppress
from functools import cache, cached_property
from inspect import signature
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from loanasync._lifecycle import Waits
from loanasync._log import warn_once
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures as replies
from loanasync._transport.aiohttp_internals import AT_ONCE
from loanasync._transport.aiohttp_session import SessionTransport, connecting
from loanasync._transport.fast.compatibility import is_parser_usable
from loanasync._transport.fast.connection import DirectConnection, Scheduler, path_of
from loanasync._transport.liveness import hear_out
from loanasync._transport.tested import is_tested

if TYPE_CHECKING:
    from collections.abc import Callable


_LONGEST_CLOSE = 1.0  # seconds that aiohttp may take to close its session


def _sends() -> tuple[object, object]:
    # What aioresponses and others put their own in place of.
    return aiohttp.ClientSession.request, getattr(aiohttp.ClientSession, "_request", None)


_SENDS = _sends()
_SEEN = "something has taken the place of aiohttp's ClientSession._request: it sees fiscal codes and tokens"


@cache
def is_possible() -> bool:
    """Return True if this aiohttp was tested, and has what is used here in the form in which it is used."""
    return is_tested(aiohttp.__version__) and _has_what_is_used()


def _has_what_is_used() -> bool:
    try:
        from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415  (a later aiohttp may not have it)
        from aiohttp.connector import Connection  # noqa: PLC0415  (as above)

        return (
            _takes(aiohttp.BaseConnector.connect, "self", "req", "traces", "timeout")
            and _takes(aiohttp.ClientRequest.__init__, "self", "method", "url", "loop", "session")
            and _takes(Connection.close, "self")
            and _takes(ResponseHandler.connection_lost, "self", "exc")
            and isinstance(Connection.transport, property)
            and isinstance(Connection.protocol, property)
            and isinstance(ResponseHandler.should_close, property)
            and is_parser_usable()
            and all(map(_is_aiohttps, _SENDS))
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


class DirectTransport:
    """One aiohttp session of one event loop, our own, whose connections are written to directly."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._through_session = SessionTransport(session, owned=True)
        self._loop = asyncio.get_running_loop()
        self._watch = Scheduler(self._loop)
        self._places: dict[str, _Origin] = {}
        self._waits = Waits()  # for connections

    def check(self) -> None:
        """Look whether a call can begin: it can."""

    async def aclose(self) -> None:
        """End the calls in progress, and close the session."""
        self._waits.close()
        wires = tuple(self._watch.wires)
        for wire in wires:
            wire.cut_off()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_CLOSE):
                    await self._through_session.aclose()
        finally:
            self._watch.stop()

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""
        is_replaced = _sends() != _SENDS
        if is_replaced:
            warn_once(_SEEN)
        if is_replaced or self._session.closed:
            return await self._through_session.send(request, connect=connect, within=within)
        until = self._loop.time() + within
        request.is_sent = False
        place = self._place(request)
        while True:
            waiting = place.take()
            wire = waiting or await self._connected(place, connect, until)
            if isinstance(wire, NoResponse):
                return wire
            keep = len(request.body) < AT_ONCE
            try:
                answer = await wire.ask(request, place.name, until)
            except BaseException as error:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                if is_cancelled and request.outlives_caller and request.is_sent:
                    request.late = wire.answer_late(keep=keep)
                else:
                    wire.end(keep=keep)
                raise
            wire.end(keep=keep)
            if waiting is None or isinstance(answer, Response) or answer.is_sent:
                return answer
            if self._waits.is_closed or self._loop.time() >= until:
                return answer
            # The connection ended while it waited, and before anything had left: another will do.

    async def _connected(
        self, place: "_Origin", connect: float, until: float
    ) -> DirectConnection | NoResponse:
        """Return a new connection, or the reason why it failed."""
        try:
            return await self._connect(place, connect, until)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = asyncio.CancelledError() if self._waits.is_closed else error
            try:
                return replies.no_answer(reason, never_left=True)
            finally:
                replies.drop_frames(error)
        except asyncio.CancelledError as given_up:
            replies.drop_frames(given_up)  # an error report with local variables would show the token
            if replies.was_cancelled():
                raise
            return replies.no_answer(given_up, never_left=True)

    async def _connect(self, place: "_Origin", connect: float, until: float) -> DirectConnection:
        connector = self._session.connector
        assert connector is not None  # noqa: S101  (the session is open)
        async with asyncio.timeout_at(until) as limit:
            self._waits.add(limit)
            try:
                connection = await connector.connect(place, [], connecting(connect))
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError("no connection in time") from error
            finally:
                self._waits.discard(limit)
        wire = DirectConnection(connection, self._watch, place.idle)
        is_clean = False
        try:
            # What the server said before it was asked would be taken for the answer.
            if wire.has_unread_data():
                await hear_out(wire.has_unread_data)
            is_clean = wire.is_clean  # what is still unread may be another session ticket of TLS
            if self._loop.time() >= until:  # the event loop was blocked meanwhile
                is_clean = False
                raise aiohttp.ConnectionTimeoutError("no connection in time")
            if not is_clean:
                raise aiohttp.ClientConnectionResetError("not a clean connection")
        finally:
            if not is_clean:
                wire.abort()
        return wire

    def _place(self, request: Request) -> "_Origin":
        origin = request.url[: path_of(request.url)]
        try:
            return self._places[origin]
        except KeyError:
            place = self._places[origin] = _Origin(
                "POST", URL(origin), loop=self._loop, session=self._session
            )
            return place


class _Origin(aiohttp.ClientRequest):
    """Where connections lead to, as aiohttp wants it told, and those that wait for their next call."""

    @cached_property
    def idle(self) -> dict[DirectConnection, None]:
        return {}

    @cached_property
    def name(self) -> str:
        return self.url.host_port_subcomponent or ""

    def take(self) -> DirectConnection | None:
        while self.idle:
            wire, _ = self.idle.popitem()  # the last: the others are closed when they are not needed
            if wire.is_at_rest:
                return wire
            wire.close()
        return None
