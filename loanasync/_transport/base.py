"""The protocols of a transport and of a client's clock, and the setting of a proxy."""

from typing import Protocol

from attrs import field, frozen

from loanasync._models.masking import ValueObject, mask
from loanasync._protocol.messages import NoResponse, Request, Response


class Transport(Protocol):
    """Protocol of an object that sends HTTP requests, each exactly once, in one event loop.

    A client calls the function given as ``LoanClient(transport=...)`` on its first call in each event loop,
    and closes the returned transport before that loop ends. The client does everything else: it validates,
    limits concurrent calls (``max_concurrency``), retries, records telemetry and writes the ledger.

    Example:
        >>> from loanasync import Request, Response, Transport
        >>> class Replayed(Transport):
        ...     def check(self) -> None:
        ...         pass
        ...     async def send(self, request: Request, *, connect: float, within: float) -> Response:
        ...         return Response(status=201, headers={}, body=b'{"approved": true, "amount": 45000}')
        ...     async def aclose(self) -> None:
        ...         pass
        >>> offline = LoanClient(
        ...     "https://loans.example.com", shop_id="my-shop", auth_token="secret", transport=Replayed
        ... )
        >>> run(offline.approve(fiscal_code, request)).amount
        45000
    """

    def check(self) -> None:
        """Raise an error if no call can begin now, such as a `ConfigurationError`.

        The client calls this before each call, in the event loop of the transport.
        """

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Send a request once, and return its response.

        - Return `NoResponse` if no response arrived; do not raise an error. Set its ``is_sent`` to False only
          if no byte of the request was written: the client then reports the call as not sent and repeatable.
          An error that is raised counts as `ConnectionLostError`, or as `ConnectError` if ``request.is_sent``
          is False. Only an AssertionError, which a test may raise, reaches the caller.
        - Never send a request twice, and never follow a redirect: an approval may be requested only once.
        - If the transport knows when it writes the first byte, set ``request.is_sent`` to False at the
          beginning, and to True just before that byte. If it is not set, the request counts as sent.
        - If the task is cancelled before the first byte, write nothing. If it is cancelled later and
          ``request.survives_cancellation`` is True, read on and return the response: only the end of the
          event loop cancels it then. Otherwise the response is lost and the outcome of the call is unknown.

        Args:
            request: The request. It contains secret and personal values: do not print or log it.
            connect: Limit for opening a connection, in seconds.
            within: Limit for the whole request, including connection and response, in seconds.

        Example:
            >>> from loanasync import Request
            >>> from loanasync.testing import ScriptedTransport, not_connected
            >>> url = "https://loans.example.com/api/shops/my-shop/requests"
            >>> post = Request(method="POST", url=url, headers={}, body=b"{}")
            >>> run(ScriptedTransport(not_connected()).send(post, connect=1.0, within=2.0)).is_sent
            False
        """

    async def aclose(self) -> None:
        """Close all connections. The client calls this once, after its last call has ended."""


class Clock(Protocol):
    """Protocol of the clock of a client; `loanasync.testing.Clock` is a clock for tests."""

    def now(self) -> float:
        """Return the time in seconds; it never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` before the next attempt of a call."""


@frozen(eq=False, repr=False)
class Proxy(ValueObject):
    """The setting `proxy=`; `url` is None if the environment names no proxy. It may contain a password."""

    url: str | None = field(repr=mask)
