"""Undocumented parts of aiohttp that requests through a session need; each use states its reason.

The direct path has its own (`fast`). No other module uses such parts.
"""

import asyncio
from contextlib import suppress
from functools import cache
from traceback import walk_tb
from typing import TYPE_CHECKING, cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from loanasync._display.masking import mask
from loanasync._log import LOGGER
from loanasync._transport.liveness import read_pending, unread_data_check

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http import StreamWriter

    from loanasync._protocol.messages import Request


# The minor versions that the tests of this release ran with: the lowest that is allowed, and the newest.
# On any other version requests go through `ClientSession.request`, and the protocols of its connections are
# left alone.
TESTED_AIOHTTP = frozenset({"3.14"})
# Bytes, as much as asyncio holds back for nobody: of more, some may still wait here when the answer has come.
AT_ONCE = 1 << 16
# Statuses of responses that another one follows (RFC 9110 §15.2). 101 is the last response in HTTP.
INTERIM = frozenset(range(100, 200)) - {101}
_HEAD_ENDS = b"\r\n\r\n"
_CHUNKS_END = b"0\r\n\r\n"
_STATUS_ENDS = len("HTTP/1.1 200")
_TURNS = 10  # of the loop, at the most
# A pool's wait for a free slot. aiohttp has one error for this wait and for the one for a connection, so the
# stack of the error has to tell. If aiohttp renames the method, both count as waits for a connection.
_POOL = getattr(getattr(aiohttp.BaseConnector, "_wait_for_available_connection", None), "__code__", None)


@cache
def is_tested(version: str) -> bool:
    """Return True for a version of aiohttp that this release was tested with; log any other once."""
    if ".".join(version.split(".")[:2]) in TESTED_AIOHTTP:
        return True
    LOGGER.info(
        "aiohttp %s was not tested with this loanasync: requests go through ClientSession.request", version
    )
    return False


def trust_of(connector: aiohttp.BaseConnector | None) -> object:
    """Return what a connector trusts: True for one that does no TLS itself, False where that is not known."""
    # Connectors do not publish their context. If aiohttp renames the attribute, such a session is refused.
    return getattr(connector, "_ssl", not isinstance(connector, aiohttp.TCPConnector))


def is_of_other_loop(session: aiohttp.ClientSession) -> bool:
    """Return True for a session that was made in another event loop than the running one."""
    # The public property is deprecated. If aiohttp renames the attribute, each request fails by itself.
    loop = asyncio.get_running_loop()
    return getattr(session, "_loop", loop) is not loop


def waited_for_pool(error: BaseException | None) -> bool:
    """Return True for a time-out that ended the wait for a free slot of a pool."""
    while error is not None:
        if any(frame.f_code is _POOL for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False


def rest_of(content: aiohttp.StreamReader | None) -> bytes:
    """Return what a reader holds of a body, also if the connection has failed since it arrived."""
    # Public methods raise the failure instead. If aiohttp renames this one, only these last bytes are lost.
    take = getattr(content, "_read_nowait", None)
    return take(-1) if callable(take) else b""


class HeadSplitter(asyncio.Protocol):
    """Base of protocols that pass each head of a response to aiohttp separately from what follows.

    aiohttp reports nothing of a packet in which anything is wrong. If the head comes with the beginning of a
    bad body, or with bytes that do not belong to the response, it loses the status, and with it a decision.
    """

    def expect_response(self) -> None:
        """Begin with the first head of a response."""
        self._in_head = True
        self._status_line = b""  # the first bytes of a head
        self._head_tail = b""  # the last bytes of a head that is not complete
        self._behind_head = 0  # bytes
        self._ends_chunks = False

    def pieces(self, data: bytes) -> list[bytes]:
        """Split received data behind each head."""
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
            self._behind_head += len(data)
            self._ends_chunks = data.endswith(_CHUNKS_END)
            pieces.append(data)
        return pieces

    def has_more_than(self, content: aiohttp.StreamReader, *, is_chunked: bool) -> bool:
        """Return True if something came behind the response, perhaps half of another head."""
        return self._behind_head != content.total_bytes and not (is_chunked and self._ends_chunks)


class Splitter(HeadSplitter):
    """Stands between a transport and aiohttp's protocol for one exchange, which begins when it is created."""

    def __init__(self, transport: asyncio.Transport, *, keep: bool) -> None:
        self._transport = transport
        self._keep = keep
        self._handler = cast("ResponseHandler", transport.get_protocol())
        self._failure = getattr(self._handler, "exception", lambda: None)
        self._has_failed = False
        self._has_left = False
        self._content: aiohttp.StreamReader | None = None
        self._is_chunked = False
        self.expect_response()
        transport.set_protocol(self)

    @classmethod
    async def left(cls, transport: asyncio.Transport) -> None:
        """Wait for the end of an earlier exchange, which aiohttp notices a little before us."""
        for _ in range(_TURNS):
            if not isinstance(transport.get_protocol(), cls):
                return
            await asyncio.sleep(0)
        raise aiohttp.ClientConnectionResetError("not a clean connection")

    def read(self, response: aiohttp.ClientResponse) -> None:
        """Leave when the body of the response ends: in the same step aiohttp puts the connection in its pool.

        The reader of the body fails at an error, at which aiohttp only closes the connection.
        """
        self._content = response.content
        self._is_chunked = "Transfer-Encoding" in response.headers
        self._fail_reader()
        response.content.on_eof(self.leave)

    def _fail_reader(self) -> None:
        content = self._content
        if content is not None and self._has_failed and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())

    def leave(self) -> None:
        """Give the transport its protocol back; abort it if it is not to be used again.

        Closing would go on sending what was given up. Nor is a connection used again on which something
        came behind the response.
        """
        if self._has_left:
            return
        self._has_left = True
        content = self._content
        with suppress(Exception):  # asyncio's TLS has no protocol any more once the connection has ended
            if not self._keep or (
                content is not None and self.has_more_than(content, is_chunked=self._is_chunked)
            ):
                self._transport.abort()
            self._transport.set_protocol(self._handler)

    def data_received(self, data: bytes) -> None:
        """Pass data on, up to the end of a head first (asyncio)."""
        for piece in self.pieces(data):
            if not self._has_failed:
                self._handler.data_received(piece)
                self._has_failed = self._failure() is not None
        self._fail_reader()

    def eof_received(self) -> None:
        """Pass it on (asyncio)."""
        self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on (asyncio)."""
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on (asyncio)."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on (asyncio)."""
        self._handler.resume_writing()


class RequestBody(bytes, aiohttp.Payload):
    """A request's body, which knows whether it left; aiohttp writes the head together with it.

    Only the writer of a payload shows the connection that aiohttp chose before anything is written; its
    attributes `transport` and `protocol` are undocumented. The body is bytes, too, for those who look at
    what a shop's tests catch in place of aiohttp.
    """

    _autoclose = True  # nothing to close: else aiohttp warns of a body that is not closed

    def __init__(self, value: bytes) -> None:
        aiohttp.Payload.__init__(self, value)
        self.request: Request | None = None  # its `is_sent` is set here
        self.protocol: object | None = None  # of the connection that aiohttp chose
        self.has_left = False  # given to a connection
        self.is_withheld = False  # not to leave any more
        self._is_built = False
        self._splitter: Splitter | None = None

    def __repr__(self) -> str:
        return mask(self)

    @property
    def size(self) -> int:
        """Return its length in bytes; aiohttp reads it when it builds the request."""
        self._is_built = True
        return len(self._value)

    @property
    def never_left(self) -> bool:
        """Return True if a request was built, and nothing of it was given to a connection."""
        return self._is_built and not self.has_left

    def withhold(self, response: aiohttp.ClientResponse) -> None:
        """Do not leave any more: a response came before the request was written."""
        self.is_withheld = True
        if response.connection is not None:
            self.protocol = response.connection.protocol

    def read(self, response: aiohttp.ClientResponse) -> None:
        """Begin to read the response's body."""
        if self._splitter is not None:
            self._splitter.read(response)

    def end(self, response: aiohttp.ClientResponse | None) -> None:
        """Release the connection, or abort it if it cannot be used again."""
        with suppress(Exception):  # no error here may hide the response
            if self._splitter is not None:
                self._splitter.leave()
        with suppress(Exception):
            if response is not None:
                response.close()

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it to a connection on which nothing else is under way."""
        out = cast("StreamWriter", writer)
        transport = cast("asyncio.Transport | None", getattr(out, "transport", None))
        self.protocol = out.protocol
        has_unread_data = unread_data_check(transport)
        if has_unread_data():
            await read_pending(has_unread_data)
        splits = is_tested(aiohttp.__version__)
        if transport is not None and splits:
            await Splitter.left(transport)
        # What the server said before it was asked would be taken for the answer.
        is_held = self.is_withheld or (self.request is not None and self.request.is_withdrawn)
        if is_held or getattr(out.protocol, "should_close", False):
            if transport is not None:
                transport.abort()
            raise aiohttp.ClientConnectionResetError("not a clean connection")
        if transport is not None and splits and isinstance(transport.get_protocol(), asyncio.Protocol):
            self._splitter = Splitter(transport, keep=len(self._value) < AT_ONCE)
        # Without `drain`, it raises when the connection is closing, or hands all over.
        await out.write(self._value, drain=False)
        self.has_left = True
        if self.request is not None:
            self.request.is_sent = True
        await out.drain()

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it; the length is its own."""
        del content_length
        await self.write(writer)
