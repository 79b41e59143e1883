"""The errors of calls without a response: a branch of the tree in `errors`."""

from typing import Literal

from attrs import define

from loanasync.errors.root import LoanError

# What to do about a server that cannot be trusted, by the name of the flaw.
_CERTIFICATE = "ClientConnectorCertificateError: "
_NO_TLS = {
    "ClientConnectorSSLError": "no TLS with this server; check base_url and its port",
    _CERTIFICATE + "wrong host": "the certificate is for another host; check base_url",
    _CERTIFICATE + "expired": (
        "the server's certificate has expired; ask the service, and check this machine's clock"
    ),
    _CERTIFICATE + "not yet valid": "the server's certificate is not valid yet; check this machine's clock",
    _CERTIFICATE + "self-signed": (
        "the server's certificate is signed by itself; check base_url, or give its CA file as ssl"
    ),
    _CERTIFICATE + "unknown authority": (
        "the server's certificate is of an authority unknown here; check base_url, or give its CA file as ssl"
    ),
    _CERTIFICATE + "not accepted": "the server's certificate is not accepted; check base_url",
}


Sent = Literal["not_sent", "unknown"]


@define(slots=False, repr=False)
class TransportError(LoanError):
    """No response arrived.

    Send the call again only if `repeatable` is True. Otherwise ask the service for the outcome first.

    Args:
        operation: The call.
        cause_type: Name of the underlying error's class, with its errno or the certificate's flaw where
            it has one.
        outcome: ``not_sent`` if no byte of this call reached the service; otherwise ``unknown``, also when an
            earlier attempt of the call was answered with 500.
        attempts: Number of attempts.
        trace_id: The trace's 32 hex digits if a trace was recorded or propagated, else None.
        entry: Key of the call's entry in the ledger, None without a ledger.

    Example:
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> shop = scripted_client(connection_lost())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except TransportError as error:
        ...     print(type(error).__name__, error.outcome, error.attempts)
        ConnectionLostError unknown 1
    """

    operation: str
    cause_type: str
    outcome: Sent
    attempts: int
    trace_id: str | None = None
    entry: str | None = None

    _what = "no response"

    def __attrs_post_init__(self) -> None:
        self.repeatable: bool = self.outcome == "not_sent"

    def _says(self, what: str) -> str:
        advice = (
            "request not sent; the call may be repeated"
            if self.outcome == "not_sent"
            else "the service may have received the request; ask it for the outcome before repeating the call"
        )
        return f"{self.operation}: {what} ({self.cause_type}): {advice}"

    def __str__(self) -> str:
        return self._says(self._what)


class ConnectError(TransportError):
    """No connection: name not found, refused, TLS failed, or not within ``Timeout.connect`` seconds.

    Or the connection that was kept open turned out unusable before the request was written to it.
    Check `base_url` and the network; repeat the call if `repeatable` is True.

    Example:
        >>> from loanasync.testing import not_connected, scripted_client
        >>> shop = scripted_client(not_connected())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ConnectError as error:
        ...     print(error.outcome)
        not_sent
    """

    def __str__(self) -> str:
        cause = self.cause_type.partition(" errno ")[0]
        return self._says(_NO_TLS.get(cause, "no connection; check base_url and the network"))


class PoolTimeoutError(TransportError):
    """No free slot among ``max_concurrency`` calls before the deadline.

    With a session of yours also: no free connection of its pool within ``Timeout.connect`` seconds. Raise
    the limit, or call less at once; repeat the call if `repeatable` is True.

    Example:
        >>> print(PoolTimeoutError("approve", "TimeoutError", "not_sent", 0))
        approve: no free slot in time (TimeoutError): request not sent; the call may be repeated
    """

    _what = "no free slot in time"


class ReadTimeoutError(TransportError):
    """Connected, and no answer within ``Timeout.attempt`` seconds.

    Settle with the service what became of the request before it is repeated.

    Example:
        >>> from loanasync.testing import scripted_client, timed_out
        >>> shop = scripted_client(timed_out())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ReadTimeoutError as error:
        ...     print(error.outcome)
        unknown
    """

    _what = "no answer within the time of one attempt"


class ConnectionLostError(TransportError):
    """Connected, and the connection broke before a response arrived, or the response was not HTTP.

    Settle with the service what became of the request before it is repeated.

    Example:
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> shop = scripted_client(connection_lost())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ConnectionLostError as error:
        ...     print(error.outcome)
        unknown
    """

    _what = "the connection broke before a response arrived, or the response was not HTTP"


class DeadlineExceededError(TransportError):
    """``Timeout.total`` seconds ran out before an answer came.

    Repeat the call only when `repeatable` is True; otherwise ask the service for the outcome first.

    Example:
        >>> import attrs
        >>> slow = attrs.evolve(request, email="anna+hangbefore@example.com")
        >>> soon = Timeout(total=0.2, attempt=10, connect=5)
        >>> try:
        ...     run(client.approve(fiscal_code, slow, timeout=soon))
        ... except DeadlineExceededError as error:
        ...     print(error.outcome)
        unknown
    """

    _what = "the call's total time ran out"
