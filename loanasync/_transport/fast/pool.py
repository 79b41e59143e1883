"""The pool of the direct path: idle connections per origin, and the transport that sends on them.

A session handles cookies, redirects, middlewares, uploads and traces for each request. That costs more than
the rest of a call, and no call needs it. So the session's connector opens a connection, head and body are
written to it at once, and aiohttp's parser reads the response. The rules of the package `_transport` apply.
While a test replaces methods of the session, requests go through `ClientSession.request`.
"""

import asyncio
from contextlib import suppress

import aiohttp
from yarl import URL

from loanasync._lifecycle import Waits
from loanasync._log import warn_once
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import AT_ONCE
from loanasync._transport.aiohttp_session import SessionTransport, connecting
from loanasync._transport.fast.compatibility import REQUEST_METHODS, request_methods
from loanasync._transport.fast.connection import DirectConnection, Origin, Scheduler

_LONGEST_CLOSE = 1.0  # seconds that aiohttp may take to close its session
_SEEN = "something has taken the place of aiohttp's ClientSession._request: it sees fiscal codes and tokens"


class DirectTransport:
    """One aiohttp session of one event loop, our own, whose connections are written to directly."""

    raises_errors = True  # of aiohttp while it connects, before anything was sent

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._through_session = SessionTransport(session, owned=True)
        self._loop = asyncio.get_running_loop()
        self._scheduler = Scheduler(self._loop)
        self._origins: dict[str, Origin] = {}
        self._waits = Waits()  # for connections

    def check(self) -> None:
        """Look whether a call can begin: it can."""

    async def aclose(self) -> None:
        """End the calls in progress, and close the session."""
        self._waits.close()
        for connection in tuple(self._scheduler.connections):
            connection.interrupt(asyncio.CancelledError())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_CLOSE):
                    await self._through_session.aclose()
        finally:
            self._scheduler.stop()

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""
        is_replaced = request_methods() != REQUEST_METHODS
        if is_replaced:
            warn_once(_SEEN)
        if is_replaced or self._session.closed:
            return await self._through_session.send(request, connect=connect, within=within)
        until = self._loop.time() + within
        request.is_sent = False
        origin = self._origin(request)
        keep = len(request.body) < AT_ONCE
        while True:
            idle = origin.take()
            connection = idle or await self._connected(origin, connect, until)
            if isinstance(connection, NoResponse):
                return connection
            try:
                result = await connection.exchange(request, until)
            except BaseException as error:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                if is_cancelled and request.outlives_caller and request.is_sent:
                    request.late = connection.read_late(keep=keep)
                else:
                    connection.end(keep=keep)
                raise
            connection.end(keep=keep)
            if idle is None or isinstance(result, Response) or result.is_sent:
                return result
            if self._waits.is_closed or self._loop.time() >= until:
                return result
            # The connection ended while it waited, and before anything had left: another will do.

    def _origin(self, request: Request) -> Origin:
        address = request.url[: request.url.index("/", len("https://"))]
        try:
            return self._origins[address]
        except KeyError:
            url = URL(address)
            # Undocumented: the connector takes address, TLS and proxy of a connection from a request.
            target = aiohttp.ClientRequest("POST", url, loop=self._loop, session=self._session)
            host = url.host_port_subcomponent or ""
            return self._origins.setdefault(address, Origin(address, host, target))

    async def _connected(self, origin: Origin, connect: float, until: float) -> DirectConnection | NoResponse:
        """Return a new connection, or the reason why it failed."""
        try:
            return await self._connect(origin, connect, until)
        except (*failures.IO_ERRORS, asyncio.CancelledError) as error:
            try:
                return failures.no_response(failures.cause_of(error, self._waits), never_left=True)
            finally:
                failures.drop_frames(error)

    async def _connect(self, origin: Origin, connect: float, until: float) -> DirectConnection:
        connector = self._session.connector
        assert connector is not None  # noqa: S101  (the session is open)
        async with asyncio.timeout_at(until) as limit:
            self._waits.add(limit)
            try:
                # Undocumented: the only way to a connection without a request of the session.
                made = await connector.connect(origin.target, [], connecting(connect))
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError("no connection in time") from error
            finally:
                self._waits.discard(limit)
        connection = DirectConnection(made, self._scheduler, origin)
        try:
            await connection.check_new(until)
        except BaseException:
            connection.abort()
            raise
        return connection
