"""What is raised when no answer came: a branch of the tree in `errors`."""

from typing import Literal

from attrs import define

from loanasync.errors._advice import NO_TLS
from loanasync.errors._failure import LoanError

__all__ = ["ConnectError", "ConnectionLostError", "DeadlineExceededError", "PoolTimeoutError"]
__all__ += ["ReadTimeoutError", "RequestSent", "TransportError"]

RequestSent = Literal["no", "maybe"]


@define(slots=False, repr=False)
class TransportError(LoanError):
    """No answer came.

    Repeat the call only when `request_sent` is ``no``; else settle its outcome with the service first.

    Args:
        operation: The call.
        cause_type: Name of the underlying error's class, with its errno or the certificate's flaw where
            it has one.
        request_sent: ``no`` when the service provably got nothing of this call, so that it may be
            repeated; else ``maybe``, also when an earlier attempt of the call was answered with a 500.
        attempts: How many attempts were begun.
        trace_id: The trace's 32 hex digits when a trace was recorded or passed on, else None: where to
            look for what became of it.

    Example:
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> shop = scripted_client(connection_lost())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except TransportError as error:
        ...     print(type(error).__name__, error.request_sent, error.attempts)
        ConnectionLostError maybe 1
    """

    operation: str
    cause_type: str
    request_sent: RequestSent
    attempts: int
    trace_id: str | None = None

    def _says(self, what: str) -> str:
        advice = (
            "nothing was sent, the call may be repeated"
            if self.request_sent == "no"
            else "the request may have reached the service; settle its outcome before repeating it"
        )
        return f"{self.operation}: {what} ({self.cause_type}): {advice}"

    def __str__(self) -> str:
        return self._says("no answer came")


class ConnectError(TransportError):
    """No connection: name not found, refused, TLS failed, or not within ``Timeout.connect`` seconds.

    Or the connection that was kept open turned out unusable before the request was written to it.
    Check `base_url` and the network; repeat the call when `request_sent` is ``no``.

    Example:
        >>> from loanasync.testing import not_connected, scripted_client
        >>> shop = scripted_client(not_connected())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ConnectError as error:
        ...     print(error.request_sent)
        no
    """

    def __str__(self) -> str:
        cause = self.cause_type.partition(" errno ")[0]
        return self._says(NO_TLS.get(cause, "no connection; check base_url and the network"))


class PoolTimeoutError(TransportError):
    """No free place among ``max_concurrency`` calls before the deadline.

    With a session of yours also: no free connection of its pool within ``Timeout.connect`` seconds. Raise
    the limit, or call less at once; repeat the call when `request_sent` is ``no``.

    Example:
        >>> print(PoolTimeoutError("approve", "TimeoutError", "no", 0))
        approve: no free place among the concurrent calls in time (TimeoutError): nothing was sent, the cal...
    """

    def __str__(self) -> str:
        return self._says("no free place among the concurrent calls in time")


class ReadTimeoutError(TransportError):
    """Connected, and no answer within ``Timeout.attempt`` seconds.

    Settle with the service what became of the request before it is repeated.

    Example:
        >>> from loanasync.testing import scripted_client, timed_out
        >>> shop = scripted_client(timed_out())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ReadTimeoutError as error:
        ...     print(error.request_sent)
        maybe
    """

    def __str__(self) -> str:
        return self._says("no answer within the time of one attempt")


class ConnectionLostError(TransportError):
    """Connected, and the connection broke before an answer came, or what came is no HTTP.

    Settle with the service what became of the request before it is repeated.

    Example:
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> shop = scripted_client(connection_lost())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ConnectionLostError as error:
        ...     print(error.request_sent)
        maybe
    """

    def __str__(self) -> str:
        return self._says("the connection broke before an answer came, or what came is no HTTP")


class DeadlineExceededError(TransportError):
    """``Timeout.total`` seconds ran out before an answer came.

    Repeat the call only when `request_sent` is ``no``; else settle its outcome with the service first.

    Example:
        >>> import attrs
        >>> slow = attrs.evolve(request, email="anna+hangbefore@example.com")
        >>> soon = Timeout(total=0.2, attempt=10, connect=5)
        >>> try:
        ...     run(client.approve(fiscal_code, slow, timeout=soon))
        ... except DeadlineExceededError as error:
        ...     print(error.request_sent)
        maybe
    """

    def __str__(self) -> str:
        return self._says("the call's total time ran out")
