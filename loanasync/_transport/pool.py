"""The transport that writes requests directly to connections, with a pool of idle ones for each origin.

`ClientSession.request` handles cookies, redirects, middlewares, uploads and traces. A call does not use them,
and they cost more CPU time than the rest of the call. So this transport only uses a session's connector to
open connections, and httptools to read responses. `_transport` describes the rules that it follows.
"""

import asyncio
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from loanasync._protocol.messages import NoResponse, Request
from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import (
    belongs_to_other_loop,
    is_direct_possible,
    open_connection,
)
from loanasync._transport.base import Proxy
from loanasync._transport.connection import DirectConnection, Origin, Receive, Scheduler, header_lines
from loanasync._transport.session import SessionTransport, connect_timeout, open_session
from loanasync._transport.waits import Waits
from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

_CLOSE_TIMEOUT = 1.0  # seconds to close aiohttp's session


class DirectTransport:
    """Sends requests directly on connections that it opens through the connector of a session.

    It belongs to one event loop, and owns the `Scheduler` and one `Origin` per server address. A call takes
    an idle connection or opens a new one, and then begins the exchange. If an idle connection fails before
    anything was written, the call takes the next one. The transport never takes a connection from the pool of
    a user's session and never returns one to it. Each connection counts against the limit of the connector
    until it is closed.

    While other code, such as aioresponses in a test, replaces methods of `ClientSession`, requests are sent
    through `through_session` instead.
    """

    def __init__(self, through_session: SessionTransport) -> None:
        self.through_session: SessionTransport = through_session
        self._session = through_session.session
        self._loop = asyncio.get_running_loop()
        self._scheduler = Scheduler(self._loop)
        self._origins: dict[str, Origin] = {}  # by their addresses, and by the base URLs that contain these
        self._waits = Waits()  # the connection attempts in progress
        connector = self._session.connector
        limits = (0, 0) if connector is None else (connector.limit, getattr(connector, "limit_per_host", 0))
        self._limit = min(filter(None, limits), default=inf)  # of the number of connections
        self._keeps = connector is not None and not connector.force_close

    async def aclose(self) -> None:
        """End the requests in progress with the cause `SessionClosed`; close the session if it is owned."""
        self._waits.close()
        for connection in tuple(self._scheduler.connections):
            connection.interrupt(asyncio.CancelledError())
        self._scheduler.end_exchanges()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self.through_session.aclose()
        finally:
            self._scheduler.timer.close()

    @property
    def is_closed(self) -> bool:
        """True if no connection can be used any more."""
        return self._waits.is_closed or self._session.closed

    def take(self, base_url: str, now: float, *, approves: bool) -> DirectConnection | None:
        """Return an idle connection, or None without a usable one at this time of the event loop's clock."""
        origin = self._origins.get(base_url)
        if origin is None:
            if (origin := self._origins.get(address_of(base_url))) is None:
                return None
            self._origins[base_url] = origin
        return None if self._waits.is_closed else origin.take_idle(now, approves=approves)

    def exchange(
        self, request: Request, connection: DirectConnection, deadline: float, receive: Receive
    ) -> None:
        """Begin to send a request on a connection, which calls `receive` with the result.

        Raises:
            ValueError: A header contains a line break.
        """
        origin, headers, session = connection.origin, request.headers, self.through_session
        has_defaults = not session.is_owned and bool(self._session.headers)  # which may be changed
        # Most requests have the headers of their shop, which are always the same object.
        if origin.last_headers is not headers or has_defaults:
            origin.last_headers = None
            origin.last_lines = header_lines(session.headers_of(request), origin.host)
            origin.last_headers = None if has_defaults else headers
        connection.exchange(request, origin.last_lines, deadline, keep=self._keeps, receive=receive)

    async def open(
        self, request: Request, *, connect: float, deadline: float
    ) -> DirectConnection | NoResponse:
        """Return an idle connection or a new one, or a `NoResponse` if none could be opened.

        Args:
            request: The request.
            connect: Limit for opening a connection, in seconds.
            deadline: Limit of the exchange, a time of the event loop's clock.
        """
        now = self._loop.time()
        address = address_of(request.url)
        origin = self._origins.get(address)
        if origin is None:
            origin = self._origins[address] = Origin(address, URL(address))
        approves = request.survives_cancellation
        while (connection := origin.take_idle(now, approves=approves)) is None:
            if self.is_closed:
                return failures.SESSION_CLOSED
            if approves and origin.idle and len(self._scheduler.connections) >= self._limit:
                # The connector counts it, too, and with TLS `close` may wait for the server.
                origin.idle.popitem()[0].abort()
            try:
                return await self._connect(origin, connect, deadline)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (`cause_of` distinguishes them)
                try:
                    cause = failures.cause_of(error, self._waits)
                    now = self._loop.time()
                    # True if another call has released a connection. A third one may have taken it meanwhile.
                    is_handed_over = type(cause) is TimeoutError and now < deadline
                    if not is_handed_over:
                        return failures.no_response(cause, is_unsent=True)
                finally:
                    failures.drop_frames(error)
        return connection

    async def _connect(self, origin: Origin, connect: float, deadline: float) -> DirectConnection:
        """Open a connection; raise an aiohttp error if it cannot be used.

        If the connector limits the number of connections, stop when another call releases one. The connector
        counts idle connections, too, so it may have no slot for a new one.
        """
        limit = asyncio.timeout_at(deadline)
        async with self._waits.limited_by(limit):
            if self._limit < inf:
                origin.waiting[limit] = None
            try:
                opened = await open_connection(
                    self._session, origin.url, self.through_session.proxy, connect_timeout(connect)
                )
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError("connection timeout") from error
            finally:
                origin.waiting.pop(limit, None)
        connection = DirectConnection(opened, self._scheduler, origin)
        try:
            await connection.check_new(deadline)
        except BaseException:
            connection.abort()
            raise
        return connection


def open_transport(
    users: aiohttp.ClientSession | None,
    context: "ssl.SSLContext | None",
    proxy: Proxy | None,
    *,
    direct_connections: bool,
) -> DirectTransport | SessionTransport:
    """Open the transport of the running event loop, through the connector of the user's session or its own.

    Raises:
        ConfigurationError: The user's session belongs to another event loop.
    """
    if users is None:
        trust = True if context is None else context
        # The pipeline limits the number of calls.
        session = open_session(aiohttp.TCPConnector(limit=0, ssl=trust), owned=True)
    elif belongs_to_other_loop(users):
        raise ConfigurationError(
            "session", "belongs to another event loop: create it in this event loop, or omit session"
        )
    else:
        session = users
    address = None if proxy is None or proxy.url is None else URL(proxy.url)
    through_session = SessionTransport(session, owned=users is None, proxy=address)
    if direct_connections and is_direct_possible():
        return DirectTransport(through_session)
    return through_session


def address_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    end = url.find("/", len("https://"))
    return url if end < 0 else url[:end]
