"""The rows of the fault matrix: a fault between the SDK and the service, and its result."""

from collections.abc import Callable
from typing import TypeAlias

from attrs import evolve, field, frozen

from loanasync import LoanError, errors
from support.raw_server import Certificate, Drip, Exchange, Play, RawServer, Step


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of a response. A header about the length replaces the correct Content-Length."""
    has_length = any(
        each.startswith(("Content-Length", "Transfer-Encoding", "Connection: close")) for each in headers
    )
    lines = [f"HTTP/1.1 {status}", *headers, *(() if has_length else (f"Content-Length: {len(body)}",))]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


SESSIONS = (
    "own",  # requests are written directly to its connections
    "own, through aiohttp",  # with direct_connections=False
    "users",  # requests are written directly to connections of its connector
    "users, through aiohttp",
)


@frozen
class CorrectResponse:
    """The response that the service would send without the fault."""

    status: str
    body: bytes
    redirect_to: str = ""  # the address of another host
    fiscal_code: str = ""  # of the customer

    def whole(self) -> bytes:
        return http(self.status, self.body)

    def half_head(self) -> bytes:
        return self.whole()[:25]

    def head(self) -> bytes:
        return self.whole()[: -len(self.body)]

    def half_body(self) -> bytes:
        return self.whole()[: -len(self.body) // 2]

    def with_body(self, body: bytes, *headers: str) -> bytes:
        return http(self.status, body, *headers)


Steps: TypeAlias = tuple[Step | Callable[[CorrectResponse], bytes], ...]
WHOLE, HEAD = CorrectResponse.whole, CorrectResponse.head
HALF_HEAD, HALF_BODY = CorrectResponse.half_head, CorrectResponse.half_body


@frozen
class Expected:
    """The expected result of a call that meets a fault."""

    error: type[LoanError] | None = None  # None: the call succeeds
    outcome: str | None = None
    status: int | None = None
    is_partial: bool = False  # a decision without details, because only a part of the body was readable
    fault: str | None = None  # of the body, as in the span of the attempt
    alternative: "Expected | None" = None  # another possible result, if both sides race


@frozen
class Row:
    """One fault."""

    name: str
    fault: str
    expected: Expected
    steps: Steps = ()  # of the server
    expected_over_https: Expected | None = None
    expected_through_aiohttp: Expected | None = None
    requests_read: int = field()  # whole requests that the service reads
    attempts: int = field()
    earlier_steps: Steps = ()  # of a call on the same connection
    prepare: Callable[[RawServer], None] | None = None
    closes_connection: bool = False  # after a whole response
    schemes: tuple[str, ...] = ("http", "https")
    refused: bool = False
    operations: tuple[str, ...] = field()
    speaks_tls: bool = True
    certificate: Certificate = Certificate.GOOD
    message: str = ""  # a part of the error message

    @requests_read.default
    def _reads(self) -> int:
        return self.steps.count(Play.READ)

    @attempts.default
    def _one_for_each_request(self) -> int:
        return max(1, self.requests_read)

    @operations.default
    def _operations_with_this_response(self) -> tuple[str, ...]:
        return ("approve",) if self.refused else ("approve", "complete")

    @property
    def times_out(self) -> bool:
        """Return True if a timeout of the client ends the call."""
        silent = any(step is Play.SILENCE or isinstance(step, Drip) for step in self.steps)
        return silent or self.prepare in (RawServer.overfill, RawServer.listen)


def exchanges(steps: Steps, good: CorrectResponse) -> list[Exchange]:
    """Return the exchanges of a server. Each READ begins another one."""
    found: list[list[Step]] = []
    for step in steps:
        if step is Play.READ or not found:
            found.append([])
        found[-1].append(step(good) if callable(step) else step)
    return [*map(tuple, found)]


NOT_SENT = Expected(errors.ConnectError, "not_sent")
CONNECTION_LOST = Expected(errors.ConnectionLostError, "unknown")
READ_TIMEOUT = Expected(errors.ReadTimeoutError, "unknown")
SUCCESS = Expected()
BODY_TIMED_OUT = Expected(errors.UnexpectedResponseError, outcome="unknown", status=201, fault="timed out")
BODY_TRUNCATED = evolve(BODY_TIMED_OUT, fault="truncated")
BODY_TOO_LARGE = evolve(BODY_TIMED_OUT, fault="too large")
PARTIAL = Expected(is_partial=True)
UNREADABLE = evolve(BODY_TIMED_OUT, fault=None)


def unexpected(status: int) -> Expected:
    """Return the expected result of a status that the specification does not name."""
    return Expected(errors.UnexpectedStatusError, status=status)
