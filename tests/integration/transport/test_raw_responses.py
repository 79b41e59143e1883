"""A table of raw responses to an approval: each status in each of many forms, and what it proves."""

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import frozen

from loanasync import Approved, LoanError, RetryPolicy
from support.builders import FISCAL_CODE
from support.canned_server import APPROVAL, approve
from support.direct_path import client_of, is_direct
from support.raw_server import Play, RawServer, running, tls_of

APPROVED, REFUSED, RELEASED, RETRIED, UNKNOWN = "approved", "refused", "not_evaluated", "retried", "unknown"


@frozen
class Answer:
    """A status and a body. `result` is that of the whole response."""

    status: str
    body: bytes
    result: str

    @property
    def is_decision(self) -> bool:
        """Return True if the body states the result, so that it needs no proof."""
        return b"approved" in self.body


def decision(approved: str) -> bytes:
    # In the first half of the body, because some forms have only this half.
    return b'{"approved": %s, "fiscalCode": "%s", "city": "Roma"}' % (approved.encode(), FISCAL_CODE.encode())


PAGE = b"<html><body>A proxy</body></HTML>\n"
ANSWERS = [
    Answer("201 Created", decision("true"), APPROVED),
    Answer("422 Unprocessable", decision("false"), REFUSED),
    Answer("422 Unprocessable", b"", REFUSED),
    Answer("403 Forbidden", b'{"error": "Access denied"}', RELEASED),
    Answer("403 Forbidden", b"", RELEASED),
    Answer("400 Bad Request", b'{"errors": {"email": ["This value should not be blank."]}}', RELEASED),
    Answer("400 Bad Request", b'{"errors": {"domain": ["User not found"]}}', RELEASED),
    Answer("401 Unauthorized", PAGE, RELEASED),
    Answer("404 Not Found", PAGE, RELEASED),
    Answer("413 Too Large", b"too large", RELEASED),
    Answer("429 Too Many Requests", b"{}", RELEASED),
    Answer("307 Temporary Redirect", b"", RELEASED),
    Answer("500 System Error", b'{"errors": {"system": ["System error"]}}', RETRIED),
    Answer("500 System Error", b"", RETRIED),
    Answer("500 System Error", b'{"errors": {"domain": ["User already evaluated for approval"]}}', UNKNOWN),
    Answer("500 System Error", b'{"errors": {"system": ["Error after the evaluation"]}}', UNKNOWN),
]
FIN, RST, CUT = Play.FIN, Play.RST, Play.CUT
READABLE, ONLY_APPROVALS, HIDDEN = "readable", "only approvals", "hidden"
GZIP = "Content-Encoding: gzip"
SECOND = b'{"approved": true}'


@frozen
class Form:
    """A form in which an answer arrives."""

    name: str
    head: tuple[str, ...] = ()
    body: Callable[[bytes], bytes] = bytes
    more: bytes = b""  # after the response
    has_length: bool = True
    end: Play | None = None
    version: str = "1.1"
    line_break: bytes = b"\r\n"  # of the head
    proves: str = "all"  # the bodies that are proof: also "objects" (JSON and HTML), "empty" and "none"
    proves_through_aiohttp: str = ""  # if it is another answer
    shows: str = READABLE  # the decisions that can be read

    def raw(self, answer: Answer) -> bytes:
        body = self.body(answer.body)
        lines = [f"HTTP/{self.version} {answer.status}", *self.head]
        if self.has_length:
            lines.append(f"Content-Length: {len(body)}")
        head = [line.encode() for line in (*lines, "", "")]
        return self.line_break.join(head) + body + self.more

    def result(self, answer: Answer, session: str) -> str:
        """Return the expected result."""
        if answer.is_decision:
            is_known = self.shows == READABLE or (self.shows == ONLY_APPROVALS and answer.result == APPROVED)
            return answer.result if is_known else UNKNOWN
        proves = self.proves if is_direct(session) else self.proves_through_aiohttp or self.proves
        proven = {
            "all": True,
            "empty": not answer.body,
            "objects": answer.body == PAGE or answer.body.startswith(b"{"),
            "none": False,
        }
        return answer.result if proven[proves] else UNKNOWN


def half(body: bytes) -> bytes:
    return body[: len(body) * 2 // 3]


def nothing(_: bytes) -> bytes:
    return b""


def chunks(body: bytes) -> bytes:
    return (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"


def zipped(*behind: bytes) -> Any:
    return lambda body: b"".join([gzip.compress(body), *behind])


def open_ended(name: str, end: Play, **options: Any) -> Form:
    """Return a form without a length."""
    return Form(f"no length, {name}", has_length=False, end=end, **{"proves": "objects", **options})


CHUNKED = "Transfer-Encoding: chunked"
FORMS = [
    Form("length"),
    Form("length, then closed", end=FIN),
    Form("length, then reset", end=RST),
    Form("chunks", head=(CHUNKED,), body=chunks, has_length=False),
    Form("half of its length, closed", body=half, head=("Content-Length: 4000",), has_length=False, end=FIN,
        proves="none"),
    Form("half of its length, reset", body=half, head=("Content-Length: 4000",), has_length=False, end=RST,
        proves="none"),
    Form("chunks without the last", head=(CHUNKED,), body=lambda body: chunks(body)[:-5], has_length=False,
        end=FIN, proves="none"),
    open_ended("closed", FIN),
    open_ended("reset", RST, proves="none", proves_through_aiohttp="objects"),
    open_ended("TLS cut", CUT, proves="none", proves_through_aiohttp="objects"),
    open_ended("chunks within gzip", FIN, head=("Transfer-Encoding: chunked, gzip",)),
    open_ended("head, closed", FIN, body=nothing, proves="none", shows=HIDDEN),
    open_ended("head, reset", RST, body=nothing, proves="none", shows=HIDDEN),
    open_ended("half, closed", FIN, body=half, proves="none"),
    open_ended("half, reset", RST, body=half, proves="none"),
    open_ended("half, TLS cut", CUT, body=half, proves="none"),
    open_ended("HTTP/1.0", FIN, version="1.0"),
    open_ended("HTTP/1.0, head", FIN, version="1.0", body=nothing, proves="none", shows=HIDDEN),
    Form("with line breaks behind", more=b"\r\n\n"),
    Form("with a decision behind", more=APPROVAL, proves="none"),
    Form("with a part of a head behind", more=APPROVAL[:30], proves="none"),
    Form("with a byte behind", more=b"H", proves="none"),
    Form("chunks, with a decision behind", head=(CHUNKED,), body=chunks, has_length=False, more=APPROVAL,
        proves="none"),
    Form("chunks, with a part of a head behind", head=(CHUNKED,), body=chunks, has_length=False,
        more=b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n", proves="none"),
    Form("chunks, with a trailer", head=(CHUNKED,), has_length=False,
        body=lambda body: chunks(body)[:-2] + b"X-Checksum: 1\r\n\r\n"),
    Form("bare line feeds", line_break=b"\n"),
    Form("bare line feeds, with a part of a head behind", line_break=b"\n", more=APPROVAL[:30],
        proves="none"),
    Form("length 0 before its body", head=("Content-Length: 0",), has_length=False, more=SECOND,
        proves="none", shows=HIDDEN),
    Form("gzip", head=(GZIP,), body=zipped()),
    Form("gzip, as the second label", head=("Content-Encoding: identity", GZIP), body=zipped()),
    Form("gzip, as the first label", head=(GZIP, "Content-Encoding: identity"), body=zipped()),
    Form("gzip, of two members", head=(GZIP,),
        body=lambda body: gzip.compress(body[:5]) + gzip.compress(body[5:])),
    Form("gzip, with a decision as second member", head=(GZIP,), body=zipped(gzip.compress(SECOND)),
        proves="none", shows=HIDDEN),
    Form("gzip, with bytes behind", head=(GZIP,), body=zipped(SECOND), proves="none", shows=ONLY_APPROVALS),
    Form("gzip, cut off", head=(GZIP,), body=lambda body: gzip.compress(body)[:-9], proves="none"),
    Form("br", head=("Content-Encoding: br",), proves="empty", shows=ONLY_APPROVALS),
    *(Form(label, head=(f"Content-Encoding: {label}",))
      for label in ("utf-8", "none", "identity, identity", "ISO-8859-1", "")),
    Form("behind marks", body=lambda body: b"\n\xef\xbb\xbf" + body if body.startswith(b"{") else body),
]  # fmt: skip


def cases() -> Iterator[Any]:
    for form in FORMS:
        for scheme in ("http", "https"):
            for session in ("own", "own, through aiohttp"):
                if form.end is CUT and scheme == "http":
                    continue
                is_scheduled = scheme == "https" and form.end is None  # TLS changes nothing but the end
                marks = [pytest.mark.scheduled] if is_scheduled else []
                yield pytest.param(form, scheme, session, id=f"{form.name}-{scheme}-{session}", marks=marks)


async def result_of(server: RawServer, session: str) -> str:
    """Return the result of an approval."""
    server.requests.clear()
    async with client_of(server.base_url, session, retry=RetryPolicy(base=0.001)) as client:
        try:
            found = await approve(client)
        except LoanError as error:
            return error.outcome if len(server.requests) == 1 else "asked twice"
    if len(server.requests) > 1:
        return RETRIED
    return APPROVED if isinstance(found, Approved) else REFUSED


@pytest.mark.parametrize(("form", "scheme", "session"), list(cases()))
async def test_response_proves_only_what_it_shows(form: Form, scheme: str, session: str) -> None:
    server = RawServer(tls=tls_of(scheme), scheme=scheme)
    differences = []
    async with running(server):
        for answer in ANSWERS:
            ends = () if form.end is None else (form.end,)
            await server.wait_until_closed()
            server.exchanges.clear()
            server.exchanges.extend([(Play.READ, form.raw(answer), *ends), (Play.READ, APPROVAL, FIN)])
            found, expected = await result_of(server, session), form.result(answer, session)
            if found != expected:
                differences.append((answer, found))
    assert differences == []
