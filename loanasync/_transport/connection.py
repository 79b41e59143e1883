"""A connection to which requests are written directly, and the state that the connections of a loop share."""

import asyncio
import re
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeAlias, cast

import aiohttp
from attrs import define, field
from yarl import URL

from loanasync._protocol.messages import End, NoResponse, Request, Response
from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import (
    MAX_BODY_SIZE,
    MUST_CHECK_LENGTHS,
    buffered_body,
    new_parser,
)
from loanasync._waits import SharedTimer, expire

if TYPE_CHECKING:
    from loanasync._transport.aiohttp_internals import OpenedConnection, ResponseHead, ResponseParser

HasUnreadData: TypeAlias = Callable[[], object]

# Bytes: the limit of asyncio's write buffer. When the response to a larger request arrives, parts of the
# request may still be unsent, so the connection is not used again.
MAX_BODY_FOR_REUSE = 1 << 16
# Statuses of interim responses, which precede the final one (RFC 9110 §15.2). 101 is left out, because the
# connection does not use HTTP after it.
_INTERIM = frozenset(range(100, 200)) - {101}
_HEAD_ENDS = b"\r\n\r\n"
_CHUNKS_END = b"0\r\n\r\n"
_LINE_BREAK = b"\r\n"
_STATUS_ENDS = len("HTTP/1.1 200")
_MAX_TURNS = 10  # iterations of the event loop; it notices the end of a connection within two or three
# Seconds after which an idle connection is closed. A server may close one in the moment in which a request is
# written to it, and then the outcome of the request is unknown. So it is used only long before that moment.
_MAX_IDLE = 1.0
_ANNOUNCED = re.compile("timeout=([0-9]{1,9})", re.IGNORECASE)  # in the header Keep-Alive
# Seconds in the queue after which the event loop counts as blocked. The server may have closed the connection
# in that time, so it is checked again before the request is written.
_BLOCKED_AFTER = 0.01
# Bytes written in one iteration of the event loop. Writing them takes one or two milliseconds.
_BYTES_PER_TURN = 1 << 16
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
    """The write queue and the timer that all direct connections of one event loop share.

    `DirectTransport` owns it. A request is queued if another exchange is in progress. Requests that are
    queued in one iteration of the event loop are written in the next one. The service then receives them
    together and responds to them together, which saves CPU time on both sides. One timer serves all
    connections, because timeouts are rare.

    An exchange is one request and its response. `in_progress` counts the exchanges between
    `DirectConnection.exchange` and `DirectConnection.release`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connections: set[DirectConnection] = set()
        self.in_progress = 0
        self._queue: deque[DirectConnection] = deque()
        self.timer = SharedTimer(loop, _interrupt)  # of exchanges and idle connections

    def add(self, connection: "DirectConnection") -> None:
        """Queue the connection's request, which is written in the next iteration of the event loop."""
        if not self._queue:
            self.loop.call_soon(self._write_queued, self.loop.time() + _BLOCKED_AFTER)
        self._queue.append(connection)

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

    `waiting` has the time limits of calls that wait for a connection while the number of them is limited.
    """

    address: str
    url: URL
    idle: "dict[DirectConnection, None]" = field(factory=dict, init=False)
    waiting: dict[asyncio.Timeout, None] = field(factory=dict, init=False)
    host: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.host = self.url.host_port_subcomponent or ""

    def take_idle(self, now: float) -> "DirectConnection | None":
        """Return an idle connection that can be used again, or None. Close unusable ones on the way."""
        while self.idle:
            # Take the connection that was used last, so that surplus connections stay idle and expire.
            connection, _ = self.idle.popitem()
            if connection.is_reusable(now):
                return connection
            connection.close()
        return None


class HeadSplitter(asyncio.Protocol):
    """Base class of a protocol that passes the head of a response to aiohttp's parser apart from the body.

    aiohttp's parser raises an error without a result if any part of its input is malformed. If it received
    the head together with a malformed body, or with bytes that do not belong to the response, the status
    would be lost, and with it possibly a decision. Call `expect_response` before each response, and `split`
    for all received data.
    """

    def expect_response(self) -> None:
        """Reset the state: the next received byte begins a head."""
        self._in_head = True
        self._status_line = b""  # its first bytes
        self._head_tail = b""  # the last bytes of an incomplete head
        self._received_after_head = 0  # bytes
        self._last_piece = b""

    def split(self, data: bytes) -> list[bytes]:
        """Split received data after each head; interim responses (1xx) consist of a head only."""
        pieces: list[bytes] = []
        while self._in_head and data:
            known = len(self._head_tail)
            self._status_line += data[: _STATUS_ENDS - len(self._status_line)]
            end = (self._head_tail + data).find(_HEAD_ENDS)
            if end < 0:
                self._head_tail = (self._head_tail + data)[1 - len(_HEAD_ENDS) :]
                return [*pieces, data]
            end += len(_HEAD_ENDS) - known
            status = self._status_line[-3:]
            self._in_head = status.isdigit() and int(status) in _INTERIM
            self._status_line = self._head_tail = b""
            pieces.append(data[:end])
            data = data[end:]
        if data:
            self._received_after_head += len(data)
            self._last_piece = data
            pieces.append(data)
        return pieces

    def has_more_than(self, content: aiohttp.StreamReader, *, is_chunked: bool) -> bool:
        """Return True if data after the response was received, such as a part of another head."""
        return self._received_after_head != content.total_bytes and not (
            is_chunked and self._last_piece.endswith(_CHUNKS_END)
        )

    def is_followed(self, content: aiohttp.StreamReader, *, is_chunked: bool) -> bool:
        """Return True if anything but line breaks was received after the response."""
        surplus = self._received_after_head - content.total_bytes
        if is_chunked:
            return not self._last_piece.rstrip(_LINE_BREAK).endswith(_CHUNKS_END.rstrip(_LINE_BREAK))
        return surplus > 0 and bool(self._last_piece[-surplus:].strip(_LINE_BREAK))


class DirectConnection(HeadSplitter):
    """A connection that sends one request at a time. It is the asyncio protocol of its transport.

    aiohttp's connector opens the connection; this object then replaces aiohttp's protocol on it.
    `DirectTransport` calls `check_new` once, and then `exchange` and `release` for each request. Between two
    exchanges the connection is idle, in `Origin.idle`.

    `exchange` returns a future. Its result is a `Response` or a `NoResponse`, never an exception:

    - `data_received`, `connection_lost` or `write` sets it when the response is complete or the connection
      fails.
    - `interrupt` sets it when the exchange times out or `DirectTransport` is closed.

    `_parser` is created just before the request is written. If an exchange fails before that, the request was
    not sent.

    `_is_clean` becomes False when the connection cannot be used again: the server asked to close it, it
    failed, a body was too large, or it received data that belongs to no response. `release` then aborts it.
    `expires_at` is the time of the event loop's clock at which the exchange times out, or the idle connection
    is closed. From `_fresh_until` on, the connection is not used again.
    """

    _fresh_until = inf

    def __init__(self, connection: "OpenedConnection", scheduler: Scheduler, origin: Origin) -> None:
        # These attributes are undocumented. `handler` is aiohttp's own protocol. `connection_lost` of this
        # class calls that of `handler`.
        handler = connection.protocol
        transport = None if handler is None else handler.transport
        if transport is None or handler is None or transport.is_closing():
            connection.close()
            raise aiohttp.ClientConnectionResetError("the new connection is closing")
        self.expires_at = inf
        self._connection = connection
        self._transport = transport
        self._handler = handler
        self._scheduler = scheduler
        self._origin = origin
        # `should_close` is undocumented. It is True if unrequested data was received.
        self._is_clean = not handler.should_close
        self._result: asyncio.Future[Response | NoResponse] | None = None
        self._unsent_bytes: bytes | None = None
        self._request: Request | None = None
        self._received = bytearray()  # the part of the body that was taken out of the parser
        self._parser: ResponseParser | None = None
        self._head: ResponseHead | None = None
        self._length: str | None = None  # the Content-Length that ends the body
        self._content: aiohttp.StreamReader | None = None
        self._is_too_large = False
        self._end: End = "stated"
        self._is_followed = False
        self.was_used = False  # by an earlier exchange
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
        self, request: Request, headers: list[tuple[str, str]], deadline: float
    ) -> "asyncio.Future[Response | NoResponse]":
        """Begin to send a request, and return the future of its result, which is never an exception."""
        scheduler = self._scheduler
        scheduler.in_progress += 1
        self._result = scheduler.loop.create_future()
        self._head = self._length = None
        self._received.clear()
        self.expect_response()
        self._request = request
        self._unsent_bytes = _serialize(request, headers, self._origin)
        self.expires_at = deadline
        scheduler.timer.set(self, deadline)
        if scheduler.in_progress == 1:  # this one
            self.write()
        else:
            scheduler.add(self)
        return self._result

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
        if (
            self._result is None
            or self._result.done()
            or self._unsent_bytes is None
            or self._parser is not None
        ):
            return 0
        # Data received before the request was sent would be taken for its response.
        if not self._is_clean or self._transport.is_closing():
            self._fail(aiohttp.ClientConnectionResetError(_UNUSABLE))
            return 0
        size = len(self._unsent_bytes)
        try:
            self._parser = new_parser(self, self._scheduler.loop)
            if self._request is not None:
                self._request.is_sent = True
            # Error reports may show local variables, so do not copy these bytes (personal data) into a local.
            self._transport.write(self._unsent_bytes)
        except Exception as error:  # noqa: BLE001  (any error must complete the future)
            self._fail(error)
        self._unsent_bytes = None
        return size

    def release(self, *, keep: bool) -> None:
        """End the exchange. Keep the connection for the next one, or abort it if it cannot be used again.

        Args:
            keep: False if the request was so large that a part of it may still be unsent.
        """
        is_complete = self._parser is None
        self._scheduler.in_progress -= 1
        self._result = self._unsent_bytes = self._request = None
        if keep and is_complete and self._is_clean:
            self._store()
        else:
            self.abort()

    def _store(self) -> None:
        """Keep the connection as an idle one."""
        self.was_used = True
        if self._head is not None:  # else nothing was sent, and the connection has been idle for longer
            announced = _ANNOUNCED.search(self._head.headers.get("Keep-Alive", ""))
            limit = _MAX_IDLE if announced is None else min(_MAX_IDLE, int(announced[1]) / 2)
            self._fresh_until = self._scheduler.loop.time() + limit
        self.expires_at = self._fresh_until
        self._scheduler.timer.set(self, self.expires_at)
        self._origin.idle[self] = None
        if self._origin.waiting:  # else the waiting call would get no connection while this one is idle
            waiting = next(iter(self._origin.waiting))  # the one that waits longest
            del self._origin.waiting[waiting]
            expire(waiting)

    async def read_on(self) -> Response | NoResponse:
        """Read the rest of the response although the task was cancelled, and return the result.

        New futures replace the one of `exchange`, which was cancelled with the task.
        """
        task = cast("asyncio.Task[object]", asyncio.current_task())
        while True:
            task.uncancel()
            cancelled, self._result = self._result, self._scheduler.loop.create_future()
            if cancelled is not None and cancelled.done() and not cancelled.cancelled():
                # The response and the cancellation came in the same iteration of the event loop.
                self._result.set_result(cancelled.result())
            try:
                return await self._result
            except asyncio.CancelledError:
                continue

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

    def interrupt(self, error: BaseException) -> None:
        """Fail the exchange in progress with `error` and abort the connection; close an idle connection."""
        if self._result is None:
            self.close()
        else:
            self._fail(error)
            self._transport.abort()  # `close` would wait for a server that does not read

    def unregister(self) -> None:
        """Remove the connection from the idle connections and from those that the timer interrupts."""
        self._origin.idle.pop(self, None)
        self._scheduler.connections.discard(self)
        self._scheduler.timer.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse received data (called by asyncio)."""
        if self._parser is None:
            self._is_clean = False  # the server sent data without a request
            return
        try:
            for piece in self.split(data):
                if self._length is not None and self._is_whole_body(piece):
                    self._finish_with_body(piece)
                    return
                self._parse(piece)
        except Exception:  # noqa: BLE001  (any error of the parser means malformed HTTP)
            self._check_body()  # the body may be complete, and only the data after it malformed
            self._fail(failures.MalformedResponseError())
        else:
            self._check_body()

    def _is_whole_body(self, data: bytes) -> bool:
        """Return True for all data after a head with Content-Length, if it is exactly the body.

        Then the parser has nothing left to check. It would copy the body into a stream and out again.
        """
        size = len(data)
        return self._length == str(size) and self._received_after_head == size <= MAX_BODY_SIZE

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None  # noqa: S101  (the caller has checked it)
        messages, is_upgraded, _ = self._parser.feed_data(data)
        for head, content in messages:
            if self._head is not None:
                self._is_clean = False
                self._is_followed = True
                break
            if head.code in _INTERIM:
                continue
            if MUST_CHECK_LENGTHS and failures.has_two_lengths(head.headers):
                raise failures.MalformedResponseError
            self._head, self._content = head, content
            self._is_clean = not (head.should_close or is_upgraded)
            # The parser accepts heads that end with bare line feeds. `split` does not find their end.
            is_split = not (self._in_head or content.total_bytes)
            # A response with 204 or 304 has no body, whatever its Content-Length says.
            has_body = not (is_upgraded or content.is_eof())
            if is_split and has_body and "Transfer-Encoding" not in head.headers:
                self._length = head.headers.get("Content-Length")

    def _check_body(self) -> None:
        """Finish the exchange if the body is complete, too large, or failed."""
        head, content = self._head, self._content
        if head is None or content is None:
            return
        if (error := content.exception()) is not None:
            self._fail(error)
        elif self._is_too_large or content.total_bytes > MAX_BODY_SIZE:
            self._is_clean = False
            self._finish(
                failures.decoded_response(
                    head.code, head.headers, self._take_received(), "too large", end="cut"
                )
            )
        elif content.is_eof():
            if self.has_more_than(content, is_chunked=head.chunked):
                self._is_clean = False
                if self.is_followed(content, is_chunked=head.chunked):
                    self._is_followed = True
            self._finish_with_body(bytes(self._received) + content.read_nowait())

    def _finish_with_body(self, body: bytes) -> None:
        """Finish the exchange with a complete response."""
        assert self._head is not None  # noqa: S101  (the caller has checked it)
        response = failures.decoded_response(self._head.code, self._head.headers, body, end=self._end)
        response.is_followed = self._is_followed
        self._finish(response)

    def _take_received(self) -> bytes:
        """Move the received body out of the parser, because a failing parser drops it. Return all of it."""
        self._received += buffered_body(self._content)
        return bytes(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish the exchange, because the connection has ended (called by asyncio).

        The end of the connection completes a response without Content-Length. The future is set before
        aiohttp's protocol is called, because that call may raise an error.
        """
        lost = aiohttp.ClientOSError(*exc.args) if isinstance(exc, OSError) else exc
        try:
            if self._parser is not None and self._head is not None:
                self._take_received()
                self._end = "closed" if exc is None else "cut"
                self._parser.feed_eof()
                self._check_body()
        except Exception:  # noqa: BLE001  (any error of the parser means an incomplete response)
            self._fail(exc or aiohttp.ClientPayloadError())
        finally:
            self._fail(lost or aiohttp.ServerDisconnectedError())
            self.unregister()
            try:
                # Undocumented. Closing aiohttp's session waits for this call.
                self._handler.connection_lost(exc)
            finally:
                self._connection.close()

    def pause_reading(self) -> None:
        """Note that the body is too large, and pause the parser (called by the parser)."""
        self._is_too_large = True
        if self._parser is not None:
            self._parser.pause_reading()

    def resume_reading(self, *_: object, **__: object) -> None:
        """Do nothing (called by the parser): the rest of a body that is too large is never read."""

    def _fail(self, error: BaseException) -> None:
        """Finish the exchange with a `NoResponse`; if the head has arrived, with an incomplete response."""
        self._is_clean = False
        result: Response | NoResponse = failures.no_response(error, is_unsent=self._parser is None)
        try:
            if (head := self._head) is not None:
                result = failures.partial_response(head.code, head.headers, error, self._take_received())
        finally:
            self._finish(result)

    def _finish(self, result: Response | NoResponse) -> None:
        """Set the result of the exchange, unless it has one."""
        self._parser = self._content = self._unsent_bytes = None
        if self._result is not None and self._result.cancelled():
            # The task was cancelled in this iteration of the event loop. `read_on` needs the result.
            self._result = self._scheduler.loop.create_future()
        if self._result is not None and not self._result.done():
            self._result.set_result(result)


def _interrupt(connection: DirectConnection, _: float) -> None:
    connection.interrupt(TimeoutError())


def _serialize(request: Request, headers: list[tuple[str, str]], origin: Origin) -> bytes:
    """Return head and body of a request as bytes."""
    items = [("Host", origin.host), ("Content-Length", str(len(request.body))), *headers]
    lines = list(map(": ".join, items))
    if not "".join(lines).replace("\t", "").isprintable():
        # A line break would begin another header. The message omits the values, as one of them is the token.
        raise ValueError("headers must not contain line breaks")
    head = f"{request.method} {request.url[len(origin.address) :]} HTTP/1.1\r\n"
    return "\r\n".join([head[:-2], *lines, "\r\n"]).encode() + request.body
