"""A connection of the direct path: it writes one request, and sets one future to the response."""

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import http
from attrs import define, field

from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import INTERIM, HeadSplitter, rest_of
from loanasync._transport.liveness import read_pending, unread_data_check

if TYPE_CHECKING:
    from aiohttp.connector import Connection


_KEPT = 15.0  # seconds that a connection waits for its next call, as aiohttp's own do
_RESTED = 0.01  # seconds; after more, the event loop may have been blocked while servers closed connections
_IN_A_STEP = 1 << 16  # bytes sent in one step of the loop, which take a millisecond or two
# aiohttp's parser in C refuses a repeated Content-Length by itself.
_MUST_CHECK_LENGTHS = http.HttpResponseParser.__module__ != "aiohttp._http_parser"


def new_parser(protocol: object, loop: object, limit: int = failures.LARGEST_BODY) -> http.HttpResponseParser:
    """Return a parser that stops `protocol` when more than about `limit` bytes wait to be read.

    It is not documented. aiohttp has no other parser, and one of our own would read some responses in another
    way than the session does. It does not decode bodies: a head whose Content-Encoding it cannot decode would
    be lost.
    """
    return http.HttpResponseParser(
        protocol,  # type: ignore[arg-type]  # the parser calls two of its methods
        loop,  # type: ignore[arg-type]  # only passed on, to the reader of a body
        limit,
        payload_exception=aiohttp.ClientPayloadError,
        read_until_eof=True,
        auto_decompress=False,
        max_headers=failures.MOST_HEADERS,
        max_line_size=failures.LARGEST_FIELD,
        max_field_size=failures.LARGEST_FIELD,
    )


class Scheduler:
    """State shared by all connections of one event loop: a queue that batches writes and a single timer.

    What becomes ready in one turn of the loop is sent together in the next, so that the service is woken once
    and its responses come together, too. One timer is enough, since hardly any call is ever late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connections: set[DirectConnection] = set()
        self.in_progress = 0  # calls
        self._ready: deque[DirectConnection] = deque()
        self._wakes_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def send(self, connection: "DirectConnection") -> None:
        """Send its request at once if no other call is in progress, or together with the others."""
        if self.in_progress == 1:
            connection.send()
            return
        if not self._ready:
            self.loop.call_soon(self._send_some, self.loop.time() + _RESTED)
        self._ready.append(connection)

    def _send_some(self, by: float) -> None:
        now = self.loop.time()
        left = _IN_A_STEP
        try:
            while self._ready and left > 0:
                connection = self._ready.popleft()
                if now >= by:
                    connection.check_after_block(now)
                left -= connection.send()
        finally:  # also for those behind one in which the program is ended
            if self._ready:
                self.loop.call_soon(self._send_some, by)  # they have waited since then

    def wake(self, at: float) -> None:
        """Look for connections whose time is up at that time of the loop's clock, if not before."""
        if at < self._wakes_at:
            self.stop()
            self._wakes_at = at
            self._timer = self.loop.call_at(at, self._expire)

    def stop(self) -> None:
        """Cancel the timer."""
        self._wakes_at = inf
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        now = max(self.loop.time(), self._wakes_at)  # loops may be early by their clock's resolution
        self.stop()
        try:
            for connection in tuple(self.connections):
                if connection.until <= now:
                    connection.interrupt(TimeoutError())
        finally:  # also for the calls behind one that broke
            self.wake(min((each.until for each in self.connections), default=inf))


@define(eq=False)
class Origin:
    """A scheme, host and port, and the idle connections to it.

    `target` is the request by which aiohttp's connector knows where a connection leads.
    """

    address: str
    host: str
    target: aiohttp.ClientRequest
    idle: "dict[DirectConnection, None]" = field(factory=dict)

    def take(self) -> "DirectConnection | None":
        """Return an idle connection that can be used, and close those that cannot."""
        while self.idle:
            connection, _ = self.idle.popitem()  # the last: the others are closed when they are not needed
            if connection.is_reusable:
                return connection
            connection.close()
        return None


class DirectConnection(HeadSplitter):
    """One connection, for one request at a time. aiohttp made it, counts it and parses what it receives.

    `until` is the time of the loop's clock at which it has waited long enough, for a response or for a call.
    """

    def __init__(self, connection: "Connection", scheduler: Scheduler, origin: Origin) -> None:
        # aiohttp documents neither: only what it opened is written to, and its protocol hears of the end.
        transport, handler = connection.transport, connection.protocol
        if transport is None or handler is None or transport.is_closing():
            connection.close()
            raise aiohttp.ClientConnectionResetError("a connection that ends")
        self.until = inf
        self._connection = connection
        self._transport = transport
        self._handler = handler
        self._scheduler = scheduler
        self._origin = origin
        self._is_good = not handler.should_close  # undocumented, and True if a new connection has unread data
        self._result: asyncio.Future[Response | NoResponse] | None = None
        self._unsent: bytes | None = None
        self._request: Request | None = None
        self._received = bytearray()  # of a body that comes in several parts
        self._parser: http.HttpResponseParser | None = None
        self._head: http.RawResponseMessage | None = None
        self._content: aiohttp.StreamReader | None = None
        self._is_too_large = False
        self._is_used = False
        self._has_unread_data = unread_data_check(transport)
        transport.set_protocol(self)
        scheduler.connections.add(self)

    async def check_new(self, until: float) -> None:
        """Raise an error of aiohttp unless this new connection can be used."""
        # What the server said before it was asked would be taken for the response.
        if self._has_unread_data():
            await read_pending(self._has_unread_data)
        if self._scheduler.loop.time() >= until:  # the event loop was blocked meanwhile
            raise aiohttp.ConnectionTimeoutError("no connection in time")
        if not (self._is_good and self.is_open):  # what is still unread may be another session ticket of TLS
            raise aiohttp.ClientConnectionResetError("not a clean connection")

    def exchange(self, request: Request, until: float) -> "asyncio.Future[Response | NoResponse]":
        """Have a request sent; the result of the future is its response, or why none came: no exception."""
        scheduler = self._scheduler
        scheduler.in_progress += 1
        self._result = scheduler.loop.create_future()
        self._head = None
        self._received.clear()
        self.expect_response()
        self._request = request
        self._unsent = _written(request, self._origin)
        self.until = until
        scheduler.wake(until)
        scheduler.send(self)
        return self._result

    def check_after_block(self, now: float) -> None:
        """Check for a closed connection when the event loop was blocked after this request was queued."""
        if self._unsent is None:
            return
        if self.until <= now:
            self.interrupt(TimeoutError())
        elif (
            self._is_used and self._has_unread_data()
        ):  # new ones have some: TLS sends what may be read later
            self._is_good = False

    def send(self) -> int:
        """Send the request unless it was given up or sent, and return the number of bytes."""
        if self._result is None or self._result.done() or self._unsent is None or self._parser is not None:
            return 0
        # What the server said before it was asked would be taken for the response.
        if not self._is_good or self._transport.is_closing():
            self._fail(aiohttp.ClientConnectionResetError("not a clean connection"))
            return 0
        size = len(self._unsent)
        try:
            self._parser = new_parser(self, self._scheduler.loop)
            if self._request is not None:
                self._request.is_sent = True
            self._transport.write(self._unsent)  # no local variable: error reports show those
        except Exception as error:  # noqa: BLE001  (whatever it is, the caller has to hear of it)
            self._fail(error)
        self._unsent = None
        return size

    def end(self, *, keep: bool) -> None:
        """Keep the connection for the next call, or abort it if data of this call may still arrive."""
        has_ended = self._parser is None
        self._scheduler.in_progress -= 1
        self._result = self._unsent = self._request = None
        if keep and has_ended and self._is_good:
            self._is_used = True
            self.until = self._scheduler.loop.time() + _KEPT
            self._scheduler.wake(self.until)
            self._origin.idle[self] = None
        else:
            self.abort()

    def read_late(self, *, keep: bool) -> "asyncio.Future[Response | NoResponse]":
        """Return a future of the response in place of the one that was cancelled with its caller."""
        given_up = self._result
        late = self._result = self._scheduler.loop.create_future()
        if given_up is not None and given_up.done() and not given_up.cancelled():
            late.set_result(given_up.result())  # it came at the same time
        late.add_done_callback(lambda _: self.end(keep=keep))
        return late

    @property
    def is_open(self) -> bool:
        """Return True if the connection is open, as far as its loop has noticed."""
        return not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Return True if only responses to requests were read, and nothing is unread, such as the end."""
        # Asked of the system each time: a server's farewell may stand right behind the response before.
        return self._is_good and not self._transport.is_closing() and not self._has_unread_data()

    def abort(self) -> None:
        """Drop the connection: closing it would go on sending what was given up."""
        self._drop()
        self._transport.abort()

    def close(self) -> None:
        """Say goodbye to the server."""
        self._drop()
        if self.is_open:  # closed twice, asyncio's TLS forgets itself, and aiohttp's connector breaks on that
            self._transport.close()

    def interrupt(self, error: BaseException) -> None:
        """End the call in progress and its connection, or close an idle connection."""
        if self._result is None:
            self.close()
        else:
            self.until = inf
            self._fail(error)
            self._transport.abort()  # closing alone would wait for a server that does not read

    def _drop(self) -> None:
        self._origin.idle.pop(self, None)
        self._scheduler.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse what has come (asyncio)."""
        if self._parser is None:
            self._is_good = False  # said without being asked
            return
        try:
            for piece in self.pieces(data):
                self._parse(piece)
        except Exception:  # noqa: BLE001  (whatever the parser raises, this is no HTTP)
            self._look_at_content()  # which may be whole
            self._fail(failures.MalformedResponseError())
        else:
            self._look_at_content()

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None  # noqa: S101  (looked at above)
        messages, is_upgraded, _ = self._parser.feed_data(data)
        for head, content in messages:
            if self._head is not None:
                self._is_good = False  # something after the response
                break
            if head.code in INTERIM:
                continue
            if _MUST_CHECK_LENGTHS and failures.has_two_lengths(head.headers):
                raise failures.MalformedResponseError
            self._head, self._content = head, content
            self._is_good = not (head.should_close or is_upgraded)

    def _look_at_content(self) -> None:
        head, content = self._head, self._content
        if head is None or content is None:
            return
        if (error := content.exception()) is not None:
            self._fail(error)
        elif self._is_too_large or content.total_bytes > failures.LARGEST_BODY:
            self._is_good = False
            self._finish(failures.decoded_response(head.code, head.headers, self._take_part(), "too large"))
        elif content.is_eof():
            body = bytes(self._received) + content.read_nowait()
            if self.has_more_than(content, is_chunked=head.chunked):
                self._is_good = False
            if "Content-Encoding" in head.headers:
                self._finish(failures.decoded_response(head.code, head.headers, body))
            else:
                self._finish(Response(status=head.code, headers=head.headers, body=body))

    def _take_part(self) -> bytes:
        """Take what has arrived of the body out of the parser, which drops it when the connection fails."""
        self._received += rest_of(self._content)
        return bytes(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended (asyncio), and with it, perhaps, a response of no stated length."""
        # The call's future is completed before aiohttp is called: nothing else would ever complete it.
        lost = aiohttp.ClientOSError(*exc.args) if isinstance(exc, OSError) else exc
        try:
            if self._parser is not None and self._head is not None:
                self._take_part()
                self._parser.feed_eof()
                self._look_at_content()
        except Exception:  # noqa: BLE001  (half a response)
            self._fail(exc or aiohttp.ClientPayloadError())
        finally:
            self._fail(lost or aiohttp.ServerDisconnectedError())
            self._drop()
            try:
                self._handler.connection_lost(exc)  # undocumented: aiohttp's close waits for it
            finally:
                self._connection.close()

    def pause_reading(self) -> None:
        """More has come than is ever read at once (the parser's word)."""
        self._is_too_large = True
        if self._parser is not None:
            self._parser.pause_reading()

    def resume_reading(self, *_: object, **__: object) -> None:
        """It was read (the parser's word)."""

    def _fail(self, error: BaseException) -> None:
        self._is_good = False
        result: Response | NoResponse = failures.no_response(error, never_left=self._parser is None)
        try:
            if (head := self._head) is not None:
                result = failures.partial_response(head.code, head.headers, error, self._take_part())
        finally:
            self._finish(result)

    def _finish(self, result: Response | NoResponse) -> None:
        self._parser = self._content = self._unsent = None
        if self._result is not None and self._result.cancelled():  # in this turn: `read_late` may follow
            self._result = self._scheduler.loop.create_future()
        if self._result is not None and not self._result.done():
            self._result.set_result(result)


def _written(request: Request, origin: Origin) -> bytes:
    """Return the bytes of a request."""
    if not "".join(request.headers.values()).isprintable():
        raise ValueError("a header must not hold line breaks")  # one would begin another header
    headers = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
    head = (
        f"{request.method} {request.url[len(origin.address) :]} HTTP/1.1\r\n"
        f"Host: {origin.host}\r\nContent-Length: {len(request.body)}\r\n{headers}\r\n"
    )
    return head.encode() + request.body
