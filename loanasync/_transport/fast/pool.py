"""The transport of the direct path, with a pool of idle connections for each origin.

`ClientSession.request` handles cookies, redirects, middlewares, uploads and traces. A call does not use them,
and they cost more CPU time than the rest of the call. So this transport only uses the session's connector to
open connections, and aiohttp's parser to read responses. `_transport` describes the rules that it follows.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from loanasync._lifecycle import Waits
from loanasync._log import warn_once
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import MAX_BODY_FOR_REUSE
from loanasync._transport.aiohttp_session import SessionTransport, connect_timeout
from loanasync._transport.fast.compatibility import REQUEST_METHODS, request_methods
from loanasync._transport.fast.connection import DirectConnection, Origin, Scheduler

if TYPE_CHECKING:
    from aiohttp.connector import Connection

_CLOSE_TIMEOUT = 1.0  # seconds to close aiohttp's session
_PATCHED = (
    "aiohttp's ClientSession._request was replaced by other code, such as a mocking library: "
    "that code sees fiscal codes and tokens"
)


class DirectTransport:
    """Sends requests directly on connections of an aiohttp session that the client opened.

    It belongs to one event loop, and owns the session, the `Scheduler` and one `Origin` per server address.
    For each request it takes an idle connection or opens a new one. If an idle connection fails before
    anything was written, it takes the next one. While other code, such as aioresponses in a test, replaces
    methods of `ClientSession`, requests are sent through `SessionTransport` instead.

    The subclass `UsersPoolTransport` takes the connections from the pool of a user's session.
    """

    raises_errors = True  # unexpected errors of aiohttp while connecting, before anything was sent

    def __init__(self, session: aiohttp.ClientSession, through_session: SessionTransport) -> None:
        self._session = session
        self._session_transport = through_session
        self._loop = asyncio.get_running_loop()
        self._scheduler = Scheduler(self._loop)
        self._origins: dict[str, Origin] = {}
        self._waits = Waits()  # the connection attempts in progress

    def check(self) -> None:
        """See `SessionTransport.check`."""
        if request_methods() != REQUEST_METHODS:
            self._session_transport.check()

    async def aclose(self) -> None:
        """End the requests in progress with the cause `SessionClosed`; close the session if it is owned."""
        self._waits.close()
        for connection in tuple(self._scheduler.connections):
            connection.interrupt(asyncio.CancelledError())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self._session_transport.aclose()
        finally:
            self._scheduler.cancel_timer()

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """See `Transport.send`."""
        if not self._is_direct(request):
            return await self._session_transport.send(request, connect=connect, within=within)
        now = self._loop.time()
        deadline = now + within
        request.is_sent = False
        keep = len(request.body) < MAX_BODY_FOR_REUSE
        while True:
            connection = await self._take(request, connect, deadline, now)
            if isinstance(connection, NoResponse):
                return connection
            was_used = connection.was_used
            try:
                result = await connection.exchange(request, deadline)
            except asyncio.CancelledError:
                if not (request.survives_cancellation and request.is_sent):
                    connection.release(keep=keep and not request.is_sent)
                    raise
                result = await connection.read_on()
            except BaseException:
                connection.release(keep=False)
                raise
            connection.release(keep=keep)
            if isinstance(result, Response):
                result.discard = connection.abort
                return result
            now = self._loop.time()
            is_over = self._waits.is_closed or self._session.closed or now >= deadline
            if is_over or result.is_sent or not was_used:
                return result
            # The used connection failed before anything was written: try another one.

    def _is_direct(self, request: Request) -> bool:
        """Return False if the request must be sent through `SessionTransport`."""
        del request
        is_patched = request_methods() != REQUEST_METHODS
        if is_patched:
            warn_once(_PATCHED)
        return not (is_patched or self._waits.is_closed)

    async def _take(
        self, request: Request, connect: float, deadline: float, now: float
    ) -> DirectConnection | NoResponse:
        """Return an idle connection or a new one, or a `NoResponse` if none could be opened."""
        address = address_of(request.url)
        origin = self._origins.get(address)
        if origin is None:
            origin = self._origins[address] = Origin(address, URL(address))
        return origin.take_idle(now) or await self._try_connect(origin, connect, deadline)

    async def _try_connect(
        self, origin: Origin, connect: float, deadline: float
    ) -> DirectConnection | NoResponse:
        """Return a new connection, or a `NoResponse` if it could not be opened."""
        try:
            return await self._connect(origin, connect, deadline)
        except (*failures.IO_ERRORS, asyncio.CancelledError) as error:
            try:
                return failures.no_response(failures.cause_of(error, self._waits), is_unsent=True)
            finally:
                failures.drop_frames(error)

    async def _connect(self, origin: Origin, connect: float, deadline: float) -> DirectConnection:
        request = aiohttp.ClientRequest("POST", origin.url, loop=self._loop, session=self._session)
        opened = await self._open(request, [], connect, deadline)
        return await self._checked(DirectConnection(opened, self._scheduler, origin), deadline)

    async def _checked(self, connection: DirectConnection, deadline: float) -> DirectConnection:
        """Return a new connection; raise an aiohttp error and abort it if it cannot be used."""
        try:
            await connection.check_new(deadline)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _open(
        self, request: aiohttp.ClientRequest, traces: list[Any], connect: float, deadline: float
    ) -> "Connection":
        """Return a connection of aiohttp's connector, for a request that is never sent.

        The connector takes host, port, TLS settings and proxy from the request.
        """
        connector = self._session.connector
        assert connector is not None  # noqa: S101  (the session is open)
        async with asyncio.timeout_at(deadline) as limit:
            self._waits.add(limit)
            try:
                # Undocumented: no other method opens a connection without sending a request.
                return await connector.connect(request, traces, connect_timeout(connect))
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError("connection timeout") from error
            finally:
                self._waits.discard(limit)


def address_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    return url[: url.index("/", len("https://"))]
