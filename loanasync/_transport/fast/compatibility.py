"""aiohttp's parser of HTTP responses, and a check that it does what `_wire` needs."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import aiohttp
from aiohttp import http

from loanasync._transport import failures as replies

if TYPE_CHECKING:
    import asyncio

    from aiohttp.base_protocol import BaseProtocol


# More than aiohttp's 128 headers of 8 KiB: a status is lost when the parser refuses its head.
MOST_HEADERS = 1000
LARGEST_FIELD = 1 << 16  # bytes


def new_parser(protocol: object, loop: object, limit: int = replies.LARGEST_BODY) -> http.HttpResponseParser:
    """Return a parser that stops `protocol` when more than about `limit` bytes wait to be read.

    It does not decode bodies: a head whose Content-Encoding it cannot decode would be lost.
    """
    return http.HttpResponseParser(
        cast("BaseProtocol", protocol),  # the parser calls two of its methods
        cast("asyncio.AbstractEventLoop", loop),
        limit,
        payload_exception=aiohttp.ClientPayloadError,
        read_until_eof=True,
        auto_decompress=False,
        max_headers=MOST_HEADERS,
        max_line_size=LARGEST_FIELD,
        max_field_size=LARGEST_FIELD,
    )


def has_two_lengths(head: http.RawResponseMessage | aiohttp.ClientResponse) -> bool:
    """Return True for a repeated Content-Length, which aiohttp's parser in Python accepts (RFC 9112 §6.3)."""
    return len(head.headers.getall("Content-Length", ())) > 1


_OK = b"HTTP/1.1 200 OK\r\n"
_WHOLE = (True, None)


class _Received:
    """A response in progress, for the check."""

    def __init__(self, head: bytes, limit: int = replies.LARGEST_BODY) -> None:
        self.pauses = 0
        wire = SimpleNamespace(pause_reading=self._pause, resume_reading=lambda **_: None)
        self.parser = new_parser(wire, None, limit)
        [(self.head, self.content)], self.is_upgraded, _ = self.parser.feed_data(_OK + head + b"\r\n")

    def _pause(self) -> None:
        self.pauses += 1
        self.parser.pause_reading()

    @property
    def state(self) -> tuple[bool, BaseException | None]:
        return self.content.is_eof(), self.content.exception()


def is_parser_usable() -> bool:
    """Return True if the parser behaves as `_wire` expects, for each way in which a body can end.

    Any exception means the same as False.
    """
    return _parses_length() and _parses_chunks() and _parses_to_eof() and _pauses()


def _parses_length() -> bool:
    response = _Received(b"Content-Length: 2\r\n")
    head, content = response.head, response.content
    is_known = (head.code, head.should_close, head.chunked, response.is_upgraded) == (
        200,
        False,
        False,
        False,
    )
    is_open = response.state == (False, None)
    response.parser.feed_data(b"{}")
    is_whole = (response.state, content.total_bytes, content.read_nowait()) == (_WHOLE, 2, b"{}")
    return is_known and is_open and is_whole


def _parses_chunks() -> bool:
    response = _Received(b"Transfer-Encoding: chunked\r\n")
    response.parser.feed_data(b"1\r\n{\r\n")
    is_open = (response.state, replies.rest_of(response.content)) == ((False, None), b"{")
    response.parser.feed_data(b"1\r\n}\r\n0\r\n\r\n")
    is_whole = (response.state, response.content.read_nowait()) == (_WHOLE, b"}")
    return response.head.chunked and is_open and is_whole


def _parses_to_eof() -> bool:
    response = _Received(b"")
    response.parser.feed_data(b"{}")
    is_open = (response.state, replies.rest_of(response.content)) == ((False, None), b"{}")
    response.parser.feed_eof()
    return response.head.should_close and is_open and response.state == _WHOLE


def _pauses() -> bool:
    stopped = _Received(b"Content-Length: 99\r\n", limit=10)
    stopped.parser.feed_data(b" " * 50)
    whole = _Received(b"Content-Length: 99\r\n")
    whole.parser.feed_data(b" " * 50)
    arrived = (stopped.content.total_bytes, len(replies.rest_of(stopped.content)))
    return stopped.pauses > 0 and arrived == (50, 50) and whole.pauses == 0
