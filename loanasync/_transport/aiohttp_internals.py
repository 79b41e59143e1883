"""An asyncio protocol that passes the head of a response to aiohttp's protocol separately from its body.

aiohttp reports nothing of a packet in which anything is wrong. If the head comes with the beginning of a bad
body, or with bytes that do not belong to the response, it loses the status, and with it a decision.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import aiohttp

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler


# Bytes, as much as asyncio holds back for nobody: of more, some may still wait here when the answer has come.
AT_ONCE = 1 << 16
HEAD_ENDS = b"\r\n\r\n"
CHUNKS_END = b"0\r\n\r\n"
_STATUS_ENDS = len("HTTP/1.1 200")
_TURNS = 10  # of the loop, at the most
_SWITCHING = 101  # the last response in HTTP, though its number is that of an interim one


def is_interim(status: int) -> bool:
    """Return True for a response that another one follows (RFC 9110 §15.2)."""
    return 100 <= status < 200 and status != _SWITCHING  # noqa: PLR2004


class Splitter(asyncio.Protocol):
    """Stands between a transport and its protocol for one exchange, which begins when it is created."""

    def __init__(self, transport: asyncio.Transport, *, keep: bool) -> None:
        self._transport = transport
        self._keep = keep
        self._handler = cast("ResponseHandler", transport.get_protocol())
        self._failure = getattr(self._handler, "exception", lambda: None)
        self._has_failed = False
        self._has_left = False
        self._in_head = True
        self._status_line = b""  # the first bytes of a head
        self._head_tail = b""  # the last bytes of a head that is not complete
        self._content: aiohttp.StreamReader | None = None
        self._is_chunked = False
        self._behind_head = 0  # bytes
        self._ends_chunks = False
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
        with suppress(Exception):  # asyncio's TLS has no protocol any more once the connection has ended
            if not self._keep or (self._content is not None and self._has_more_than(self._content)):
                self._transport.abort()
            self._transport.set_protocol(self._handler)

    def _has_more_than(self, content: aiohttp.StreamReader) -> bool:
        return self._behind_head != content.total_bytes and not (self._is_chunked and self._ends_chunks)

    def data_received(self, data: bytes) -> None:
        """Pass data on, up to the end of a head first (asyncio)."""
        while self._in_head:
            known = len(self._head_tail)
            self._status_line += data[: _STATUS_ENDS - len(self._status_line)]
            end = (self._head_tail + data).find(HEAD_ENDS)
            if end < 0:
                self._head_tail = (self._head_tail + data)[1 - len(HEAD_ENDS) :]
                break
            end += len(HEAD_ENDS) - known
            status = self._status_line[-3:]
            self._in_head = status.isdigit() and is_interim(int(status))
            self._status_line = self._head_tail = b""
            self._pass_on(data[:end])
            data = data[end:]
        else:
            self._behind_head += len(data)
            self._ends_chunks = data.endswith(CHUNKS_END)
        if data:
            self._pass_on(data)
        self._fail_reader()

    def _pass_on(self, data: bytes) -> None:
        if not self._has_failed:
            self._handler.data_received(data)
            self._has_failed = self._failure() is not None

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
