"""A connection to the service, and the exchange on it: a request out, and one future for its whole answer."""

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, cast

import aiohttp
from aiohttp import http

from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures as replies
from loanasync._transport.aiohttp_internals import CHUNKS_END, HEAD_ENDS, is_interim
from loanasync._transport.fast.compatibility import has_two_lengths, new_parser
from loanasync._transport.liveness import listener

if TYPE_CHECKING:
    from aiohttp.connector import Connection


_KEPT = 15.0  # seconds that a connection waits for its next call, as aiohttp's own do
_RESTED = 0.01  # seconds after which a loop may have stood still for longer than servers keep a connection
_IN_A_STEP = 1 << 16  # bytes sent in one step of the loop, which take a millisecond or two
# aiohttp's parser in C refuses a repeated Content-Length by itself.
_MUST_CHECK_LENGTHS = http.HttpResponseParser.__module__ != "aiohttp._http_parser"


class Scheduler:
    """What all connections of a loop share: the turn in which they send, and a clock for what is late.

    What becomes ready in one turn of the loop is sent together in the next, so that the service is woken once
    and its answers come together, too. One timer is enough, since hardly any call is ever late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.wires: set[DirectConnection] = set()
        self.asked = 0  # of them, so many by a call that has not ended
        self._ready: deque[DirectConnection] = deque()
        self._rings_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def send(self, wire: "DirectConnection") -> None:
        """Let it send: at once if nobody else is under way, or with all the others."""
        if self.asked == 1:
            wire.send()
            return
        if not self._ready:
            self.loop.call_soon(self._send_some, self.loop.time() + _RESTED)
        self._ready.append(wire)

    def _send_some(self, by: float) -> None:
        now = self.loop.time()
        room = _IN_A_STEP
        try:
            while self._ready and room > 0:
                wire = self._ready.popleft()
                if now >= by:
                    wire.look_up(now)
                room -= wire.send()
        finally:  # also for those behind one in which the program is ended
            if self._ready:
                self.loop.call_soon(self._send_some, by)  # they have waited since then

    def ring(self, at: float) -> None:
        """Look after all of them then, by the loop's clock, if not before."""
        if at < self._rings_at:
            self.stop()
            self._rings_at = at
            self._timer = self.loop.call_at(at, self._look)

    def stop(self) -> None:
        """Look no more until it is asked for again."""
        self._rings_at = inf
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = max(self.loop.time(), self._rings_at)  # loops may be early by their clock's resolution
        self.stop()
        try:
            for wire in tuple(self.wires):
                if wire.until <= now:
                    wire.expire()
        finally:  # also for the calls behind one that broke
            self.ring(min((wire.until for wire in self.wires), default=inf))


class DirectConnection(asyncio.Protocol):
    """One connection. aiohttp made it, counts it and parses what comes; it is asked for one answer at a time.

    `until` is the time of the loop's clock at which it has waited long enough, for an answer or for a call.
    """

    def __init__(
        self, connection: "Connection", watch: Scheduler, idle: "dict[DirectConnection, None]"
    ) -> None:
        transport, handler = connection.transport, connection.protocol
        if transport is None or handler is None or transport.is_closing():
            connection.close()
            raise aiohttp.ClientConnectionResetError("a connection that ends")
        self.until = inf
        self._connection = connection
        self._transport = transport
        self._handler = handler
        self._watch = watch
        self._idle = idle
        self._is_good = not handler.should_close
        self._answer: asyncio.Future[Response | NoResponse] | None = None
        self._unsent: bytes | None = None
        self._request: Request | None = None
        self._received = bytearray()  # of a body that comes in several parts
        self._head_tail = b""  # the last bytes of a head that is not complete
        self._behind_head = 0  # bytes that came after the head
        self._ends_chunks = False
        self._parser: http.HttpResponseParser | None = None
        self._head: http.RawResponseMessage | None = None
        self._content: aiohttp.StreamReader | None = None
        self._is_too_large = False
        self._is_used = False
        self.has_unread_data = listener(transport)
        transport.set_protocol(self)
        watch.wires.add(self)

    def ask(self, request: Request, host: str, until: float) -> "asyncio.Future[Response | NoResponse]":
        """Have a request sent; its answer, or why none came, is the future's result, never an exception."""
        watch = self._watch
        watch.asked += 1
        self._answer = watch.loop.create_future()
        self._head = None
        self._received.clear()
        self._head_tail = b""
        self._behind_head = 0
        self._request = request
        self._unsent = _written(request, host)
        self.until = until
        watch.ring(until)
        watch.send(self)
        return self._answer

    def look_up(self, now: float) -> None:
        """Hear of what the loop has not, since it stood still after this was asked."""
        if self._unsent is None:
            return
        if self.until <= now:
            self.expire()
        elif self._is_used and self.has_unread_data():  # new ones have some: TLS sends what may be read later
            self._is_good = False

    def send(self) -> int:
        """Send what was asked for, unless it was given up or sent; so many bytes."""
        if self._answer is None or self._answer.done() or self._unsent is None or self._parser is not None:
            return 0
        # What the server said before it was asked would be taken for the answer.
        if not self._is_good or self._transport.is_closing():
            self._fail(aiohttp.ClientConnectionResetError("not a clean connection"))
            return 0
        size = len(self._unsent)
        try:
            self._parser = new_parser(self, self._watch.loop)
            if self._request is not None:
                self._request.is_sent = True
            self._transport.write(self._unsent)  # no local variable: error reports show those
        except Exception as error:  # noqa: BLE001  (whatever it is, the caller has to hear of it)
            self._fail(error)
        self._unsent = None
        return size

    def end(self, *, keep: bool) -> None:
        """Let the connection wait for the next call, or cut it off if something may come of this one."""
        has_ended = self._parser is None
        self._watch.asked -= 1
        self._answer = self._unsent = self._request = None
        if keep and has_ended and self._is_good:
            self._is_used = True
            self.until = self._watch.loop.time() + _KEPT
            self._watch.ring(self.until)
            self._idle[self] = None
        else:
            self.abort()

    def abort(self) -> None:
        """Drop the connection: closing it would go on sending what was given up."""
        self._drop()
        self._transport.abort()

    def answer_late(self, *, keep: bool) -> "asyncio.Future[Response | NoResponse]":
        """Return a future of the answer in place of the one that was cancelled with who waited for it."""
        given_up = self._answer
        late = self._answer = self._watch.loop.create_future()
        if given_up is not None and given_up.done() and not given_up.cancelled():
            late.set_result(given_up.result())  # it came at the same time
        late.add_done_callback(lambda _: self.end(keep=keep))
        return late

    @property
    def is_open(self) -> bool:
        """Whether it waits for a call, as far as its loop has heard."""
        return not self._transport.is_closing()

    @property
    def is_clean(self) -> bool:
        """Return True if the connection is open and nothing but responses to requests was read."""
        return self._is_good and self.is_open

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing has come to it: what is written to a connection that has ended is lost."""
        # Asked of the system each time: a server's farewell may stand right behind the answer before.
        return self._is_good and self.is_open and not self.has_unread_data()

    def close(self) -> None:
        """Say goodbye to the server."""
        self._drop()
        if self.is_open:  # closed twice, asyncio's TLS forgets itself, and aiohttp's connector breaks on that
            self._transport.close()

    def cut_off(self) -> None:
        """End the call in progress, if there is one, and the connection."""
        if self._answer is None:
            self.close()
        else:
            self._fail(asyncio.CancelledError())
            self._transport.abort()  # closing alone would wait for a server that does not read

    def expire(self) -> None:
        """The time is up."""
        if self._answer is None:
            self.close()
        else:
            self.until = inf
            self._fail(TimeoutError())

    def data_received(self, data: bytes) -> None:
        """Parse what has come (asyncio)."""
        if self._parser is None:
            self._is_good = False  # said without being asked
            return
        try:
            # Each head by itself: where what follows is wrong, the parser raises, and tells of nothing.
            while self._head is None:
                known = len(self._head_tail)
                end = (self._head_tail + data).find(HEAD_ENDS)
                if end < 0:
                    self._head_tail = (self._head_tail + data)[1 - len(HEAD_ENDS) :]
                    break
                end += len(HEAD_ENDS) - known
                self._head_tail = b""
                self._parse(data[:end])
                data = data[end:]
            else:
                self._behind_head += len(data)
                self._ends_chunks = data.endswith(CHUNKS_END)
            self._parse(data)
        except Exception as error:  # noqa: BLE001  (whatever the parser raises, this is no HTTP)
            self._look_at_content()  # which may be whole
            self._fail(error if isinstance(error, http.HttpProcessingError) else http.HttpProcessingError())
        else:
            self._look_at_content()

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None  # noqa: S101  (looked at above)
        messages, is_upgraded, _ = self._parser.feed_data(data)
        for head, content in messages:
            if self._head is not None:
                self._is_good = False  # something after the answer
                break
            if head.code < 200 and is_interim(head.code):  # noqa: PLR2004  (no call for a usual response)
                continue
            if _MUST_CHECK_LENGTHS and has_two_lengths(head):
                raise http.HttpProcessingError
            self._head, self._content = head, content
            self._is_good = not (head.should_close or is_upgraded)

    def _look_at_content(self) -> None:
        head, content = self._head, self._content
        if head is None or content is None:
            return
        if (error := content.exception()) is not None:
            self._fail(cast("Exception", error))
        elif self._is_too_large or content.total_bytes > replies.LARGEST_BODY:
            self._is_good = False
            self._finish(replies.reply(head.code, head.headers, self._take_part(), "too large"))
        elif content.is_eof():
            body = bytes(self._received) + content.read_nowait()
            if self._behind_head != content.total_bytes and not (head.chunked and self._ends_chunks):
                self._is_good = False  # something after the response, perhaps half of a head
            if "Content-Encoding" in head.headers:
                self._finish(replies.reply(head.code, head.headers, body))
            else:
                self._finish(Response(status=head.code, headers=head.headers, body=body))

    def _take_part(self) -> bytes:
        """Take what has arrived of the body out of the parser, which drops it when the connection fails."""
        self._received += replies.rest_of(self._content)
        return bytes(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended (asyncio), and with it, perhaps, an answer of no stated length."""
        # The call's future is completed before aiohttp is called: nothing else would ever complete it.
        lost = aiohttp.ClientOSError(*exc.args) if isinstance(exc, OSError) else exc
        try:
            self._end_body(exc)
        finally:
            self._fail(lost or aiohttp.ServerDisconnectedError())
            self._drop()
            try:
                self._handler.connection_lost(exc)  # aiohttp's close waits for it
            finally:
                self._connection.close()

    def _end_body(self, exc: Exception | None) -> None:
        """Complete a response whose body ends with the connection."""
        if self._parser is None or self._head is None:
            return
        self._take_part()
        try:
            self._parser.feed_eof()
        except Exception:  # noqa: BLE001  (half an answer)
            self._fail(exc or aiohttp.ClientPayloadError())
        else:
            self._look_at_content()

    def pause_reading(self) -> None:
        """More has come than is ever read at once (the parser's word)."""
        self._is_too_large = True
        if self._parser is not None:
            self._parser.pause_reading()

    def resume_reading(self, *_: object, **__: object) -> None:
        """It was read (the parser's word)."""

    def _fail(self, error: BaseException) -> None:
        self._is_good = False
        answer: Response | NoResponse = replies.no_answer(error, never_left=self._parser is None)
        try:
            if (head := self._head) is not None:
                answer = replies.part_of_a_reply(head.code, head.headers, error, self._take_part())
        finally:
            self._finish(answer)

    def _finish(self, answer: Response | NoResponse) -> None:
        self._parser = self._content = self._unsent = None
        if self._answer is not None and self._answer.cancelled():  # in this turn: `answer_late` may follow
            self._answer = self._watch.loop.create_future()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _drop(self) -> None:
        self._idle.pop(self, None)
        self._watch.wires.discard(self)


def path_of(url: str) -> int:
    """Where the path of an address begins."""
    return url.index("/", len("https://"))


def _written(request: Request, host: str) -> bytes:
    """A request as it goes over the wire."""
    if not "".join(request.headers.values()).isprintable():
        raise ValueError("a header must not hold line breaks")  # one would begin another header
    headers = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
    head = (
        f"{request.method} {request.url[path_of(request.url) :]} HTTP/1.1\r\n"
        f"Host: {host}\r\nContent-Length: {len(request.body)}\r\n{headers}\r\n"
    )
    return head.encode() + request.body
