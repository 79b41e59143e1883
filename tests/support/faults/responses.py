"""The faults of answers: bodies that are not whole, redirects, and statuses that nobody asked for."""

import gzip

from attrs import evolve

from loanasync import CannotCompleteError, ConnectError, SystemFaultError
from support.faults.row import (
    BETWEEN,
    CUT,
    DETAILS,
    FINAL,
    GOES_WELL,
    IN_PART,
    LATE,
    LOST,
    NOTHING,
    SETTLE,
    SILENT,
    TOO_LARGE,
    UNREADABLE,
    Answer,
    Comes,
    Row,
    http,
    unexpected,
)
from support.raw_server import Drip, Exchange, Play

__all__ = ["BODIES", "FAULTS", "REDIRECTS", "STATUSES"]

READ, FIN, RST, SILENCE = Play.READ, Play.FIN, Play.RST, Play.SILENCE
FAULT = http("500 Internal Server Error", b'{"errors": {"system": ["System error"]}}')
LAST_FAULT = http("500 Internal Server Error", b"{}", "Connection: close", "Content-Length: 2")
HTML = b"<html><body>Bad gateway</body></html>"
MESSAGES = b'{"errors": {"email": ["is taken"]}}'
BOMB = gzip.compress(bytes(8 << 20))


BODIES = [
    Row(
        name="head-closed",
        fault="closed after the head",
        server=lambda a: ((READ, a.head, FIN),),
        comes=CUT,
        advice=SETTLE,
    ),
    Row(
        name="head-silence",
        fault="silence after the head",
        server=lambda a: ((READ, a.head, SILENCE),),
        comes=LATE,
        silent=True,
        advice=SETTLE,
    ),
    Row(
        name="half-body-closed",
        fault="closed after half of the body",
        server=lambda a: ((READ, a.half_body, FIN),),
        comes=evolve(IN_PART, fault="truncated"),
        advice=DETAILS,
    ),
    Row(
        name="half-body-reset",
        fault="reset after half of the body",
        server=lambda a: ((READ, a.half_body, RST),),
        comes=evolve(IN_PART, fault="truncated"),
        advice=DETAILS,
    ),
    Row(
        name="half-body-silence",
        fault="silence after half of the body",
        server=lambda a: ((READ, a.half_body, SILENCE),),
        comes=evolve(IN_PART, fault="timed out"),
        silent=True,
        advice=DETAILS,
    ),
    Row(
        name="half-refusal",
        fault="a refusal, closed after half of its body",
        server=lambda a: ((READ, a.half_body, FIN),),
        refused=True,
        operations=("approve",),
        comes=evolve(IN_PART, fault="truncated"),
        advice=FINAL,
    ),
    Row(
        name="body-drip",
        fault="the body comes byte by byte and never ends",
        server=lambda a: ((READ, a.with_body(b"", "Content-Length: 5000"), Drip(b" ")),),
        comes=LATE,
        silent=True,
        advice=SETTLE,
    ),
    Row(
        name="answer-reset",
        fault="reset after the whole answer",
        server=lambda a: ((READ, a.whole, RST),),
        dead=True,
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    Row(
        name="no-length",
        fault="no length, and closed after the whole answer",
        server=lambda a: ((READ, a.with_body(a.body, "Connection: close"), FIN),),
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    Row(
        name="no-length-half",
        fault="no length, and closed after half of the body",
        server=lambda a: ((READ, a.with_body(a.body[:10], "Connection: close"), FIN),),
        comes=UNREADABLE,
        advice=SETTLE,
    ),
    Row(
        name="oversized",
        fault="a body of more than 1 MiB",
        server=lambda a: ((READ, a.with_body(a.body + b" " * (1 << 20))),),
        comes=evolve(IN_PART, fault="too large"),
        advice=DETAILS,
    ),
    Row(
        name="gzip-bomb",
        fault="a small body that inflates to more than 1 MiB",
        server=lambda a: (
            (READ, a.with_body(BOMB, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}")),
        ),
        comes=TOO_LARGE,
        advice=SETTLE,
    ),
    Row(
        name="no-gzip",
        fault="gzip by its head, and none",
        server=lambda a: (
            (READ, a.with_body(a.body, "Content-Encoding: gzip", f"Content-Length: {len(a.body)}")),
        ),
        comes=evolve(IN_PART, fault="undecodable"),
        advice=DETAILS,
    ),
    Row(
        name="refusal-encoded",
        fault="a refusal with a Content-Encoding that cannot be decoded",
        server=lambda a: (
            (READ, a.with_body(a.body, "Content-Encoding: br", f"Content-Length: {len(a.body)}")),
        ),
        refused=True,
        operations=("approve",),
        comes=evolve(UNREADABLE, status=422, fault="undecodable"),
        advice=SETTLE,
    ),
    Row(
        name="bad-chunk",
        fault="bad chunking, in one packet with the head",
        server=lambda a: ((READ, a.with_body(b"XY\r\n", "Transfer-Encoding: chunked")),),
        comes=CUT,
        advice=SETTLE,
    ),
    Row(
        name="stray-bytes",
        fault="bytes of something else, in one packet with the answer",
        server=lambda a: ((READ, a.whole + b"<!-- a proxy -->"),),
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    Row(
        name="short-length",
        fault="a length in letters, of a body with more bytes",
        server=lambda a: ((READ, a.with_body(a.body, f"Content-Length: {len(a.body) - 1}")),),
        comes=IN_PART,
        advice=DETAILS,
    ),
    Row(
        name="half-chunk",
        fault="half of a chunk, then closed",
        server=lambda a: ((READ, a.with_body(b"ff\r\n{", "Transfer-Encoding: chunked"), FIN),),
        comes=CUT,
        advice=SETTLE,
    ),
    Row(
        name="empty",
        fault="an empty body",
        server=lambda a: ((READ, a.with_body(b"")),),
        comes=UNREADABLE,
        advice=SETTLE,
        operations=("approve",),  # a completion is saved, and may be answered with nothing (spec §4.2)
    ),
    Row(
        name="html",
        fault="a body that is no JSON",
        server=lambda a: ((READ, a.with_body(HTML)),),
        comes=UNREADABLE,
        advice=SETTLE,
    ),
    Row(
        name="refusal-empty",
        fault="a 422 with an empty body",
        server=lambda a: ((READ, a.with_body(b"")),),
        refused=True,
        operations=("approve",),
        comes=IN_PART,
        advice=FINAL,
    ),
    Row(
        name="refusal-html",
        fault="a 422 with a body that is no JSON",
        server=lambda a: ((READ, a.with_body(HTML)),),
        refused=True,
        operations=("approve",),
        comes=evolve(UNREADABLE, status=422),
        advice=SETTLE,
    ),
    Row(
        name="refusal-validation",
        fault="a 422 with messages of fields",
        server=lambda a: ((READ, a.with_body(MESSAGES)),),
        refused=True,
        operations=("approve",),
        comes=evolve(UNREADABLE, status=422),
        advice=SETTLE,
    ),
    Row(
        name="refusal-201",
        fault="a refusal with the status 201",
        server=lambda a: ((READ, http("201 Created", a.body)),),
        refused=True,
        operations=("approve",),
        comes=GOES_WELL,
        advice=FINAL,
    ),
]


def redirect(status: str) -> Row:
    def server(answer: Answer) -> tuple[Exchange, ...]:
        return ((READ, http(status, b"", f"Location: {answer.elsewhere}", "Content-Length: 0")),)

    return Row(
        name=f"redirect-{status[:3]}",
        fault=f"{status} to another host",
        server=server,
        comes=unexpected(int(status[:3])),
        advice=BETWEEN,
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


def status(text: str, fault: str, advice: str, *answer: bytes) -> Row:
    sent = answer or (http(text, HTML, "Content-Type: text/html"),)
    return Row(
        name=f"status-{text[:3]}",
        fault=fault,
        server=lambda _: ((READ, *sent),),
        comes=unexpected(int(text[:3])),
        advice=advice,
    )


STATUSES = [
    Row(
        name="early-hints",
        fault="100 and 103, then the answer",
        server=lambda a: ((READ, http("100 Continue") + http("103 Early Hints") + a.whole),),
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    status(
        "101 Switching Protocols",
        "101 Switching Protocols",
        SETTLE,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nxyz",
    ),
    status("204 No Content", "204", SETTLE, b"HTTP/1.1 204 No Content\r\n\r\n"),
    Row(
        name="status-204-body",
        fault="204 with a body",
        server=lambda a: ((READ, a.with_body(a.body).replace(a.status.encode(), b"204 No Content")),),
        comes=unexpected(204),
        advice=SETTLE,
    ),
    Row(
        name="status-409",
        fault="409, and nothing about an evaluation",
        server=lambda _: ((READ, http("409 Conflict", b'{"error": "cannot be completed"}')),),
        operations=("approve",),
        comes=Comes(CannotCompleteError, status=409),
        advice=SETTLE,
    ),
    status("429 Too Many Requests", "429", BETWEEN),
    status("502 Bad Gateway", "502 with the HTML of a proxy", SETTLE),
    status("503 Service Unavailable", "503", SETTLE),
    status("504 Gateway Timeout", "504", SETTLE),
]
FAULTS = [
    Row(
        name="fault-always",
        fault="500 to each attempt",
        server=lambda _: ((READ, FAULT),) * 3,
        comes=Comes(SystemFaultError, status=500),
        seen=3,
        advice=SETTLE,
    ),
    Row(
        name="fault-once",
        fault="500, then the answer",
        server=lambda a: ((READ, FAULT), (READ, a.whole)),
        comes=GOES_WELL,
        seen=2,
        advice=NOTHING,
    ),
    Row(
        name="fault-cut",
        fault="500, closed after half of its body, then the answer",
        server=lambda a: ((READ, FAULT[:-9], FIN), (READ, a.whole)),
        comes=GOES_WELL,
        seen=2,
        advice=NOTHING,
    ),
    Row(
        name="fault-lost",
        fault="500, then the connection breaks",
        server=lambda _: ((READ, FAULT), (READ, RST)),
        comes=LOST,
        seen=2,
        advice=SETTLE,
    ),
    Row(
        name="fault-silence",
        fault="500, then silence",
        server=lambda _: ((READ, FAULT), (READ, SILENCE)),
        comes=SILENT,
        silent=True,
        seen=2,
        advice=SETTLE,
    ),
    Row(
        name="fault-refused",
        fault="500, then nobody listens",
        server=lambda _: ((READ, Play.NOT_LISTENING, LAST_FAULT, FIN),),
        comes=Comes(ConnectError, "unknown"),
        attempts=2,
        advice=SETTLE,
    ),
]
