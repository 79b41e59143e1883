"""Messages between the client and a `Transport`: `Request`, `Response` and `NoResponse`."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, TypeAlias

from attrs import define, field, frozen

from loanasync._models.masking import ValueObject, mask
from loanasync.errors import TransportError

UNDECODABLE = "undecodable"  # `Response.fault` of a body with an unknown or wrong Content-Encoding

End: TypeAlias = Literal["stated", "closed", "cut"]
Judgement: TypeAlias = Literal["trusted", "kept", "wrong", "stray"]

# `Request` and `Response` are not frozen, because creating frozen objects takes three times as long.


@define(kw_only=True, eq=False, repr=False)
class Request(ValueObject):
    """One HTTP request for a `Transport`. URL, headers and body contain personal data or secrets.

    Args:
        method: HTTP method.
        url: Percent-encoded URL, which contains the fiscal code.
        headers: Headers, including the auth token.
        body: JSON object in UTF-8.
        survives_cancellation: True for an approval: its response is read even if the task is cancelled after
            the first byte was written.
        is_sent: Set by the transport: False if no byte of the request was written. True by default.

    Example:
        >>> from loanasync import Request
        >>> Request(method="POST", url="https://loans.example.com/...", headers={}, body=b"{}")
        Request(method='POST', url=***, headers=***, body=***, ...)
    """

    method: str
    url: str = field(repr=mask)
    headers: Mapping[str, str] = field(repr=mask)
    body: bytes = field(repr=mask)
    survives_cancellation: bool = False
    is_sent: bool = True

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # its attributes can be set


@define(kw_only=True, eq=False, repr=False)
class Response(ValueObject):
    """One HTTP response.

    Args:
        status: HTTP status.
        headers: Headers. The client reads ``Retry-After``, ``Date`` and ``X-Request-Id``, spelled like this.
        body: Decoded body, or the part of it that arrived.
        fault: Reason why the body is incomplete, such as ``truncated`` or ``undecodable``; else None.
        end: How the response ended: ``stated`` (after its Content-Length or its last chunk), ``closed`` (with
            an orderly end of the connection) or ``cut`` (in any other way).
        is_followed: True if anything but line breaks was received behind the response.
        is_reused: True if the connection had another exchange before: the response may belong to that one.
        judge: Set by the transport, or None. The client calls it after reading the response, with

            - ``trusted`` after a decision that names the customer: approvals may use the connection;
            - ``kept`` after another success: other calls may use it;
            - ``wrong`` after an error, which may belong to another request: it must be closed;
            - ``stray`` after a decision without a fiscal code on a used connection: it must be closed, and
              approvals need new connections from now on.

    Example:
        >>> from loanasync import Response
        >>> Response(status=201, headers={}, body=b'{"approved": true}')
        Response(status=201, body=***, fault=None, end='stated', is_followed=False, is_reused=False)
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=mask)
    fault: str | None = None
    end: End = "stated"
    is_followed: bool = False
    is_reused: bool = False
    judge: Callable[[Judgement], object] | None = field(default=None, eq=False, repr=False)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # its attributes can be set


@frozen(kw_only=True, eq=False, repr=False)
class NoResponse(ValueObject):
    """Result of a request without a response.

    Args:
        error: Class of the error to raise, such as `ConnectError` or `ReadTimeoutError`.
        cause_type: Name of the class of the underlying error. It must not contain personal data.
        is_sent: False only if no byte of the request was written.

    Example:
        >>> from loanasync import ConnectError, NoResponse
        >>> NoResponse(error=ConnectError, cause_type="gaierror", is_sent=False).is_sent
        False
    """

    error: type[TransportError]
    cause_type: str
    is_sent: bool
