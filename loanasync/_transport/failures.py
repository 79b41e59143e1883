"""Results of aiohttp as messages of the pipeline: a response, a part of it, or a failure."""

import asyncio
import zlib
from collections.abc import Mapping
from traceback import walk_tb

import aiohttp
from aiohttp.http import HttpProcessingError

from loanasync._protocol.messages import UNDECODABLE, NoResponse, Response
from loanasync._transport import tls as certificates
from loanasync.errors import (
    ConnectError,
    ConnectionLostError,
    PoolTimeoutError,
    ReadTimeoutError,
    TransportError,
)

LARGEST_BODY = 1 << 20  # bytes, decoded: a decision has about a thousand
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

# What these name comes before the request, also where a shop's tests raise them in place of aiohttp.
_NO_CONNECTION = (
    aiohttp.ClientConnectorError,  # name, refusal, TLS, certificate, proxy
    aiohttp.ConnectionTimeoutError,  # also the wait for a connection of the session's pool
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
)


async def read(
    status: int, headers: Mapping[str, str], content: aiohttp.StreamReader, body: bytearray
) -> Response:
    """Read a response's body into `body`; one that is too large is cut."""
    while not content.at_eof():
        body += await content.readany()
        if len(body) > LARGEST_BODY:
            return reply(status, headers, bytes(body), "too large")
    return reply(status, headers, bytes(body))


def rest_of(content: aiohttp.StreamReader | None) -> bytes:
    """Return what a reader holds of a body, also if the connection has failed since it arrived."""
    # Public methods raise the failure instead. If aiohttp renames this one, only these last bytes are lost.
    take = getattr(content, "_read_nowait", None)
    return take(-1) if callable(take) else b""


def reply(status: int, headers: Mapping[str, str], body: bytes, fault: str | None = None) -> Response:
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


def part_of_a_reply(status: int, headers: Mapping[str, str], error: BaseException, body: bytes) -> Response:
    """Return a response whose body is incomplete: its status and the received part may have the decision."""
    fault = "timed out" if isinstance(error, TimeoutError) else "truncated"
    return reply(status, headers, body, fault)


def was_cancelled() -> bool:
    """Whether somebody cancelled this very task: aiohttp cancels what waits in a pool that is closed."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def no_answer(error: BaseException, *, never_left: bool) -> NoResponse:
    """Why none came, and whether the request may have arrived."""
    no_connection = isinstance(error, _NO_CONNECTION)
    kind: type[TransportError]
    if isinstance(error, aiohttp.ConnectionTimeoutError) and _waited_for_pool(error):
        kind = PoolTimeoutError
    elif isinstance(error, TimeoutError) and not no_connection:
        kind = ReadTimeoutError
    else:
        kind = ConnectError if no_connection or never_left else ConnectionLostError
    return NoResponse(
        error=kind,
        cause_type=_cause_type(error),
        is_sent=not (no_connection or never_left),
    )


def _cause_type(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "SessionClosed"
    if isinstance(error, HttpProcessingError):
        return aiohttp.ClientResponseError.__name__  # as a session calls it
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{name}: {certificates.flaw(error.certificate_error)}"
    number = getattr(error, "errno", None)
    return f"{name} errno {number}" if isinstance(number, int) else name


def drop_frames(error: BaseException | None) -> None:
    """Forget where an error came from: aiohttp keeps some in what those very frames hold, the request too."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


# aiohttp has one error for two waits, for a connection and for a free slot of a pool that is full. Which one
# it was stands in the stack that the time-out cut off. Should aiohttp rename the method, all are connections.
_POOL = getattr(getattr(aiohttp.BaseConnector, "_wait_for_available_connection", None), "__code__", None)


def _waited_for_pool(error: BaseException | None) -> bool:
    while error is not None:
        if any(frame.f_code is _POOL for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False
