"""One HTTP request, its response, or the fact that none arrived."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from loanasync._display.masking import mask
from loanasync.errors import TransportError

if TYPE_CHECKING:
    from asyncio import Future


UNDECODABLE = "undecodable"  # a fault of a body: its Content-Encoding is not known, or not that of the body

# Not frozen: a frozen object takes three times as long to make, and each call makes both.


@define(kw_only=True)
class Request:
    """One HTTP request for the transport; all of it but the method is personal or secret.

    A transport that knows when it writes the first byte sets `is_sent` to False before, and to True then.
    If `outlives_caller` is set and the caller is cancelled after that, the transport goes on reading the
    response, sets `late` to a future of it, and raises the cancellation. While `is_withdrawn` is set, nothing
    of the request may be written any more.
    """

    method: str
    url: str = field(repr=mask)
    headers: Mapping[str, str] = field(repr=mask)
    body: bytes = field(repr=mask)
    outlives_caller: bool = False
    is_sent: bool = True
    is_withdrawn: bool = False
    late: "Future[Response | NoResponse] | None" = field(default=None, repr=False)


@define(kw_only=True)
class Response:
    """An HTTP response; `fault` says why its body is not whole, if it is not, and `body` has what arrived."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=mask)
    fault: str | None = None


@frozen(kw_only=True)
class NoResponse:
    """No response arrived: the class of the error, its cause, and whether the request may have been sent."""

    error: type[TransportError]
    cause_type: str
    is_sent: bool
