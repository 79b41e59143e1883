"""The direct path through a user's session: each exchange borrows a connection of the user's pool.

The limits, certificates, resolver and proxy of the session apply. Between two exchanges the client holds no
connection: the pool keeps it under a separate key, so that the session's other requests never use it.
"""

from collections.abc import Awaitable, Callable
from logging import INFO
from typing import TYPE_CHECKING

import aiohttp
from attrs import define, field
from yarl import URL

from loanasync._log import log
from loanasync._protocol.messages import NoResponse, Request
from loanasync._transport.aiohttp_session import SessionTransport
from loanasync._transport.fast.connection import DirectConnection, Origin
from loanasync._transport.fast.obstacles import find_lasting_obstacle, find_obstacle
from loanasync._transport.fast.pool import DirectTransport, address_of

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey


class BorrowedConnection(DirectConnection):
    """A connection of a user's pool during one exchange. aiohttp's protocol is restored after it."""

    def _store(self) -> None:
        """Return the connection to the user's pool."""
        if not (self._transport.is_closing() or self._is_writing_paused):
            self._scheduler.connections.discard(self)
            self._transport.set_protocol(self._handler)
            self._connection.release()
        else:
            self.abort()

    def close(self) -> None:
        """Close the connection as aiohttp does. Its slot of the pool is free at once, also with TLS."""
        self.unregister()
        self._transport.set_protocol(self._handler)
        self._connection.close()


class ConnectRequest(aiohttp.ClientRequest):
    """A request that opens a connection and is never sent.

    Its key keeps the connections of clients apart from those of the user. A request of the user may leave a
    response on its connection, for example an upload that the server rejects before it has read the body.
    """

    @property
    def connection_key(self) -> "ConnectionKey":
        """The key of the connection in the pool (read by the connector)."""
        key = super().connection_key
        return key._replace(proxy_headers_hash=hash((__name__, key.proxy_headers_hash)))


class _ReuseTrace:
    """Notes that a connector took a connection from its pool. `connect` gets it in place of trace hooks."""

    is_reused = False

    async def send_connection_reuseconn(self) -> None:
        """Note it (called by the connector)."""
        self.is_reused = True

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        """Return a function that does nothing, for all other events of a connector."""
        return self._ignore

    async def _ignore(self, *_: object) -> None:
        pass


@define(eq=False, repr=False)
class UsersOrigin(Origin):
    """A scheme, host and port, and the key of their connections in the user's pool."""

    key: "ConnectionKey" = field(kw_only=True)


class UsersPoolTransport(DirectTransport):
    """Sends requests directly on connections of a user's session.

    `find_obstacle` names the reason why a request must be sent through `SessionTransport` instead.
    """

    _obstacle: str | None = None  # of the last request

    def __init__(self, session: aiohttp.ClientSession, through_session: SessionTransport) -> None:
        super().__init__(session, through_session)
        self._lasting_obstacle = find_lasting_obstacle(session)

    def check(self) -> None:
        """See `SessionTransport.check`."""
        self._session_transport.check()

    def _is_direct(self, request: Request) -> bool:
        if self._waits.is_closed or self._session.closed:
            return False
        obstacle = self._lasting_obstacle or find_obstacle(self._session, request.url)
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            if obstacle is not None:
                log(INFO, "sending through ClientSession.request: %s", obstacle)
        return obstacle is None

    async def _take(
        self, request: Request, connect: float, deadline: float, now: float
    ) -> DirectConnection | NoResponse:
        address = address_of(request.url)
        origin = self._origins.get(address)
        default_headers = list(self._session.headers.items())
        if not isinstance(origin, UsersOrigin) or origin.default_headers != default_headers:
            origin = self._new_origin(address, default_headers)
        connector = self._session.connector
        assert connector is not None  # noqa: S101  (the session is open)
        # Undocumented. `connect` does the same first, but it would need a timer.
        while (opened := await connector._get(origin.key, [])) is not None:  # noqa: SLF001
            connection = BorrowedConnection(opened, self._scheduler, origin, was_used=True)
            if connection.is_reusable(now):
                return connection
            connection.close()
        return await self._try_connect(origin, connect, deadline)

    def _new_origin(self, address: str, default_headers: list[tuple[str, str]]) -> UsersOrigin:
        url = URL(address)
        # The key has a hash of the headers for the proxy, which are the default headers.
        key = self._connect_request(url).connection_key
        origin = self._origins[address] = UsersOrigin(address, url, default_headers, key=key)
        return origin

    def _connect_request(self, url: URL) -> ConnectRequest:
        # A new request for each connection: the connector adds a header to those for the proxy.
        settings = vars(self._session)  # the proxy has no public property
        proxy = settings["_default_proxy"]
        return ConnectRequest(
            "POST",
            url,
            loop=self._loop,
            session=self._session,
            proxy=None if proxy is None else URL(proxy),
            proxy_auth=settings["_default_proxy_auth"],
            proxy_headers=self._session.headers.copy(),
        )

    async def _connect(self, origin: Origin, connect: float, deadline: float) -> DirectConnection:
        while True:
            trace = _ReuseTrace()
            opened = await self._open(self._connect_request(origin.url), [trace], connect, deadline)
            connection = BorrowedConnection(opened, self._scheduler, origin, was_used=trace.is_reused)
            if not trace.is_reused:
                return await self._checked(connection, deadline)
            # While this request waited for a free slot of the pool, another call released a connection.
            now = self._loop.time()
            is_late = now >= deadline  # the event loop was blocked
            if connection.is_reusable(now) and not is_late:
                return connection
            connection.close()
            if is_late:
                raise aiohttp.ConnectionTimeoutError("connection timeout")
