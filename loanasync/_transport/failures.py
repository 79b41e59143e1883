"""Conversion of aiohttp's responses and exceptions to `Response` and `NoResponse`."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import aiohttp

from loanasync._lifecycle import Waits
from loanasync._protocol.messages import UNDECODABLE, NoResponse, Response
from loanasync._transport import tls
from loanasync._transport.aiohttp_internals import waited_for_pool
from loanasync.errors import (
    ConnectError,
    ConnectionLostError,
    PoolTimeoutError,
    ReadTimeoutError,
    TransportError,
)

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy


LARGEST_BODY = 1 << 20  # bytes, decoded: a decision has about a thousand
# More than aiohttp's 128 headers of 8 KiB: a status is lost when the parser refuses its head.
MOST_HEADERS = 1000
LARGEST_FIELD = 1 << 16  # bytes
IO_ERRORS = (aiohttp.ClientError, OSError)  # a TimeoutError is an OSError
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

# What these name comes before the request, also where a shop's tests raise them in place of aiohttp.
_NO_CONNECTION = (
    aiohttp.ClientConnectorError,  # name, refusal, TLS, certificate, proxy
    aiohttp.ConnectionTimeoutError,  # also the wait for a connection of the session's pool
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
)


class MalformedResponseError(Exception):
    """The received bytes are no HTTP response."""


async def read(
    status: int, headers: Mapping[str, str], content: aiohttp.StreamReader, body: bytearray
) -> Response:
    """Read a response's body into `body`; one that is too large is cut."""
    while not content.at_eof():
        body += await content.readany()
        if len(body) > LARGEST_BODY:
            return decoded_response(status, headers, bytes(body), "too large")
    return decoded_response(status, headers, bytes(body))


def has_two_lengths(headers: "CIMultiDictProxy[str]") -> bool:
    """Return True for a repeated Content-Length, which aiohttp's parser in Python accepts (RFC 9112 §6.3)."""
    return len(headers.getall("Content-Length", ())) > 1


def decoded_response(
    status: int, headers: Mapping[str, str], body: bytes, fault: str | None = None
) -> Response:
    """Return a response whose body is decoded and cut to `LARGEST_BODY`.

    A body that cannot be decoded stays as it is.
    """
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if body and encoding not in {"", "identity"}:
        decoded, flaw = _decoded(encoding, body)
        body = body if decoded is None else decoded
        fault = flaw if flaw == UNDECODABLE else fault or flaw
    if len(body) > LARGEST_BODY:
        body, fault = body[:LARGEST_BODY], "too large"
    return Response(status=status, headers=headers, body=body, fault=fault)


def _decoded(encoding: str, body: bytes) -> tuple[bytes | None, str | None]:
    """Return a decoded body, or as much of it as there is, and what is wrong with it."""
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        return None, UNDECODABLE
    # Some servers send "deflate" without zlib's header, whose low half-byte is 8.
    is_raw = encoding == "deflate" and body[0] & 0x0F != zlib.DEFLATED
    inflating = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else _GZIP_OR_ZLIB)
    try:
        decoded = inflating.decompress(body, LARGEST_BODY + 1)
    except zlib.error:
        return None, UNDECODABLE
    is_whole = inflating.eof or len(decoded) > LARGEST_BODY
    if is_raw and not is_whole:  # almost any bytes can begin a raw body
        return None, UNDECODABLE
    return decoded, None if is_whole else "truncated"


def partial_response(status: int, headers: Mapping[str, str], error: BaseException, body: bytes) -> Response:
    """Return a response whose body is incomplete: its status and the received part may have the decision."""
    fault = "timed out" if isinstance(error, TimeoutError) else "truncated"
    return decoded_response(status, headers, body, fault)


def was_cancelled() -> bool:
    """Whether somebody cancelled this very task: aiohttp cancels what waits in a pool that is closed."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def cause_of(error: BaseException, waits: Waits) -> BaseException:
    """Return the cause of an I/O error; raise `error` itself if it is the cancellation of the current task.

    A transport that is closed ends its `waits` with TimeoutError: the cause is the closing.
    """
    if isinstance(error, asyncio.CancelledError) and was_cancelled():
        drop_frames(error)  # an error report with local variables would show token and answer
        raise error
    return asyncio.CancelledError() if waits.is_closed else error


def no_response(error: BaseException, *, never_left: bool) -> NoResponse:
    """Return the reason for a missing response, and whether the request may have arrived."""
    no_connection = isinstance(error, _NO_CONNECTION)
    never_left = never_left or no_connection
    kind: type[TransportError] = ConnectError if never_left else ConnectionLostError
    if isinstance(error, aiohttp.ConnectionTimeoutError) and waited_for_pool(error):
        kind = PoolTimeoutError
    elif isinstance(error, TimeoutError) and not no_connection:
        kind = ReadTimeoutError
    return NoResponse(error=kind, cause_type=_cause_type(error), is_sent=not never_left)


def _cause_type(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "SessionClosed"
    if isinstance(error, MalformedResponseError):
        return aiohttp.ClientResponseError.__name__  # as a session calls it
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{name}: {tls.flaw(error.certificate_error)}"
    number = getattr(error, "errno", None)
    return f"{name} errno {number}" if isinstance(number, int) else name


def drop_frames(error: BaseException | None) -> None:
    """Forget where an error came from: aiohttp keeps some in what those very frames hold, the request too."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
