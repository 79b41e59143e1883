"""The transport that writes requests directly to connections, with a pool of idle ones for each origin.

`ClientSession.request` handles cookies, redirects, middlewares, uploads and traces. A call does not use them,
and they cost more CPU time than the rest of the call. So this transport only uses a session's connector to
open connections, and httptools to read responses. `_transport` describes the rules that it follows.
"""

import asyncio
import re
import select
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import aiohttp
from attrs import define, field
from yarl import URL

from loanasync._protocol.messages import End, Judgement, NoResponse, Request, Response
from loanasync._transport import bodies, failures
from loanasync._transport.aiohttp_internals import (
    MAX_BODY_SIZE,
    MAX_FIELD_SIZE,
    MAX_HEADERS,
    open_connection,
)
from loanasync._transport.session import SessionTransport, connect_timeout
from loanasync._transport.waits import SharedTimer, Waits, expire

try:
    import httptools
except ImportError:  # there are no wheels for PyPy: `is_direct_possible` is False
    httptools = None  # type: ignore[assignment]  # a module

if TYPE_CHECKING:
    import ssl

    from loanasync._transport.aiohttp_internals import OpenedConnection

HasUnreadData: TypeAlias = Callable[[], object]
Receive: TypeAlias = Callable[[Response | NoResponse], object]

# Bytes: the limit of asyncio's write buffer. When the response to a larger request arrives, parts of the
# request may still be unsent, so the connection is not used again.
MAX_BODY_FOR_REUSE = 1 << 16
# Statuses of interim responses, which precede the final one (RFC 9110 §15.2). 101 is left out, because the
# connection does not use HTTP after it.
_INTERIM = frozenset(range(100, 200)) - {101}
# The headers that are read; all others are dropped.
_READ_HEADERS = (
    *("Content-Encoding", "Content-Length", "Transfer-Encoding", "Keep-Alive"),
    *("Date", "Retry-After", "X-Request-Id", "X-Correlation-Id", "Request-Id"),
)
# By the usual spelling, which needs no conversion, and in lower case. None: a header of most responses that
# is not read.
_HEADERS: Mapping[bytes, str | None] = {
    **{name.encode(): None for name in ("Connection", "Content-Type", "Server")},
    **{spelled.encode(): name for name in _READ_HEADERS for spelled in (name, name.lower())},
}
# aiohttp's parser accepts heads like these: other than the specification of HTTP, but unambiguous.
_LENIENCIES = {
    "lenient_headers": True,  # control characters in values; this module refuses NUL
    "lenient_optional_cr_before_lf": True,
    "lenient_spaces_after_chunk_size": True,
    # Read the response behind an interim head with `Connection: close`; llhttp refuses all data after it
    # otherwise. `on_message_begin` notes anything behind a response.
    "lenient_keep_alive": True,
}
_MAX_TURNS = 10  # iterations of the event loop; it notices the end of a connection within two or three
# Seconds after which an idle connection is closed. A server may close one in the moment in which a request is
# written to it, and then the outcome of the request is unknown. So a connection is reused only while it has
# been idle for much less time than servers allow.
_MAX_IDLE = 1.0
_ANNOUNCED = re.compile("timeout=([0-9]{1,9})", re.IGNORECASE)  # in the header Keep-Alive
# Seconds in the queue after which the event loop counts as blocked. The server may have closed the connection
# in that time, so it is checked again before the request is written.
_BLOCKED_AFTER = 0.01
# Bytes written in one iteration of the event loop. Writing them takes one or two milliseconds.
_BYTES_PER_TURN = 1 << 16
# Bytes of a response, with its head, as received. A longer one consists of tiny chunks, or of interim
# responses without end.
_MAX_RECEIVED = MAX_BODY_SIZE + MAX_FIELD_SIZE
_CLOSE_TIMEOUT = 1.0  # seconds to close aiohttp's session
_UNUSABLE = "connection closed, or data received before the request"


def unread_data_check(transport: asyncio.BaseTransport | None) -> HasUnreadData:
    """Return a function that checks the socket of a connection for unread data or end of file.

    A blocked event loop does not notice that the server has closed a connection; between two notebook cells,
    for example, the event loop does not run. A request that is written to such a connection is lost, and its
    outcome is unknown.
    """
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or (number := socket.fileno()) < 0:
        return lambda: False
    if not hasattr(
        select, "poll"
    ):  # pragma: no cover  (Windows has no poll, but its select takes any file number)
        return lambda: select.select([number], [], [], 0)[0]
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return partial(poll.poll, 0)


async def read_pending(has_unread_data: HasUnreadData) -> None:
    """Yield to the event loop until it has read the received data, for a few iterations at most."""
    for _ in range(_MAX_TURNS):
        await asyncio.sleep(0)
        if not has_unread_data():
            return


class Scheduler:
    """The queues and the timer that all direct connections of one event loop share.

    `DirectTransport` owns it. A request is queued if another exchange is in progress. Requests that are
    queued in one iteration of the event loop are written in the next one. The service then receives them
    together and responds to them together, which saves CPU time on both sides. In the same way, the exchanges
    that end in one iteration are ended together: the code of each step stays in the CPU's caches. One timer
    serves all connections, because timeouts are rare.

    An exchange is one request and its response. `busy` has the connections with one in progress.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.connections: set[DirectConnection] = set()
        self.busy: set[DirectConnection] = set()
        self._queue: deque[DirectConnection] = deque()
        self._ended: deque[DirectConnection] = deque()
        # Of exchanges and idle connections.
        self.timer: SharedTimer[DirectConnection] = SharedTimer(loop, lambda each, _: each.expire())

    def add(self, connection: "DirectConnection") -> None:
        """Queue the connection's request, which is written in the next iteration of the event loop."""
        if not self._queue:
            self.loop.call_soon(self._write_queued, self.loop.time() + _BLOCKED_AFTER)
        self._queue.append(connection)

    def end_later(self, connection: "DirectConnection") -> None:
        """End the connection's exchange in the next iteration of the event loop."""
        if not self._ended:
            self.loop.call_soon(self.end_exchanges)
        self._ended.append(connection)

    def end_exchanges(self) -> None:
        """End the exchanges whose result is known."""
        try:
            for _ in range(len(self._ended)):
                self._ended[0].end_exchange()
                self._ended.popleft()
        finally:  # after a KeyboardInterrupt, the others follow, and this one is ended again
            if self._ended:
                self.loop.call_soon(self.end_exchanges)

    def resume(self) -> None:
        """Continue the queues, which an interrupt at the first line of a callback has stopped for ever."""
        self.end_exchanges()
        if self._queue:
            self._write_queued(0.0)

    def _write_queued(self, blocked_from: float) -> None:
        """Write the queued requests. If the time `blocked_from` has passed, check each connection first."""
        now = self.loop.time()
        bytes_left = _BYTES_PER_TURN
        try:
            while self._queue and bytes_left > 0:
                connection = self._queue.popleft()
                if now >= blocked_from:
                    connection.check_after_block(now)
                bytes_left -= connection.write()
        finally:  # a KeyboardInterrupt in `write` must not leave the other requests in the queue
            if self._queue:
                self.loop.call_soon(self._write_queued, blocked_from)


@define(eq=False, repr=False)
class Origin:
    """A scheme, host and port, and the idle connections of the client to it.

    Attributes:
        trusted: Idle connections whose last exchange was a decision that named its customer. Only these are
            used for approvals: on others, a response may be on its way that belongs to no request.
        idle: The other idle connections.
        waiting: The time limits of calls that wait for a connection while the number of them is limited.
        sends_strays: True after a decision without a fiscal code on a used connection. From then on, each
            approval has a new connection.
        last_headers: The headers of the last request.
        last_lines: The same as bytes.
    """

    address: str
    url: URL
    trusted: "dict[DirectConnection, None]" = field(factory=dict, init=False)
    idle: "dict[DirectConnection, None]" = field(factory=dict, init=False)
    sends_strays: bool = field(default=False, init=False)
    waiting: dict[asyncio.Timeout, None] = field(factory=dict, init=False)
    last_headers: Mapping[str, str] | None = field(default=None, init=False)
    last_lines: bytes = field(default=b"", init=False)
    host: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.host = self.url.host_port_subcomponent or ""

    def take_idle(self, now: float, *, approves: bool) -> "DirectConnection | None":
        """Return an idle connection that can be used again, or None. Close unusable ones on the way."""
        for idle in (self.trusted,) if approves else (self.idle, self.trusted):
            while idle:
                # Take the connection that was used last, so that surplus connections stay idle and expire.
                connection, _ = idle.popitem()
                if connection.receive is None and connection.is_reusable(now):
                    return connection
                connection.close()
        return None


def new_parser(callbacks: object) -> "httptools.HttpResponseParser":
    """Return a parser that calls methods of `callbacks` for the parts of responses."""
    parser = httptools.HttpResponseParser(callbacks)
    parser.set_dangerous_leniencies(**_LENIENCIES)
    return parser


class DirectConnection(asyncio.Protocol):
    """A connection that sends one request at a time. It is the asyncio protocol of its transport.

    aiohttp's connector opens the connection; this object then replaces aiohttp's protocol on it.
    `DirectTransport` calls `check_new` once, and then `exchange` for each request. Between two exchanges the
    connection is idle, in `Origin.idle` or `Origin.trusted`.

    The connection owns an exchange until it calls the function that was passed to `exchange`, once, with a
    `Response` or a `NoResponse`. The result is known

    - in `data_received`, `connection_lost` or `write`, when the response is complete or the connection fails;
    - in `interrupt`, when the exchange times out or `DirectTransport` is closed.

    The parser calls `on_header` and the other methods in the order of the received bytes. So the status and
    the received part of a body are known, whatever comes later. All received data is parsed before the
    exchange ends, to see if anything follows the response.

    `_is_clean` becomes False when the connection cannot be used again: the server asked to close it, it
    failed, a body was too large, or it received data that belongs to no response. `release` then aborts it.
    `expires_at` is the time of the event loop's clock at which the exchange times out, or the idle connection
    is closed. From `_fresh_until` on, the connection is not used again.
    """

    _fresh_until = inf
    _status = 0  # of the last response; 0 before the end of its head
    _result: Response | NoResponse | None = None  # until `receive` is called
    _header_count = _received = _body_size = 0  # the last two in bytes
    _has_bad_header = _is_malformed = _is_complete = _is_followed = False

    def __init__(self, connection: "OpenedConnection", scheduler: Scheduler, origin: Origin) -> None:
        # These attributes are undocumented. `handler` is aiohttp's own protocol. `connection_lost` of this
        # class calls that of `handler`.
        handler = connection.protocol
        transport = None if handler is None else handler.transport
        if transport is None or handler is None or transport.is_closing():
            connection.close()
            raise aiohttp.ClientConnectionResetError("the new connection is closing")
        self.expires_at: float = inf
        self._connection = connection
        self._transport = transport
        self._handler = handler
        self._scheduler = scheduler
        self.origin: Origin = origin
        # `should_close` is undocumented. It is True if unrequested data was received.
        self._is_clean = not handler.should_close
        self.receive: Receive | None = None  # of the exchange whose result was not passed on
        self._keep = False  # after the exchange
        self._unsent_bytes: bytes | None = None
        self._request: Request | None = None
        self._is_reading = False  # the request was written, and its response has not ended
        self._has_orderly_end = False  # of the connection
        self.was_used: bool = False  # by an earlier exchange
        self._parser: httptools.HttpResponseParser | None = new_parser(self)
        self._has_unread_data = unread_data_check(transport)
        transport.set_protocol(self)
        scheduler.connections.add(self)

    async def check_new(self, deadline: float) -> None:
        """Raise an aiohttp error if this new connection cannot be used, or if `deadline` has passed."""
        # Data received before the request was sent would be taken for its response.
        if self._has_unread_data():
            await read_pending(self._has_unread_data)
        now = self._scheduler.loop.time()
        self._fresh_until = now + _MAX_IDLE
        if now >= deadline:  # the event loop was blocked
            raise aiohttp.ConnectionTimeoutError("connection timeout")
        # If asyncio has passed on data, `_is_clean` is False by now. Data still unread in the socket does
        # not matter: it may be a TLS session ticket.
        if not (self._is_clean and self.is_open):
            raise aiohttp.ClientConnectionResetError(_UNUSABLE)

    def exchange(
        self, request: Request, headers: bytes, deadline: float, *, keep: bool, receive: Receive
    ) -> None:
        """Begin to send a request.

        Args:
            request: The request.
            headers: Its headers without Content-Length, and the end of the head.
            deadline: When the exchange ends without a response, a time of the event loop's clock.
            keep: Keep the connection for further exchanges.
            receive: Called once with the result, after this method has returned.
        """
        scheduler, size = self._scheduler, len(request.body)
        self._status = self._header_count = self._received = self._body_size = 0
        self._has_bad_header = self._is_malformed = self._is_complete = self._is_followed = False
        self._result = None
        self._headers: dict[str, str] = {}  # those that are read
        self._body: list[bytes] = []
        self.receive, self._request = receive, request
        scheduler.busy.add(self)
        # All of the request is sent before its response arrives, unless it is large.
        self._keep = keep and size < MAX_BODY_FOR_REUSE
        path = request.url[len(self.origin.address) :]
        head = f"{request.method} {path} HTTP/1.1\r\nContent-Length: {size}\r\n"
        self._unsent_bytes = b"%b%b%b" % (head.encode(), headers, request.body)
        self.expires_at = deadline
        if len(scheduler.busy) == 1:  # this one
            self.write()
        else:
            scheduler.add(self)
        scheduler.timer.set(self, deadline)

    def check_after_block(self, now: float) -> None:
        """Check the deadline and the connection, since the event loop was blocked with the request queued.

        On a used connection, unread data means that the server closed it or sent something unrequested. On a
        new connection, unread data may be a TLS session ticket.
        """
        if self._unsent_bytes is None:
            return
        if self.expires_at <= now:
            self.interrupt(TimeoutError())
        elif self.was_used and not self.is_reusable(now):
            self._is_clean = False

    def write(self) -> int:
        """Write the request and return its size. Return 0 if it is already written, cancelled or failed."""
        if self._unsent_bytes is None:
            return 0
        # Data received before the request was sent would be taken for its response.
        if not self._is_clean or self._transport.is_closing():
            self._fail(aiohttp.ClientConnectionResetError(_UNUSABLE))
            return 0
        size = len(self._unsent_bytes)
        try:
            self._is_reading = True
            if self._request is not None:
                self._request.is_sent = True
            # Error reports may show local variables, so do not copy these bytes (personal data) into a local.
            self._transport.write(self._unsent_bytes)
        except Exception as error:  # noqa: BLE001  (any error must end the exchange)
            self._fail(error)
        self._unsent_bytes = None
        return size

    def end_exchange(self) -> None:
        """Release the connection, and pass on the result of the exchange.

        This method may be called again, after an interrupt in the first call.
        """
        receive, result = self.receive, self._result
        if receive is None or result is None:  # it was cancelled
            return
        self._release()
        receive(result)
        if self.receive is receive:
            self.receive = self._result = None  # breaks a reference cycle

    def cancel(self) -> None:
        """End the exchange without a result. Keep the connection if nothing of the request was written."""
        self.receive = self._result = None
        self._keep = self._keep and not self._is_reading
        self._release()

    def _release(self) -> None:
        """Keep the connection for the next exchange, or abort it if it cannot be used again."""
        self._scheduler.busy.discard(self)
        self._unsent_bytes = self._request = None
        if not self._keep or self._is_reading or not self._is_clean:
            self.abort()
            return
        self.was_used = True
        now = self._scheduler.loop.time()
        if self._status:  # else nothing was sent, and the connection has been idle for longer
            announced = None
            if "Keep-Alive" in self._headers:
                announced = _ANNOUNCED.search(self._headers["Keep-Alive"])
            limit = _MAX_IDLE if announced is None else min(_MAX_IDLE, int(announced[1]) / 2)
            self._fresh_until = now + limit
        self.expires_at = self._fresh_until
        self._scheduler.timer.set(self, self.expires_at, now)
        self.origin.idle[self] = None
        if self.origin.waiting:  # else the waiting call would get no connection while this one is idle
            waiting = next(iter(self.origin.waiting))  # the one that waits longest
            del self.origin.waiting[waiting]
            expire(waiting)

    def judge(self, judgement: Judgement) -> None:
        """Use the idle connection for approvals, leave it for other calls, or close it."""
        origin = self.origin
        if judgement == "trusted":
            # If it is not idle, it was aborted, or another call has taken it.
            if self in origin.idle and not origin.sends_strays:
                origin.trusted[self] = origin.idle.pop(self)
        elif judgement != "kept":
            if judgement == "stray":
                origin.sends_strays = True
                origin.idle.update(origin.trusted)
                origin.trusted.clear()
            self.abort()

    @property
    def is_open(self) -> bool:
        """Return True unless the connection is closing, as far as the event loop knows."""
        return not self._transport.is_closing()

    def is_reusable(self, now: float) -> bool:
        """Return True if the connection is clean, fresh and open, and has no unread data or end of file.

        The socket is checked each time, because the server may close the connection right after a response.
        """
        return (
            self._is_clean
            and now < self._fresh_until
            and not self._transport.is_closing()
            and not self._has_unread_data()
        )

    def abort(self) -> None:
        """Close the connection at once, without writing the rest of a cancelled request."""
        self.unregister()
        self._transport.abort()

    def close(self) -> None:
        """Close the connection. If it uses TLS, send the closing message of TLS."""
        self.unregister()
        # On a second `close`, asyncio's TLS transport drops its protocol, and aiohttp then raises an error.
        if self.is_open:
            self._transport.close()

    def expire(self) -> None:
        """End the exchange in progress, or close the idle connection: `expires_at` has passed."""
        self._scheduler.resume()
        self.interrupt(TimeoutError())

    def interrupt(self, error: BaseException) -> None:
        """Fail the exchange in progress with `error` and abort the connection; close an idle connection."""
        if self.receive is None:
            self.close()
        else:
            self._fail(error)
            self._transport.abort()  # `close` would wait for a server that does not read

    def unregister(self) -> None:
        """Remove the connection from the idle connections and from those that the timer interrupts."""
        self.origin.idle.pop(self, None)
        self.origin.trusted.pop(self, None)
        self._scheduler.connections.discard(self)
        self._scheduler.timer.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse received data (called by asyncio)."""
        try:
            if not self._is_reading or self._parser is None:
                self._is_clean = False  # the server sent data without a request
                return
            self._received += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                self._is_clean = False
            except Exception as error:  # noqa: BLE001  (any error of the parser means malformed HTTP)
                # An error after the end of the response means that something follows it.
                self._is_malformed = True
                self._is_followed |= self._is_complete
                if (raised := error.__context__) is not None and not isinstance(raised, Exception):
                    raise raised from None  # an interrupt in a method that the parser called
            if self._is_complete:
                self._is_clean = self._is_clean and not self._is_followed
                self._finish(self._response(end="stated"), now=True)
            elif self._is_malformed or (self._received > _MAX_RECEIVED and not self._status):
                self._fail(failures.MalformedResponseError())
            elif self._received > _MAX_RECEIVED or self._body_size > MAX_BODY_SIZE:
                self._is_clean = False
                self._finish(self._response(fault="too large", end="cut"))
        except BaseException:  # for example of a signal handler: a part of the data may be lost
            self._fail(failures.MalformedResponseError())
            self.end_exchange()
            raise

    def on_message_begin(self) -> None:
        """Note that another response follows (called by the parser at the first byte of a response)."""
        self._is_followed |= self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header if it is read (called by the parser; also for the trailers behind a body)."""
        if self._status:
            return
        self._header_count += 1
        is_long = self._received > MAX_FIELD_SIZE and len(name) + len(value) > MAX_FIELD_SIZE
        # A number, because for `b"\0" in value` Python makes an error, drops it, and then searches.
        if 0 in value or is_long or self._header_count > MAX_HEADERS:
            self._has_bad_header = True
            return
        known = _HEADERS[name] if name in _HEADERS else _HEADERS.get(name.lower())
        if known is not None:
            text = value.decode(errors="surrogateescape").strip()
            self._headers[known] = f"{self._headers[known]}, {text}" if known in self._headers else text

    def on_headers_complete(self) -> None:
        """Note the status; drop the head of an interim response (called by the parser)."""
        if self._parser is None or self._status:
            return
        status = self._parser.get_status_code()
        if status in _INTERIM:
            self._header_count, self._has_bad_header = 0, False
            self._headers.clear()
        elif self._has_bad_header:
            self._is_malformed = True
        else:
            self._status = status

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body (called by the parser)."""
        if not self._is_complete:
            self._body.append(data)
            self._body_size += len(data)

    def on_message_complete(self) -> None:
        """Note the end of the response (called by the parser)."""
        if not self._is_complete and self._parser is not None:
            self._is_complete = self._status > 0
            # An interim response may announce the end of the connection, too.
            self._is_clean &= self._parser.should_keep_alive()

    def _response(self, *, fault: str | None = None, end: End) -> Response:
        body = b"".join(self._body)
        if self._body_size > MAX_BODY_SIZE or "Content-Encoding" in self._headers:
            body, fault = bodies.decoded(self._headers, body, fault)
        return Response(
            status=self._status,
            headers=self._headers,
            body=body,
            fault=fault,
            end=end,
            is_followed=self._is_followed,
            is_reused=self.was_used,
            judge=self.judge,
        )

    def eof_received(self) -> None:
        """Note if the server closed the connection in order (called by asyncio)."""
        self._has_orderly_end = _ends_in_order(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish the exchange, because the connection has ended (called by asyncio).

        The end of the connection completes a response that states no other end. aiohttp's protocol is called
        last, because that call may raise an error.
        """
        lost = aiohttp.ClientOSError(*exc.args) if isinstance(exc, OSError) else exc
        try:
            if self._is_reading and self._status and not bodies.states_end(self._headers):
                is_orderly = exc is None and self._has_orderly_end
                self._finish(self._response(end="closed" if is_orderly else "cut"))
        finally:
            self._fail(lost or aiohttp.ServerDisconnectedError())
            self.unregister()
            self._parser = None  # it refers to this object
            try:
                # Undocumented. Closing aiohttp's session waits for this call.
                self._handler.connection_lost(exc)
            finally:
                self._connection.close()

    def _fail(self, error: BaseException) -> None:
        """Finish the exchange with a `NoResponse`; if the head has arrived, with an incomplete response."""
        self._is_clean = False
        if self._status:
            fault = "timed out" if isinstance(error, TimeoutError) else "truncated"
            self._finish(self._response(fault=fault, end="cut"))
        else:
            self._finish(failures.no_response(error, is_unsent=not self._is_reading))

    def _finish(self, result: Response | NoResponse, *, now: bool = False) -> None:
        """Set the result of the exchange, unless it has one, and end the exchange now or later.

        This method may be called again, after an interrupt in the first call.
        """
        if self.receive is not None and self._result is None:
            self._result = result  # first: what is not sent depends on `_is_reading`
        self._is_reading = False
        self._unsent_bytes = None
        if self.receive is None:
            return
        if now and len(self._scheduler.busy) == 1:
            self.end_exchange()
        else:
            self._scheduler.end_later(self)


def _ends_in_order(transport: asyncio.BaseTransport) -> bool:
    """Return True if the other side has closed the connection in order, with TLS by its closing message."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if tls is None:
        return True
    try:
        return not tls.read(1)
    except (OSError, ValueError):  # SSLWantReadError: the closing message has not arrived
        return False


def header_lines(headers: list[tuple[str, str]], host: str) -> bytes:
    """Return headers and the end of the head as bytes."""
    lines = list(map(": ".join, [("Host", host), *headers]))
    if not "".join(lines).replace("\t", "").isprintable():
        # A line break would begin another header. The message omits the values, as one of them is the token.
        raise ValueError("headers must not contain line breaks")
    return "\r\n".join([*lines, "\r\n"]).encode()


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


def address_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    end = url.find("/", len("https://"))
    return url if end < 0 else url[:end]
