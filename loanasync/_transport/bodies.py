"""Bodies of responses: how aiohttp reads them, whether they ended as stated, and how they are decoded."""

import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import aiohttp
from multidict import MultiMapping

from loanasync._protocol.messages import UNDECODABLE, End, Response
from loanasync._transport.aiohttp_internals import MAX_BODY_SIZE, has_next_response, is_replaced

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
# Values of Content-Encoding that name no compression: some servers send the character set, or "none".
_NO_COMPRESSION = re.compile(
    "|identity|none|null|plain|text|binary|[78]bit|(us-)?ascii|(utf|ucs|iso|latin|windows|cp)[-_0-9a-z]*"
)
_NO_BODY = frozenset({204, 304})


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
