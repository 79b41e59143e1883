"""Faults of responses: incomplete bodies, redirects, and statuses that the specification does not name."""

import gzip

from attrs import evolve

from loanasync import CannotCompleteError, ConnectError, SystemFaultError
from support.faults.row import (
    BODY_TIMED_OUT,
    BODY_TOO_LARGE,
    BODY_TRUNCATED,
    CONNECTION_LOST,
    PARTIAL,
    READ_TIMEOUT,
    SUCCESS,
    UNREADABLE,
    CorrectResponse,
    Expected,
    Row,
    http,
    unexpected,
)
from support.raw_server import Drip, Exchange, Play

__all__ = ["BODIES", "REDIRECTS", "STATUSES", "SYSTEM_FAULTS"]

READ, FIN, RST, SILENCE = Play.READ, Play.FIN, Play.RST, Play.SILENCE
SYSTEM_FAULT = http("500 Internal Server Error", b'{"errors": {"system": ["System error"]}}')
LAST_SYSTEM_FAULT = http("500 Internal Server Error", b"{}", "Connection: close", "Content-Length: 2")
HTML = b"<html><body>Bad gateway</body></html>"
MESSAGES = b'{"errors": {"email": ["is taken"]}}'
BOMB = gzip.compress(bytes(8 << 20))


BODIES = [
    Row(
        name="head-closed",
        fault="connection closed after the headers",
        server=lambda good: ((READ, good.head, FIN),),
        expected=BODY_TRUNCATED,
    ),
    Row(
        name="head-silence",
        fault="no more data after the headers",
        server=lambda good: ((READ, good.head, SILENCE),),
        expected=BODY_TIMED_OUT,
        times_out=True,
    ),
    Row(
        name="half-body-closed",
        fault="connection closed after half of the body",
        server=lambda good: ((READ, good.half_body, FIN),),
        expected=evolve(PARTIAL, fault="truncated"),
    ),
    Row(
        name="half-body-reset",
        fault="connection reset after half of the body",
        server=lambda good: ((READ, good.half_body, RST),),
        expected=evolve(PARTIAL, fault="truncated"),
    ),
    Row(
        name="half-body-silence",
        fault="no more data after half of the body",
        server=lambda good: ((READ, good.half_body, SILENCE),),
        expected=evolve(PARTIAL, fault="timed out"),
        times_out=True,
    ),
    Row(
        name="half-refusal",
        fault="connection closed after half of the body of a refusal",
        server=lambda good: ((READ, good.half_body, FIN),),
        refused=True,
        operations=("approve",),
        expected=evolve(PARTIAL, fault="truncated"),
    ),
    Row(
        name="body-drip",
        fault="the body arrives byte by byte and never ends",
        server=lambda good: ((READ, good.with_body(b"", "Content-Length: 5000"), Drip(b" ")),),
        expected=BODY_TIMED_OUT,
        times_out=True,
    ),
    Row(
        name="response-reset",
        fault="connection reset after the whole response",
        server=lambda good: ((READ, good.whole, RST),),
        closes_connection=True,
        expected=SUCCESS,
    ),
    Row(
        name="no-length",
        fault="no Content-Length; connection closed after the whole response",
        server=lambda good: ((READ, good.with_body(good.body, "Connection: close"), FIN),),
        expected=SUCCESS,
    ),
    Row(
        name="no-length-half",
        fault="no Content-Length; connection closed after half of the body",
        server=lambda good: ((READ, good.with_body(good.body[:10], "Connection: close"), FIN),),
        expected=UNREADABLE,
    ),
    Row(
        name="oversized",
        fault="a body of more than 1 MiB",
        server=lambda good: ((READ, good.with_body(good.body + b" " * (1 << 20))),),
        expected=evolve(PARTIAL, fault="too large"),
    ),
    Row(
        name="gzip-bomb",
        fault="a small body that decompresses to more than 1 MiB",
        server=lambda good: (
            (READ, good.with_body(BOMB, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}")),
        ),
        expected=BODY_TOO_LARGE,
    ),
    Row(
        name="not-gzip",
        fault="`Content-Encoding: gzip`, but the body is plain",
        server=lambda good: (
            (READ, good.with_body(good.body, "Content-Encoding: gzip", f"Content-Length: {len(good.body)}")),
        ),
        expected=evolve(PARTIAL, fault="undecodable"),
    ),
    Row(
        name="refusal-encoded",
        fault="a refusal with a Content-Encoding that cannot be decoded",
        server=lambda good: (
            (READ, good.with_body(good.body, "Content-Encoding: br", f"Content-Length: {len(good.body)}")),
        ),
        refused=True,
        operations=("approve",),
        expected=evolve(UNREADABLE, status=422, fault="undecodable"),
    ),
    Row(
        name="bad-chunk",
        fault="invalid chunks, in one packet with the headers",
        server=lambda good: ((READ, good.with_body(b"XY\r\n", "Transfer-Encoding: chunked")),),
        expected=BODY_TRUNCATED,
        expected_through_aiohttp=CONNECTION_LOST,
    ),
    Row(
        name="stray-bytes",
        fault="extra bytes after the response, in the same packet",
        server=lambda good: ((READ, good.whole + b"<!-- a proxy -->"),),
        expected=SUCCESS,
        expected_through_aiohttp=CONNECTION_LOST,
    ),
    Row(
        name="short-length",
        fault="a Content-Length that is too small",
        server=lambda good: ((READ, good.with_body(good.body, f"Content-Length: {len(good.body) - 1}")),),
        expected=PARTIAL,
        expected_through_aiohttp=CONNECTION_LOST,
    ),
    Row(
        name="half-chunk",
        fault="connection closed after half of a chunk",
        server=lambda good: ((READ, good.with_body(b"ff\r\n{", "Transfer-Encoding: chunked"), FIN),),
        expected=BODY_TRUNCATED,
    ),
    Row(
        name="empty",
        fault="an empty body",
        server=lambda good: ((READ, good.with_body(b"")),),
        expected=UNREADABLE,
        operations=("approve",),  # a completion with an empty response is saved (spec §4.2)
    ),
    Row(
        name="html",
        fault="a body that is not JSON",
        server=lambda good: ((READ, good.with_body(HTML)),),
        expected=UNREADABLE,
    ),
    Row(
        name="refusal-empty",
        fault="a 422 with an empty body",
        server=lambda good: ((READ, good.with_body(b"")),),
        refused=True,
        operations=("approve",),
        expected=PARTIAL,
    ),
    Row(
        name="refusal-html",
        fault="a 422 with a body that is not JSON",
        server=lambda good: ((READ, good.with_body(HTML)),),
        refused=True,
        operations=("approve",),
        expected=evolve(UNREADABLE, status=422),
    ),
    Row(
        name="refusal-validation",
        fault="a 422 with validation errors",
        server=lambda good: ((READ, good.with_body(MESSAGES)),),
        refused=True,
        operations=("approve",),
        expected=evolve(UNREADABLE, status=422),
    ),
    Row(
        name="refusal-201",
        fault="a refusal with status 201",
        server=lambda good: ((READ, http("201 Created", good.body)),),
        refused=True,
        operations=("approve",),
        expected=SUCCESS,
    ),
]


def redirect(status: str) -> Row:
    def server(good: CorrectResponse) -> tuple[Exchange, ...]:
        return ((READ, http(status, b"", f"Location: {good.redirect_to}", "Content-Length: 0")),)

    return Row(
        name=f"redirect-{status[:3]}",
        fault=f"{status} to another host",
        server=server,
        expected=unexpected(int(status[:3])),
    )


REDIRECTS = [
    *map(
        redirect,
        (
            "301 Moved Permanently",
            "302 Found",
            "303 See Other",
            "307 Temporary Redirect",
            "308 Permanent Redirect",
        ),
    )
]


def status(text: str, fault: str, *parts: bytes) -> Row:
    sent = parts or (http(text, HTML, "Content-Type: text/html"),)
    return Row(
        name=f"status-{text[:3]}",
        fault=fault,
        server=lambda _: ((READ, *sent),),
        expected=unexpected(int(text[:3])),
    )


STATUSES = [
    Row(
        name="early-hints",
        fault="100 and 103, then the response",
        server=lambda good: ((READ, http("100 Continue") + http("103 Early Hints") + good.whole),),
        expected=SUCCESS,
    ),
    status(
        "101 Switching Protocols",
        "101 Switching Protocols",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nxyz",
    ),
    status("204 No Content", "204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    Row(
        name="status-204-body",
        fault="204 with a body",
        server=lambda good: (
            (READ, good.with_body(good.body).replace(good.status.encode(), b"204 No Content")),
        ),
        expected=unexpected(204),
        expected_through_aiohttp=CONNECTION_LOST,
    ),
    Row(
        name="status-409",
        fault="409",
        server=lambda _: ((READ, http("409 Conflict", b'{"error": "cannot be completed"}')),),
        operations=("approve",),
        expected=Expected(CannotCompleteError, status=409),
    ),
    status("429 Too Many Requests", "429"),
    status("502 Bad Gateway", "502 with HTML from a proxy"),
    status("503 Service Unavailable", "503"),
    status("504 Gateway Timeout", "504"),
]
SYSTEM_FAULTS = [
    Row(
        name="fault-always",
        fault="500 to each attempt",
        server=lambda _: ((READ, SYSTEM_FAULT),) * 3,
        expected=Expected(SystemFaultError, status=500),
        requests_read=3,
    ),
    Row(
        name="fault-once",
        fault="500, then the response",
        server=lambda good: ((READ, SYSTEM_FAULT), (READ, good.whole)),
        expected=SUCCESS,
        requests_read=2,
    ),
    Row(
        name="fault-cut",
        fault="500, connection closed after half of its body, then the response",
        server=lambda good: ((READ, SYSTEM_FAULT[:-9], FIN), (READ, good.whole)),
        expected=SUCCESS,
        requests_read=2,
    ),
    Row(
        name="fault-lost",
        fault="500, then the connection breaks",
        server=lambda _: ((READ, SYSTEM_FAULT), (READ, RST)),
        expected=CONNECTION_LOST,
        requests_read=2,
    ),
    Row(
        name="fault-silence",
        fault="500, then no response",
        server=lambda _: ((READ, SYSTEM_FAULT), (READ, SILENCE)),
        expected=READ_TIMEOUT,
        times_out=True,
        requests_read=2,
    ),
    Row(
        name="fault-refused",
        fault="500, then connection refused",
        server=lambda _: ((READ, Play.NOT_LISTENING, LAST_SYSTEM_FAULT, FIN),),
        expected=Expected(ConnectError, "unknown"),
        attempts=2,
    ),
]
