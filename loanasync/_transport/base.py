"""The transport protocol: the object that sends one HTTP request, and the clock of a client."""

from collections.abc import Callable
from typing import Protocol, cast

from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync.errors import ConfigurationError


class Transport(Protocol):
    """Sends HTTP requests in one event loop, each request once.

    A client calls the function given as ``LoanClient(transport=...)`` on first use in each event loop, and
    closes the transport that it returns before that loop ends. Calls at once are limited by the client, with
    ``max_concurrency``; retries, validation, telemetry and the ledger are also the client's.

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

        - Return `NoResponse` if no response arrived, and do not raise an error. Its ``is_sent`` may be False
          only if no byte of the request was written: the call then counts as not sent, and may be repeated.
          An error that is raised all the same, except an AssertionError of a test, counts as
          `ConnectionLostError`, or as `ConnectError` if ``request.is_sent`` is False.
        - Never send a request twice, and follow no redirect: an approval may be requested once.
        - A transport that knows when it writes the first byte sets ``request.is_sent`` to False first, and to
          True just before that byte. For a transport that leaves it alone, each request counts as sent.
        - While ``request.is_withdrawn`` is True, write no byte of the request.
        - If the caller is cancelled before the first byte, write nothing. If it is cancelled later and
          ``request.outlives_caller`` is True, go on reading the response, set ``request.late`` to a future of
          the value that this method would return, and raise the cancellation. A transport that sets no
          future gives the response up, and the outcome of the call is unknown.

        Args:
            request: The request, with secret and personal values: show none of them.
            connect: Seconds for a connection to be opened.
            within: Seconds for the whole, connection and response included.

        Example:
            >>> from loanasync import Request
            >>> from loanasync.testing import ScriptedTransport, not_connected
            >>> url = "https://loans.example.com/api/shops/my-shop/requests"
            >>> post = Request(method="POST", url=url, headers={}, body=b"{}")
            >>> run(ScriptedTransport(not_connected()).send(post, connect=1.0, within=2.0)).is_sent
            False
        """

    async def aclose(self) -> None:
        """Close what the transport has opened. The client calls this once, when its calls have ended."""


class Clock(Protocol):
    """The time of a client; `loanasync.testing.Clock` is a clock for tests."""

    def now(self) -> float:
        """Return the time in seconds; it never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait before the next attempt of a call."""


def opener_of(transport: object, session: object, trust: object) -> Callable[[], Transport]:
    """Return the function that opens a transport of the user's own in the running event loop.

    Raises:
        ConfigurationError: It is no function, or there is a setting for the transport that it replaces.
    """
    for setting, value in (("session", session), ("ssl", trust)):
        if value is not None:
            raise ConfigurationError(setting, "cannot be used with transport=: leave one of them out")
    if not callable(transport):
        raise ConfigurationError(
            "transport",
            "must be a function that returns the transport of the running event loop, such as a class",
        )
    return cast("Callable[[], Transport]", transport)
