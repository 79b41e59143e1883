"""One HTTP request, its response, or the fact that none arrived."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from loanasync._display.masking import mask
from loanasync.errors import TransportError

if TYPE_CHECKING:
    import asyncio


UNDECODABLE = "undecodable"  # a fault of a body: its Content-Encoding is not known, or not that of the body

# Not frozen: a frozen object takes three times as long to make, and each call makes both.


@define(kw_only=True)
class Request:
    """One HTTP request for a `Transport`; all of it but the method is personal or secret.

    Args:
        method: HTTP method.
        url: Address, percent-encoded; the fiscal code is part of it.
        headers: Headers; the auth token is one of them.
        body: JSON object, UTF-8.
        outlives_caller: Read the response also if the caller is cancelled after the first byte was written.
        is_sent: Set by the transport: whether the first byte was written. True unless the transport knows.
        is_withdrawn: Nothing of the request may be written any more.
        late: Set by the transport: the response that is read for a caller that was cancelled.

    Example:
        >>> from loanasync import Request
        >>> Request(method="POST", url="https://loans.example.com/...", headers={}, body=b"{}")
        Request(method='POST', url=***, headers=***, body=***, ...)
    """

    method: str
    url: str = field(repr=mask)
    headers: Mapping[str, str] = field(repr=mask)
    body: bytes = field(repr=mask)
    outlives_caller: bool = False
    is_sent: bool = True
    is_withdrawn: bool = False
    late: "asyncio.Future[Response | NoResponse] | None" = field(default=None, repr=False)


@define(kw_only=True)
class Response:
    """One HTTP response.

    Args:
        status: HTTP status.
        headers: Headers; the client reads ``Retry-After``, ``Date`` and ``X-Request-Id``, in this spelling.
        body: Body, or the part of it that arrived, without Content-Encoding.
        fault: Why the body is not whole: ``undecodable``, or one word such as ``truncated``; None if it is.

    Example:
        >>> from loanasync import Response
        >>> Response(status=201, headers={}, body=b'{"approved": true}')
        Response(status=201, body=***, fault=None)
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=mask)
    fault: str | None = None


@frozen(kw_only=True)
class NoResponse:
    """The fact that no response arrived.

    Args:
        error: Class of the error to raise: `ConnectError`, `ConnectionLostError` or `ReadTimeoutError`.
        cause_type: Name of the class of the error that led to it; nothing personal.
        is_sent: False only if no byte of the request was written.

    Example:
        >>> from loanasync import ConnectError, NoResponse
        >>> NoResponse(error=ConnectError, cause_type="gaierror", is_sent=False).is_sent
        False
    """

    error: type[TransportError]
    cause_type: str
    is_sent: bool
