"""Undocumented parts of aiohttp, each with the reason for its use.

`SessionTransport` and the direct path use this module. The package `fast` and the module `agents` use further
undocumented parts of aiohttp. No other module depends on undocumented parts of aiohttp.
"""

import asyncio
from contextlib import suppress
from functools import cache
from logging import INFO
from math import inf
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from loanasync._display.masking import mask
from loanasync._log import log
from loanasync._transport.liveness import read_pending, unread_data_check

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http import StreamWriter

    from loanasync._protocol.messages import Request


# The minor versions of aiohttp that this release was tested with. With any other version, requests are sent
# through `ClientSession.request`, and the protocols of its connections are not replaced.
TESTED_AIOHTTP = frozenset({"3.12", "3.13", "3.14"})
# Those of the direct path. It was written for the parser and the connections of one version.
DIRECT_AIOHTTP = frozenset({"3.14"})
# Bytes: the limit of asyncio's write buffer. When the response to a larger request arrives, parts of the
# request may still be unsent, so the connection is not used again.
MAX_BODY_FOR_REUSE = 1 << 16
# Statuses of interim responses, which precede the final one (RFC 9110 §15.2). 101 is left out, because the
# connection does not use HTTP after it.
INTERIM = frozenset(range(100, 200)) - {101}
_HEAD_ENDS = b"\r\n\r\n"
_CHUNKS_END = b"0\r\n\r\n"
_STATUS_ENDS = len("HTTP/1.1 200")
# The function in which a request waits for a free slot of the session's pool. aiohttp raises the same error
# for this wait and for a slow connection, so only the traceback distinguishes them. If aiohttp renames the
# method, both are reported as slow connections.
_POOL_WAIT = getattr(getattr(aiohttp.BaseConnector, "_wait_for_available_connection", None), "__code__", None)


def minor_version(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


@cache
def is_tested(version: str) -> bool:
    """Return True for a version of aiohttp that this release was tested with; log any other once."""
    if minor_version(version) in TESTED_AIOHTTP:
        return True
    log(
        INFO,
        "aiohttp %s was not tested with this version of loanasync: sending through ClientSession.request",
        version,
    )
    return False


def tls_setting(connector: aiohttp.BaseConnector | None) -> object:
    """Return the connector's `ssl` setting; True for a connector without TLS, False if it is unknown."""
    # Connectors do not publish this setting. If aiohttp renames the attribute, the user's session is refused.
    return getattr(connector, "_ssl", not isinstance(connector, aiohttp.TCPConnector))


def belongs_to_other_loop(session: aiohttp.ClientSession) -> bool:
    """Return True if a session was created in another event loop than the running one."""
    # The public property is deprecated. If aiohttp renames the attribute, each request with it fails instead.
    loop = asyncio.get_running_loop()
    return getattr(session, "_loop", loop) is not loop


def waited_for_pool(error: BaseException | None) -> bool:
    """Return True if a timeout error ended the wait for a free slot of the session's pool."""
    while error is not None:
        if any(frame.f_code is _POOL_WAIT for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False


def buffered_body(content: aiohttp.StreamReader | None) -> bytes:
    """Return the part of a body that was received and not read, even if the connection has failed since."""
    # The public methods raise the failure instead. If aiohttp renames this method, these bytes are lost.
    take = getattr(content, "_read_nowait", None)
    return take(-1) if callable(take) else b""


def _retrieve_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


class HeadSplitter(asyncio.Protocol):
    """Base class of protocols that pass the head of a response to aiohttp's parser separately from the body.

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
        self._ends_with_last_chunk = False

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
            self._in_head = status.isdigit() and int(status) in INTERIM
            self._status_line = self._head_tail = b""
            pieces.append(data[:end])
            data = data[end:]
        if data:
            self._received_after_head += len(data)
            self._ends_with_last_chunk = data.endswith(_CHUNKS_END)
            pieces.append(data)
        return pieces

    def has_more_than(self, content: aiohttp.StreamReader, *, is_chunked: bool) -> bool:
        """Return True if data after the response was received, such as a part of another head."""
        return self._received_after_head != content.total_bytes and not (
            is_chunked and self._ends_with_last_chunk
        )


class SplittingProtocol(HeadSplitter):
    """A protocol that wraps aiohttp's protocol of a connection for one exchange, to split off the head.

    `RequestBody.write` creates it just before the request is written; `__init__` installs it on the
    connection. It passes all events to aiohttp's protocol. It removes itself when the body of the response
    ends, or when `RequestBody.end` calls `remove`.

    Args:
        transport: The connection.
        aborts: True if the request is so large that a part of it may still be unsent when the response ends.
    """

    def __init__(self, transport: asyncio.Transport, *, aborts: bool) -> None:
        self._transport = transport
        self._aborts = aborts
        self._handler = cast("ResponseHandler", transport.get_protocol())
        self._handler_error = getattr(self._handler, "exception", lambda: None)
        self._has_failed = False
        self._is_removed = False
        self._content: aiohttp.StreamReader | None = None
        self.expect_response()
        transport.set_protocol(self)

    def watch(self, response: aiohttp.ClientResponse) -> None:
        """Remove the wrapper when the body ends, because aiohttp then closes the connection.

        If aiohttp's protocol fails, make the reader of the body fail. aiohttp only closes the connection.
        """
        self._content = response.content
        self._fail_reader()
        response.content.on_eof(self.remove)

    def _fail_reader(self) -> None:
        content = self._content
        if content is not None and self._has_failed and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())

    def remove(self) -> None:
        """Restore aiohttp's protocol. Abort the connection if the request may be partly unsent.

        Closing instead of aborting would first write the rest of the request.
        """
        if self._is_removed:
            return
        self._is_removed = True
        with suppress(Exception):  # asyncio's TLS transport has no protocol after the connection has ended
            if self._aborts:
                self._transport.abort()
            self._transport.set_protocol(self._handler)

    def data_received(self, data: bytes) -> None:
        """Pass received data on, split after each head (called by asyncio)."""
        for piece in self.split(data):
            if not self._has_failed:
                self._handler.data_received(piece)
                self._has_failed = self._handler_error() is not None
        self._fail_reader()

    def eof_received(self) -> None:
        """Pass the event on (called by asyncio)."""
        self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the event on (called by asyncio)."""
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass the event on (called by asyncio)."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on (called by asyncio)."""
        self._handler.resume_writing()


class RequestBody(bytes, aiohttp.Payload):
    """The body of one request, whose `write` is called by aiohttp just before the request is written.

    `SessionTransport` creates one for each attempt to send a request, and calls `end` after it. `write` is
    the only place where the connection that aiohttp chose is known before anything is written. So it checks
    the connection, sets `Request.is_sent` and installs the `SplittingProtocol`. aiohttp writes the head
    together with the body. The attributes `transport` and `protocol` of aiohttp's writer are undocumented.

    It is also a `bytes` object, because tests of users compare the body that a mocked session received.
    """

    _autoclose = True  # there is nothing to close; aiohttp would warn about a body that is not closed

    def __init__(self, value: bytes) -> None:
        aiohttp.Payload.__init__(self, value)
        self.request: Request | None = None
        self.task: asyncio.Task[object] | None = None  # the task of the exchange, which may be cancelled
        self.protocol: object | None = None  # aiohttp's protocol of the connection that it chose
        self.is_written = False
        self.is_cancelled = False  # it must not be written any more
        self.was_refused = False  # because the connection was used before
        self.deadline = inf  # the time of the event loop's clock from which it must not be written
        self._is_built = False
        self._splitter: SplittingProtocol | None = None

    def __repr__(self) -> str:
        return mask(self)

    @property
    def size(self) -> int:
        """Return the length in bytes; aiohttp reads it when it builds the request."""
        self._is_built = True
        return len(self._value)

    @property
    def is_unsent(self) -> bool:
        """Return True if aiohttp has built the request, and nothing of it was written."""
        return self._is_built and not self.is_written

    def cancel_write(self, response: aiohttp.ClientResponse) -> None:
        """Prevent writing, because a response arrived before the request was written."""
        self.is_cancelled = True
        if response.connection is not None:
            self.protocol = response.connection.protocol

    def watch(self, response: aiohttp.ClientResponse) -> None:
        """Remove the `SplittingProtocol` when the body of the response ends."""
        if self._splitter is not None:
            self._splitter.watch(response)

    def discard_connection(self) -> None:
        """Abort the connection, because the end of its response is unknown."""
        with suppress(Exception):  # an error here must not replace the response
            cast("Any", self.protocol).transport.abort()

    def end(self, response: aiohttp.ClientResponse | None) -> None:
        """Release the connection; abort it if it cannot be used again."""
        with suppress(Exception):  # an error here must not replace the response
            if self._splitter is not None:
                self._splitter.remove()
        with suppress(Exception):
            if response is not None:
                response.close()

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write head and body (called by aiohttp).

        Nothing is written if the connection was used before or cannot be used, if writing was cancelled, or
        after the deadline. Otherwise aiohttp closes the connection after the response.

        Raises:
            ClientConnectionResetError: Nothing was written.
        """
        out = cast("StreamWriter", writer)
        transport = cast("asyncio.Transport | None", getattr(out, "transport", None))
        self.protocol = out.protocol
        # Undocumented: the body of the last response on this connection, to a request of the user. A further
        # response may follow, for example if the server rejected an upload before it had read the body.
        was_used = getattr(out.protocol, "_payload", None) is not None
        # `should_close` is True if data was received already. It would be taken for the response.
        self.was_refused = was_used and not getattr(out.protocol, "should_close", False)
        has_unread_data = unread_data_check(transport)
        if has_unread_data():
            await read_pending(has_unread_data)
        is_cancelled = self.is_cancelled or (self.task is not None and self.task.cancelling() > 0)
        is_late = asyncio.get_running_loop().time() >= self.deadline  # the event loop was blocked
        is_unusable = was_used or getattr(out.protocol, "should_close", False)
        if is_cancelled or is_late or is_unusable:
            if transport is not None:
                transport.abort()
            raise aiohttp.ClientConnectionResetError("connection already used, closed, or with data")
        may_wrap = is_tested(aiohttp.__version__)
        if transport is not None and may_wrap and isinstance(transport.get_protocol(), asyncio.Protocol):
            self._splitter = SplittingProtocol(transport, aborts=len(self._value) >= MAX_BODY_FOR_REUSE)
        with suppress(AttributeError):  # aiohttp may rename it; then the header asks the server to close
            cast("ResponseHandler", out.protocol).force_close()
        # With `drain=False`, this either raises because the connection is closing, or accepts all bytes.
        await out.write(self._value, drain=False)
        self.is_written = True
        if self.request is not None:
            self.request.is_sent = True
        try:
            await out.drain()
        except asyncio.CancelledError:
            # Before 3.14, aiohttp keeps this future. asyncio would log its error when the connection ends.
            waiter: asyncio.Future[None] | None = getattr(out.protocol, "_drain_waiter", None)
            if waiter is not None:
                waiter.add_done_callback(_retrieve_error)
            raise

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write head and body; the length of the body is known (called by aiohttp)."""
        del content_length
        await self.write(writer)
