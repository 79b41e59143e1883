"""The rows of the fault matrix: a fault between the SDK and the service, and its result."""

from collections.abc import Callable

from attrs import evolve, field, frozen

from loanasync import (
    ConnectError,
    ConnectionLostError,
    LoanError,
    ReadTimeoutError,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from support.raw_server import Certificate, Exchange, RawServer

__all__ = ["BODY_TIMED_OUT", "BODY_TOO_LARGE", "BODY_TRUNCATED", "CONNECTION_LOST", "NOT_SENT", "PARTIAL"]
__all__ += ["READ_TIMEOUT", "SESSIONS", "SUCCESS", "UNREADABLE", "CorrectResponse", "Expected", "Row", "http"]
__all__ += ["unexpected"]


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

    @property
    def whole(self) -> bytes:
        return http(self.status, self.body)

    @property
    def half_head(self) -> bytes:
        return self.whole[:25]

    @property
    def head(self) -> bytes:
        return self.whole[: -len(self.body)]

    @property
    def half_body(self) -> bytes:
        return self.whole[: -len(self.body) // 2]

    def with_body(self, body: bytes, *headers: str) -> bytes:
        return http(self.status, body, *headers)


@frozen
class Expected:
    """The expected result of a call that meets a fault."""

    error: type[LoanError] | None = None  # None: the call succeeds
    outcome: str | None = None
    status: int | None = None
    is_partial: bool = False  # a decision without details, because only a part of the body was readable
    fault: str | None = None  # of the body, as in the span of the attempt
    alternative: "Expected | None" = None  # another possible result, if both sides race


@frozen(kw_only=True)
class Row:
    """One fault."""

    name: str
    fault: str
    server: Callable[[CorrectResponse], tuple[Exchange, ...]] = lambda _: ()
    expected: Expected
    expected_over_https: Expected | None = None
    expected_through_aiohttp: Expected | None = None
    requests_read: int = 1  # whole requests that the service reads
    attempts: int = field()
    earlier_exchange: Callable[[CorrectResponse], Exchange] | None = None  # of a call on the same connection
    prepare: Callable[[RawServer], None] | None = None
    closes_connection: bool = False  # after a whole response
    times_out: bool = False  # a timeout of the client ends it
    schemes: tuple[str, ...] = ("http", "https")
    operations: tuple[str, ...] = ("approve", "complete")
    refused: bool = False
    speaks_tls: bool = True
    certificate: Certificate = Certificate.GOOD
    message: str = ""  # a part of the error message

    @attempts.default
    def _default_attempts(self) -> int:
        return max(1, self.requests_read)


NOT_SENT = Expected(ConnectError, "not_sent")
CONNECTION_LOST = Expected(ConnectionLostError, "unknown")
READ_TIMEOUT = Expected(ReadTimeoutError, "unknown")
SUCCESS = Expected()
BODY_TIMED_OUT = Expected(UnexpectedResponseError, outcome="unknown", status=201, fault="timed out")
BODY_TRUNCATED = evolve(BODY_TIMED_OUT, fault="truncated")
BODY_TOO_LARGE = evolve(BODY_TIMED_OUT, fault="too large")
PARTIAL = Expected(is_partial=True)
UNREADABLE = evolve(BODY_TIMED_OUT, fault=None)


def unexpected(status: int) -> Expected:
    """Return the expected result of a status that the specification does not name."""
    return Expected(UnexpectedStatusError, status=status)
