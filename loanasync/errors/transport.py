"""Errors for calls that got no response."""

from typing import Literal

from attrs import define

from loanasync.errors.root import LoanError

_CERTIFICATE = "ClientConnectorCertificateError: "
# Messages for TLS errors, by `cause_type`.
_TLS_MESSAGES = {
    "ClientConnectorSSLError": "TLS handshake failed; check base_url and its port",
    _CERTIFICATE + "wrong host": "the server's certificate is for another host; check base_url",
    _CERTIFICATE + "expired": (
        "the server's certificate has expired; ask the service, and check this machine's clock"
    ),
    _CERTIFICATE + "not yet valid": "the server's certificate is not valid yet; check this machine's clock",
    _CERTIFICATE + "self-signed": (
        "the server's certificate is self-signed; check base_url, or pass its CA file as ssl"
    ),
    _CERTIFICATE + "unknown authority": (
        "the server's certificate is from an unknown authority; check base_url, or pass its CA file as ssl"
    ),
    _CERTIFICATE + "not accepted": "the server's certificate is not accepted; check base_url",
}


# Begins the `cause_type` if the function `auth_token` failed.
TOKEN_FAILED = "auth_token: "  # noqa: S105  (not a token)

TransportOutcome = Literal["not_sent", "unknown"]


@define(slots=False, repr=False)
class TransportError(LoanError):
    """No response arrived.

    Repeat the call only if `repeatable` is True. Otherwise ask the service for the outcome first.

    Args:
        operation: Name of the call.
        cause_type: Name of the underlying error's class, followed by its errno or by the reason why the
            certificate was not accepted, if known. After ``auth_token:`` it is the class of an exception of
            your function `auth_token`, or the rule that its result breaks.
        outcome: ``not_sent`` if no byte of this call was written to a connection, else ``unknown``. Also
            ``unknown`` if an earlier attempt of the call failed with status 500.
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
    outcome: TransportOutcome
    attempts: int
    trace_id: str | None = None
    entry: str | None = None

    _summary = "no response"

    def __attrs_post_init__(self) -> None:
        self.repeatable: bool = self.outcome == "not_sent"

    def _message(self, summary: str) -> str:
        advice = (
            "request not sent; the call may be repeated"
            if self.outcome == "not_sent"
            else "the service may have received the request; ask it for the outcome before repeating the call"
        )
        return f"{self.operation}: {summary} ({self.cause_type}): {advice}"

    def __str__(self) -> str:
        return self._message(self._summary)


class ConnectError(TransportError):
    """No connection was established within ``Timeout.connect`` seconds.

    Possible causes: the host name was not found, the connection was refused, or the TLS handshake failed.
    Also raised if an idle connection of the pool broke before the request was written to it. Check `base_url`
    and the network, and repeat the call if `repeatable` is True.

    Also raised if `auth_token` is a function that raised an exception or returned no valid token.

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
        if self.cause_type.startswith(TOKEN_FAILED):
            return self._message("no valid token from the function auth_token")
        cause = self.cause_type.partition(" errno ")[0]
        return self._message(_TLS_MESSAGES.get(cause, "no connection; check base_url and the network"))


class PoolTimeoutError(TransportError):
    """All ``max_concurrency`` slots were in use until the deadline.

    With your own session, also: its pool had no free connection within ``Timeout.connect`` seconds. Raise the
    limit or make fewer concurrent calls, and repeat the call if `repeatable` is True.

    Example:
        >>> print(PoolTimeoutError("approve", "TimeoutError", "not_sent", 0))
        approve: no free slot in time (TimeoutError): request not sent; the call may be repeated
    """

    _summary = "no free slot in time"


class ReadTimeoutError(TransportError):
    """The connection was established, but no response arrived within ``Timeout.attempt`` seconds.

    Ask the service for the outcome before you repeat the call.

    Example:
        >>> from loanasync.testing import scripted_client, timed_out
        >>> shop = scripted_client(timed_out())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ReadTimeoutError as error:
        ...     print(error.outcome)
        unknown
    """

    _summary = "no response within the time limit of one attempt"


class ConnectionLostError(TransportError):
    """The connection broke before a response arrived, or the response was not HTTP.

    Ask the service for the outcome before you repeat the call.

    Example:
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> shop = scripted_client(connection_lost())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ConnectionLostError as error:
        ...     print(error.outcome)
        unknown
    """

    _summary = "the connection broke before a response arrived, or the response was not HTTP"


class DeadlineExceededError(TransportError):
    """No response arrived within ``Timeout.total`` seconds. That of an approval is still awaited.

    Repeat the call only if `repeatable` is True. Otherwise ask the service for the outcome first.

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

    _summary = "the total time limit of the call has passed"
