"""Conversion of aiohttp responses and exceptions to `Response` and `NoResponse`."""

import asyncio
import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import aiohttp
from multidict import MultiMapping

from loanasync._protocol.messages import UNDECODABLE, End, NoResponse, Response
from loanasync._transport import tls
from loanasync._transport.aiohttp_internals import (
    MAX_BODY_SIZE,
    has_next_response,
    is_replaced,
    waited_for_pool,
)
from loanasync._transport.waits import Waits, was_cancelled
from loanasync.errors import (
    PROGRAM_FAILED,
    ConnectError,
    ConnectionLostError,
    PoolTimeoutError,
    ReadTimeoutError,
    TransportError,
)

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy


# Subclasses of OSError include TimeoutError. Requests that wait for a closed pool raise CancelledError.
_IO_ERRORS = (aiohttp.ClientError, OSError, asyncio.CancelledError)
SESSION_CLOSED = NoResponse(error=ConnectError, cause_type="SessionClosed", is_sent=False)
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
# Values of Content-Encoding that name no compression: some servers send the character set, or "none".
_NO_COMPRESSION = re.compile(
    "|identity|none|null|plain|text|binary|[78]bit|(us-)?ascii|(utf|ucs|iso|latin|windows|cp)[-_0-9a-z]*"
)

_NO_BODY = frozenset({204, 304})

# aiohttp raises these errors before it sends the request. They mean the same when a user's test raises them
# in a mocked session.
_NO_CONNECTION = (
    aiohttp.ClientConnectorError,  # DNS, connection refused, TLS, certificate, proxy
    aiohttp.ConnectionTimeoutError,  # also while waiting for a free slot of the session's pool
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
)


class MalformedResponseError(Exception):
    """The received bytes are not a valid HTTP response."""


class ProgramError(Exception):
    """An exception that is no error of the network, by the name of its class."""


async def read(response: aiohttp.ClientResponse, body: bytearray) -> Response:
    """Read the body of a response, and return the response; a body that is too large is cut.

    The bytes are also appended to `body`, so that the caller has the received part if reading fails.
    """
    status, headers, content = response.status, response.headers, response.content
    while not content.at_eof():
        body += await content.readany()
        if len(body) > MAX_BODY_SIZE:
            return decoded_response(status, headers, bytes(body), "too large", end="cut")
    # A mock sends no headers.
    is_stated = states_end(headers) or status in _NO_BODY or is_replaced()
    # aiohttp does not tell how a connection ended.
    decoded = decoded_response(status, headers, bytes(body), end="stated" if is_stated else "closed")
    decoded.is_followed = has_next_response(response)
    return decoded


def states_end(headers: Mapping[str, str]) -> bool:
    """Return True if a response states its end, by a length or by chunks as the last coding."""
    last_coding = headers.get("Transfer-Encoding", "").rpartition(",")[2].strip().lower()
    return "Content-Length" in headers or last_coding == "chunked"


def has_two_lengths(headers: "CIMultiDictProxy[str]") -> bool:
    """Return True for a repeated Content-Length (RFC 9112 §6.3), which aiohttp's Python parser accepts."""
    return len(headers.getall("Content-Length", ())) > 1


def decoded_response(
    status: int, headers: Mapping[str, str], body: bytes, fault: str | None = None, *, end: End = "stated"
) -> Response:
    """Return a response; decode its body as `decoded` does."""
    body, fault = decoded(headers, body, fault)
    return Response(status=status, headers=headers, body=body, fault=fault, end=end)


def decoded(headers: Mapping[str, str], body: bytes, fault: str | None) -> tuple[bytes, str | None]:
    """Return a decoded body, cut to `MAX_BODY_SIZE`, and `Response.fault`.

    If the body cannot be decoded to its end, the fault is ``undecodable``.
    """
    if body and "Content-Encoding" in headers:
        labels = headers.getall if isinstance(headers, MultiMapping) else lambda name: [headers[name]]
        names = (name.strip().lower() for name in ",".join(labels("Content-Encoding")).split(","))
        compressions = [name for name in names if not _NO_COMPRESSION.fullmatch(name)]
        if compressions:
            body, decoding_fault = _decode(compressions, body)
            fault = decoding_fault if decoding_fault == UNDECODABLE else fault or decoding_fault
    return (body[:MAX_BODY_SIZE], "too large") if len(body) > MAX_BODY_SIZE else (body, fault)


def _decode(compressions: list[str], body: bytes) -> tuple[bytes, str | None]:
    """Return the decoded body and the fault (or None). If nothing can be decoded, return the body."""
    [compression, *others] = compressions
    if others or compression not in {"gzip", "x-gzip", "deflate"}:
        return body, UNDECODABLE
    # Some servers send "deflate" without the zlib header. The lower four bits of that header are 8.
    is_raw = compression == "deflate" and body[0] & 0x0F != zlib.DEFLATED
    decoded, rest = b"", body
    while rest and len(decoded) <= MAX_BODY_SIZE:  # gzip allows several members
        decoder = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else _GZIP_OR_ZLIB)
        try:
            decoded += decoder.decompress(rest, MAX_BODY_SIZE + 1 - len(decoded))
        except zlib.error:
            return decoded or body, UNDECODABLE
        if not decoder.eof:
            break
        rest = decoder.unused_data
        if rest and compression == "deflate":
            return decoded, UNDECODABLE
    if (
        rest and is_raw and len(decoded) <= MAX_BODY_SIZE
    ):  # almost any bytes decode as the beginning of a raw body
        return body, UNDECODABLE
    return decoded, "truncated" if rest else None


def partial_response(status: int, headers: Mapping[str, str], error: BaseException, body: bytes) -> Response:
    """Return a response with an incomplete body: status and received part may show the decision."""
    fault = "timed out" if isinstance(error, TimeoutError) else "truncated"
    return decoded_response(status, headers, body, fault, end="cut")


def cause_of(error: BaseException, waits: Waits) -> BaseException:
    """Return the cause of the end of an exchange.

    Raise `error` if it is the cancellation of the current task, or the AssertionError of a test with a mock.

    When a transport is closed, its `waits` end with TimeoutError. Then the cause is a CancelledError, which
    `no_response` reports as `SessionClosed`.
    """
    if isinstance(error, asyncio.CancelledError) and was_cancelled():
        drop_frames(error)  # an error report with local variables would show the token and the response
        raise error
    if isinstance(error, AssertionError) and is_replaced():
        raise error
    if waits.is_closed:
        return asyncio.CancelledError()
    if not _is_of_program(error):
        return error
    return ProgramError("TimeoutError" if isinstance(error, TimeoutError) else type(error).__name__)


def _is_of_program(error: BaseException) -> bool:
    """Return True for an exception that is no error of the network, such as that of a signal handler.

    It may be a TimeoutError. asyncio raises one while it handles the CancelledError that ended the wait.
    """
    if is_replaced():  # a mock may raise any exception
        return False
    if not isinstance(error, _IO_ERRORS):
        return True
    found = error if type(error) is TimeoutError else error.__cause__
    if type(found) is not TimeoutError or found.errno is not None:  # with a number, it is one of the system
        return False
    return not isinstance(found.__cause__ or found.__context__, asyncio.CancelledError)


def no_response(error: BaseException, *, is_unsent: bool) -> NoResponse:
    """Return the `NoResponse` for an error; `is_unsent` says that nothing of the request was written."""
    no_connection = isinstance(error, _NO_CONNECTION)
    is_unsent = is_unsent or no_connection
    kind: type[TransportError] = ConnectError if is_unsent else ConnectionLostError
    if isinstance(error, aiohttp.ConnectionTimeoutError) and waited_for_pool(error):
        kind = PoolTimeoutError
    elif isinstance(error, TimeoutError) and not is_unsent:
        kind = ReadTimeoutError
    return NoResponse(error=kind, cause_type=_cause_type(error), is_sent=not is_unsent)


def _cause_type(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "SessionClosed"
    if isinstance(error, MalformedResponseError):
        return aiohttp.ClientResponseError.__name__  # the error of `ClientSession.request`
    if isinstance(error, ProgramError):
        return f"{PROGRAM_FAILED}{error}"
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{name}: {tls.certificate_problem(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{name} status {error.status}"
    number = getattr(error, "errno", None)
    return f"{name} errno {number}" if isinstance(number, int) else name


def drop_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and its causes.

    Their frames hold the request. aiohttp also stores some errors in these frames, which makes a cycle.
    A test prints the frames of its AssertionError.
    """
    if isinstance(error, AssertionError) and is_replaced():
        return
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
