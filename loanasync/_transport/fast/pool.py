"""The transport of the direct path, with a pool of idle connections for each origin.

`ClientSession.request` handles cookies, redirects, middlewares, uploads and traces. A call does not use them,
and they cost more CPU time than the rest of the call. So this transport only uses the session's connector to
open connections, and aiohttp's parser to read responses. `_transport` describes the rules that it follows.
"""

import asyncio
from contextlib import suppress

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
    """

    raises_errors = True  # unexpected errors of aiohttp while connecting, before anything was sent

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._session_transport = SessionTransport(session, owned=True)
        self._loop = asyncio.get_running_loop()
        self._scheduler = Scheduler(self._loop)
        self._origins: dict[str, Origin] = {}
        self._waits = Waits()  # the connection attempts in progress

    def check(self) -> None:
        """See `SessionTransport.check`."""
        if request_methods() != REQUEST_METHODS:
            self._session_transport.check()

    async def aclose(self) -> None:
        """End the requests in progress with the cause `SessionClosed`, and close the session."""
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
        is_patched = request_methods() != REQUEST_METHODS
        if is_patched:
            warn_once(_PATCHED)
        if is_patched or self._session.closed:
            return await self._session_transport.send(request, connect=connect, within=within)
        deadline = self._loop.time() + within
        request.is_sent = False
        origin = self._origin(request)
        keep = len(request.body) < MAX_BODY_FOR_REUSE
        while True:
            idle = origin.take_idle()
            connection = idle or await self._try_connect(origin, connect, deadline)
            if isinstance(connection, NoResponse):
                return connection
            try:
                result = await connection.exchange(request, deadline)
            except BaseException as error:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                if is_cancelled and request.outlives_caller and request.is_sent:
                    request.late = connection.keep_reading(keep=keep)
                else:
                    connection.release(keep=keep)
                raise
            connection.release(keep=keep)
            if idle is None or isinstance(result, Response) or result.is_sent:
                return result
            if self._waits.is_closed or self._loop.time() >= deadline:
                return result
            # The idle connection failed before anything was written: try another one.

    def _origin(self, request: Request) -> Origin:
        address = request.url[: request.url.index("/", len("https://"))]
        try:
            return self._origins[address]
        except KeyError:
            url = URL(address)
            # Undocumented: the connector takes host, port, TLS settings and proxy from a request object.
            connect_request = aiohttp.ClientRequest("POST", url, loop=self._loop, session=self._session)
            host = url.host_port_subcomponent or ""
            return self._origins.setdefault(address, Origin(address, host, connect_request))

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
        connector = self._session.connector
        assert connector is not None  # noqa: S101  (the session is open)
        async with asyncio.timeout_at(deadline) as limit:
            self._waits.add(limit)
            try:
                # Undocumented: no other method opens a connection without sending a request.
                opened = await connector.connect(origin.connect_request, [], connect_timeout(connect))
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError("connection timeout") from error
            finally:
                self._waits.discard(limit)
        connection = DirectConnection(opened, self._scheduler, origin)
        try:
            await connection.check_new(deadline)
        except BaseException:
            connection.abort()
            raise
        return connection
