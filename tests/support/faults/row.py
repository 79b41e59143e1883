"""One fault between the SDK and the service: what it is, what comes of it, and what to do then."""

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

__all__ = ["AGAIN", "BETWEEN", "CUT", "DETAILS", "FINAL", "GOES_WELL", "LATE", "LOST", "MEND", "NOTHING"]
__all__ += ["IN_PART", "NOT_SENT", "PERSON", "SESSIONS", "SETTLE", "SILENT", "TOO_LARGE", "UNREADABLE"]
__all__ += ["Answer", "Comes", "Row", "http", "unexpected"]


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    """An answer as a service would write it; any header about the length takes the place of the true one."""
    measured = any(
        each.startswith(("Content-Length", "Transfer-Encoding", "Connection: close")) for each in headers
    )
    lines = [f"HTTP/1.1 {status}", *headers, *(() if measured else (f"Content-Length: {len(body)}",))]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@frozen
class Answer:
    """The answer that would be right, for the rows to spoil."""

    status: str
    body: bytes
    elsewhere: str = ""  # the address of another host
    about: str = ""  # the customer's fiscal code

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
class Comes:
    """What comes of a fault."""

    error: type[LoanError] | None = None  # None: the answer, as if nothing had been
    outcome: str | None = None
    status: int | None = None
    in_part: bool = False  # the decision, of a body that could be read in part only
    fault: str | None = None  # of the body, as the attempt's span names it
    or_else: "Comes | None" = None  # where it is a race which side of the connection is quicker


@frozen(kw_only=True)
class Row:
    """One fault."""

    name: str
    fault: str
    server: Callable[[Answer], tuple[Exchange, ...]] = lambda _: ()
    comes: Comes
    over_https: Comes | None = None
    seen: int = 1  # requests that the service reads whole
    attempts: int = field()
    advice: str
    before: Callable[[Answer], Exchange] | None = None  # a call that goes well on the same connection
    begin: Callable[[RawServer], None] | None = None
    dead: bool = False  # the connection, after a whole answer
    silent: bool = False  # only the client's own time ends it
    schemes: tuple[str, ...] = ("http", "https")
    operations: tuple[str, ...] = ("approve", "complete")
    refused: bool = False
    speaks_tls: bool = True
    shows: Certificate = Certificate.GOOD
    says: str = ""  # a part of the error's sentence

    @attempts.default
    def _as_seen(self) -> int:
        return max(1, self.seen)


SESSIONS = (
    "own",  # whose connections are written to directly
    "own, through aiohttp",  # as when that cannot be
    "users",
)

AGAIN = "call again"
SETTLE = "ask the service what became of it before you call again"
DETAILS = "take the decision; ask the service for the redirect"
FINAL = "take it as the refusal that it is"
NOTHING = "nothing"
MEND = "correct what the error names, then call again"
BETWEEN = "look at `base_url` and at what stands in between"
PERSON = "a person settles it with the service"

NOT_SENT = Comes(ConnectError, "not_sent")
LOST = Comes(ConnectionLostError, "unknown")
SILENT = Comes(ReadTimeoutError, "unknown")
GOES_WELL = Comes()
LATE = Comes(UnexpectedResponseError, outcome="unknown", status=201, fault="timed out")
CUT = evolve(LATE, fault="truncated")
TOO_LARGE = evolve(LATE, fault="too large")
IN_PART = Comes(in_part=True)
UNREADABLE = evolve(LATE, fault=None)


def unexpected(status: int) -> Comes:
    return Comes(UnexpectedStatusError, status=status)
