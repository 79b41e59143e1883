"""Faults of responses: incomplete bodies, redirects, and statuses that the specification does not name."""

import gzip

from attrs import evolve

from loanasync import CannotCompleteError, ConnectError, SystemFaultError
from support.faults.row import (
    BODY_TIMED_OUT,
    BODY_TOO_LARGE,
    BODY_TRUNCATED,
    CONNECTION_LOST,
    HALF_BODY,
    HEAD,
    PARTIAL,
    READ_TIMEOUT,
    SUCCESS,
    UNREADABLE,
    WHOLE,
    CorrectResponse,
    Expected,
    Row,
    http,
    unexpected,
)
from support.raw_server import Drip, Play

READ, FIN, RST, SILENCE = Play.READ, Play.FIN, Play.RST, Play.SILENCE
SYSTEM_FAULT = http("500 Internal Server Error", b'{"errors": {"system": ["System error"]}}')
LAST_SYSTEM_FAULT = http("500 Internal Server Error", b"{}", "Connection: close", "Content-Length: 2")
HTML = b"<html><body>Bad gateway</body></html>"
MESSAGES = b'{"errors": {"email": ["is taken"]}}'
CUT = evolve(PARTIAL, fault="truncated")
BOMB = gzip.compress(bytes(8 << 20))


BODIES = [
    Row("head-closed", "connection closed after the headers", BODY_TRUNCATED, (READ, HEAD, FIN)),
    Row("head-silence", "no more data after the headers", BODY_TIMED_OUT, (READ, HEAD, SILENCE)),
    Row("half-body-closed", "connection closed after half of the body", CUT, (READ, HALF_BODY, FIN)),
    Row("half-body-reset", "connection reset after half of the body", CUT, (READ, HALF_BODY, RST)),
    Row("half-body-silence", "no more data after half of the body", evolve(PARTIAL, fault="timed out"),
        (READ, HALF_BODY, SILENCE)),
    Row("half-refusal", "connection closed after half of the body of a refusal", CUT, (READ, HALF_BODY, FIN),
        refused=True),
    Row("body-drip", "the body arrives byte by byte, has no decision, and never ends", BODY_TIMED_OUT,
        (READ, lambda good: good.with_body(b"", "Content-Length: 5000"), Drip(b" "))),
    Row("response-reset", "connection reset after the whole response", SUCCESS, (READ, WHOLE, RST),
        closes_connection=True),
    Row("no-length", "no Content-Length; connection closed after the whole response", SUCCESS,
        (READ, lambda good: good.with_body(good.body, "Connection: close"), FIN)),
    Row("no-length-half", "no Content-Length; connection closed after half of the body", UNREADABLE,
        (READ, lambda good: good.with_body(good.body[:10], "Connection: close"), FIN)),
    Row("oversized", "a body of more than 1 MiB", evolve(PARTIAL, fault="too large"),
        (READ, lambda good: good.with_body(good.body + b" " * (1 << 20)))),
    Row("gzip-bomb", "a small body that decompresses to more than 1 MiB", BODY_TOO_LARGE,
        (READ, lambda good: good.with_body(BOMB, "Content-Encoding: gzip"))),
    Row("not-gzip", "`Content-Encoding: gzip`, but the body is plain", evolve(PARTIAL, fault="undecodable"),
        (READ, lambda good: good.with_body(good.body, "Content-Encoding: gzip"))),
    Row("refusal-encoded", "a refusal with a Content-Encoding that cannot be decoded",
        evolve(UNREADABLE, status=422, fault="undecodable"),
        (READ, lambda good: good.with_body(good.body, "Content-Encoding: br")), refused=True),
    Row("bad-chunk", "invalid chunks, in one packet with the headers", BODY_TRUNCATED,
        (READ, lambda good: good.with_body(b"XY\r\n", "Transfer-Encoding: chunked")),
        expected_through_aiohttp=CONNECTION_LOST),
    Row("stray-bytes", "extra bytes after the response, in the same packet", SUCCESS,
        (READ, WHOLE, b"<!-- a proxy -->"), expected_through_aiohttp=CONNECTION_LOST),
    Row("short-length", "a Content-Length that is too small", PARTIAL,
        (READ, lambda good: good.with_body(good.body, f"Content-Length: {len(good.body) - 1}")),
        expected_through_aiohttp=CONNECTION_LOST),
    Row("half-chunk", "connection closed after half of a chunk", BODY_TRUNCATED,
        (READ, lambda good: good.with_body(b"ff\r\n{", "Transfer-Encoding: chunked"), FIN)),
    # A completion with an empty response is saved (spec §4.2).
    Row("empty", "an empty body", UNREADABLE, (READ, lambda good: good.with_body(b"")),
        operations=("approve",)),
    Row("html", "a body that is not JSON", UNREADABLE, (READ, lambda good: good.with_body(HTML))),
    Row("refusal-empty", "a 422 with an empty body", PARTIAL, (READ, lambda good: good.with_body(b"")),
        refused=True),
    Row("refusal-html", "a 422 with a body that is not JSON", evolve(UNREADABLE, status=422),
        (READ, lambda good: good.with_body(HTML)), refused=True),
    Row("refusal-validation", "a 422 with validation errors", evolve(UNREADABLE, status=422),
        (READ, lambda good: good.with_body(MESSAGES)), refused=True),
    Row("refusal-201", "a refusal with status 201", SUCCESS,
        (READ, lambda good: http("201 Created", good.body)), refused=True),
]  # fmt: skip


def redirect(status: str) -> Row:
    def response(good: CorrectResponse) -> bytes:
        return http(status, b"", f"Location: {good.redirect_to}", "Content-Length: 0")

    return Row(
        f"redirect-{status[:3]}", f"{status} to another host", unexpected(int(status[:3])), (READ, response)
    )


REDIRECTS = [
    redirect(status)
    for status in (
        *("301 Moved Permanently", "302 Found", "303 See Other"),
        *("307 Temporary Redirect", "308 Permanent Redirect"),
    )
]


def status(text: str, fault: str, *parts: bytes) -> Row:
    sent = parts or (http(text, HTML, "Content-Type: text/html"),)
    return Row(f"status-{text[:3]}", fault, unexpected(int(text[:3])), (READ, *sent))


STATUSES = [
    Row("early-hints", "100 and 103, then the response", SUCCESS,
        (READ, http("100 Continue"), http("103 Early Hints"), WHOLE)),
    status("101 Switching Protocols", "101 Switching Protocols",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nxyz"),
    status("204 No Content", "204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    Row("status-204-body", "204 with a body", unexpected(204),
        (READ, lambda good: good.with_body(good.body).replace(good.status.encode(), b"204 No Content")),
        expected_through_aiohttp=CONNECTION_LOST),
    Row("status-409", "409", Expected(CannotCompleteError, status=409),
        (READ, http("409 Conflict", b'{"error": "cannot be completed"}')), operations=("approve",)),
    status("429 Too Many Requests", "429"),
    status("502 Bad Gateway", "502 with HTML from a proxy"),
    status("503 Service Unavailable", "503"),
    status("504 Gateway Timeout", "504"),
]  # fmt: skip
SYSTEM_FAULTS = [
    Row("fault-always", "500 to each attempt", Expected(SystemFaultError, status=500),
        (READ, SYSTEM_FAULT) * 3),
    Row("fault-once", "500, then the response", SUCCESS, (READ, SYSTEM_FAULT, READ, WHOLE)),
    Row("fault-cut", "500, connection closed after half of its body", evolve(BODY_TRUNCATED, status=500),
        (READ, SYSTEM_FAULT[:-9], FIN)),
    Row("fault-lost", "500, then the connection breaks", CONNECTION_LOST, (READ, SYSTEM_FAULT, READ, RST)),
    Row("fault-silence", "500, then no response", READ_TIMEOUT, (READ, SYSTEM_FAULT, READ, SILENCE)),
    Row("fault-refused", "500, then connection refused", Expected(ConnectError, "unknown"),
        (READ, Play.NOT_LISTENING, LAST_SYSTEM_FAULT, FIN), attempts=2),
]  # fmt: skip
