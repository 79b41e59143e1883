"""All exceptions of this package, in one tree.

::

    LoanError
    ├── InvalidRequestError          the request breaks rules; it was not sent
    ├── ConfigurationError           a setting of the client is invalid
    ├── ClientClosedError            the client was closed before the call
    ├── CircuitOpenError             the circuit breaker is open; no request was sent
    ├── ServiceError                 the response is neither a decision nor a success
    │   ├── RejectedError                400 with messages for fields of the request
    │   ├── DomainError                  400 with a message under `domain`
    │   │   ├── UserNotFoundError
    │   │   ├── AlreadyEvaluatedError
    │   │   ├── ShopNotAllowedError
    │   │   └── InvalidFiscalCodeError
    │   ├── AccessDeniedError            403
    │   ├── CannotCompleteError          409
    │   ├── SystemFaultError             500 on the last attempt
    │   └── UnexpectedStatusError        a status that the specification does not list for this call
    ├── UnexpectedResponseError      the content of the response does not follow the specification
    ├── TransportError               no response arrived
    │   ├── ConnectError                 no connection was established
    │   ├── PoolTimeoutError             no slot was free in time
    │   ├── ReadTimeoutError             no response within the time limit of one attempt
    │   ├── ConnectionLostError          the connection broke, or the response was not HTTP
    │   └── DeadlineExceededError        the total time limit of the call has passed
    └── LedgerError                  the ledger or the client's memory prevents the call, or a write failed
        ├── LedgerUnavailableError       the ledger is not available; no request was sent
        ├── LedgerMismatchError          the ledger does not fit this client; no request was sent
        ├── InFlightError                another call or worker has requested this approval
        ├── OutcomeUnknownError          requested before, with an unknown outcome; no request was sent
        ├── PayloadMismatchError         requested before, with other data; no request was sent
        ├── DecisionForgottenError       decided before, but the process keeps only its last decisions
        ├── NotResolvedError             the entry does not permit the outcome that `resolve` states
        └── DecisionNotRecordedError     decided, but not written to the ledger; the error has the decision

Each error has the attributes `outcome`, `repeatable`, `operation`, `entry` and `advice` of `LoanError`, and
its `text` is a sentence for the shopper. A refusal is not an error: `approve` returns `Refused`. `str()` and
`repr()` never contain a token, a fiscal code or other personal data. Three attributes may: `decision` of a
`DecisionNotRecordedError`, `response` of an `UnexpectedResponseError`, `UnexpectedStatusError`,
`AlreadyEvaluatedError` or `OutcomeUnknownError`, and `message` of the problems that the service found. A
pickle contains them.

Errors can be pickled.
"""

import math
import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

from attrs import define, field

from loanasync._models.classes import name_by_package
from loanasync._models.decisions import (
    OTHER_ORDER,
    Decision,
    Meta,
    Problem,
    Problems,
    RawResponse,
    problems_table,
)
from loanasync._models.texts import Advice, advice_text

Outcome: TypeAlias = Literal["not_sent", "not_evaluated", "unknown", "approved", "refused", "done"]
CIRCUIT_CAUSE = "recent approvals ended without a response or with a 5xx"


class LoanError(Exception):
    """Base class of all exceptions of this package. Catch its subclasses to handle each case.

    Two errors are equal when their type and their arguments are equal, also after pickling.

    Attributes:
        outcome: State of the operation after the call. ``not_sent``: no request left this process.
            ``not_evaluated``: the service proved that it did nothing. ``unknown``: the service may have
            evaluated the customer or, for the other calls, carried out the call. ``approved``, ``refused``:
            the service has decided. ``done``: the service carried out an operation other than `approve`.
        repeatable: True if a program may send the same call again unchanged.
        operation: Name of the call, such as ``approve``; None for an error without a call.
        entry: Key of the call's entry in the ledger, None without a ledger. Store it with
            the order, and log it.

    Example:
        >>> from loanasync.testing import denied, scripted_client
        >>> shop = scripted_client(denied())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except LoanError as error:
        ...     print(type(error).__name__, error.outcome, error.repeatable, error.advice)
        AccessDeniedError not_evaluated False fix_setup
    """

    # Class attributes, not properties: subclasses define attrs fields of these names.
    outcome: Outcome = "not_sent"
    repeatable: bool = False
    operation: str | None = None
    entry: str | None = None

    @property
    def advice(self) -> Advice:
        """The page that a shop shows.

        ``correct_form``: the form, with its problems. ``wait``: still being decided; the same call again
        returns the decision. ``ask_service``: the service may have decided; a person asks it.
        ``try_later``: the shopper may try again. ``already_decided``: the service has decided, or carried out
        the call. ``other_data``: the customer applied before with other data. ``other_order``: the service
        has evaluated the customer for another order, and decides nothing about this one. ``fix_setup``: not
        available until the shop corrects a setting.

        Example:
            >>> InFlightError("approve", "c0ffee").advice
            'wait'
        """
        return _advice_of(self)

    def text(self, language: str = "en") -> str:
        """Return a sentence for the shopper. It contains no personal data; `str` is for developers.

        Args:
            language: ``en`` or ``it``, also with a region, such as ``it-IT``.

        Raises:
            ValueError: The language has no texts.

        Example:
            >>> InFlightError("approve", "c0ffee").text("it")
            'La richiesta è ancora in valutazione. Controllare di nuovo tra un minuto.'
        """
        return advice_text(self.advice, self.operation, language)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def _repr_html_(self) -> str | None:
        """Return the problems as an HTML table for notebooks, or None if the error has no problems."""
        problems = getattr(self, "problems", ())
        if not problems:
            return None
        joined = join_problems(problems)
        text = str(self).replace(f"the following: {joined}", "these fields").replace(joined, "see below", 1)
        return problems_table(f"{type(self).__name__}: {text}", problems)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class ClientClosedError(LoanError):
    """The client was closed before the call; no request was sent. Create a new `LoanClient`.

    Example:
        >>> run(client.aclose())
        >>> run(client.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.ClientClosedError: client is closed; create a new LoanClient, or close this one af...
    """

    def __str__(self) -> str:
        return "client is closed; create a new LoanClient, or close this one after its last call"


@define(slots=False, repr=False)
class CircuitOpenError(LoanError):
    """The circuit breaker of the client is open; no request was sent. Call again after `retry_after` seconds.

    It opens after several approvals of different customers without a response or with a 5xx.

    Args:
        operation: Name of the call, ``approve``.
        retry_after: Seconds until a call may try again, 0 or more.
        entry: Key of the call's entry in the ledger, None without a ledger.

    Example:
        >>> print(CircuitOpenError("approve", 12.5))
        approve: request not sent; the circuit breaker is open, because recent approvals ended witho...
    """

    operation: str
    retry_after: float
    entry: str | None = None

    repeatable = True

    def __str__(self) -> str:
        return (
            f"{self.operation}: request not sent; the circuit breaker is open, because "
            f"{CIRCUIT_CAUSE}; after {math.ceil(self.retry_after)} s the call may be repeated"
        )


# Not the class itself: attrs would parse the signature of `tuple` in C, for each class with the field.
def _all_problems(problems: Iterable[Problem]) -> Problems:
    return Problems(problems)


def join_problems(problems: tuple[Problem, ...]) -> str:
    """Return all problems in one line."""
    return "; ".join(map(str, problems))


@define(slots=False, repr=False)
class InvalidRequestError(LoanError):
    """The request breaks rules of the specification (spec §2, §8); no request was sent.

    It is raised before any I/O. Show `problems` next to the fields of your form, correct all of them and
    call again. The customer was not evaluated.

    Args:
        problems: All broken rules.
        operation: Name of the call.

    Example:
        >>> try:
        ...     run(client.approve("RSSMRA", request))
        ... except InvalidRequestError as error:
        ...     print([problem.field for problem in error.problems])
        ['fiscal_code']
    """

    problems: Problems = field(converter=_all_problems)
    operation: str | None = None

    def __str__(self) -> str:
        return f"request not sent; fix the following: {join_problems(self.problems)}"


@define(slots=False, repr=False)
class ConfigurationError(LoanError):
    """A setting of the client is invalid; no request was sent. Correct `setting`.

    Args:
        setting: Name of the parameter or environment variable, such as ``shop_id``.
        message: The rule that its value breaks. It does not contain the value.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict("os.environ", LOANASYNC_BASE_URL=""):
        ...     LoanClient.from_env()
        Traceback (most recent call last):
            ...
        loanasync.ConfigurationError: LOANASYNC_BASE_URL: must be set in the environment
        >>> LoanClient("http://loans.example.com", shop_id="my-shop", auth_token="secret")
        Traceback (most recent call last):
            ...
        loanasync.ConfigurationError: base_url: must start with https://; over http the token and pe...
    """

    setting: str
    message: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.message}"


StoppedBy = Literal["attempts", "deadline", "quota", "slot", "cancelled", "closed"]
UnexpectedOutcome = Literal["unknown", "done"]

# A server that returns one of these statuses has not processed the request (RFC 9110 §15, RFC 6585).
NOT_PROCESSED = frozenset(
    {301, 307, 308, 401, 404, 405, 407, 410, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431}
)


def _before_repeating(operation: str, service: str = "the service") -> str:
    """Return the next step after an unknown outcome. Only an approval decides."""
    if operation == "approve":
        return f"ask {service} for the outcome before repeating the call"
    return "the call decides nothing and may be repeated"


@define(slots=False, repr=False)
class ServiceError(LoanError):
    """The service responded with a status that is neither a decision nor a success (spec §7).

    Catch its subclasses to handle each status. You may log the error and its `problems`: `str()` and `repr()`
    mask messages that the specification does not list.

    Args:
        operation: Name of the call: ``create_request``, ``approve``, ``upload_documents`` or ``complete``.
        problems: Messages of the service, in its wording and language.
        meta: Status, attempts, elapsed seconds and trace id.

    Example:
        >>> from loanasync.testing import response, scripted_client
        >>> shop = scripted_client(response(503))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ServiceError as error:
        ...     print(error.status, error.attempts, error.outcome)
        503 1 unknown
    """

    operation: str
    problems: Problems = field(converter=_all_problems)
    meta: Meta

    _advice = "see the problems of this error"

    def __attrs_post_init__(self) -> None:
        # Only a 500 is retried, so the service may have evaluated the request of an earlier attempt.
        is_first = self.attempts <= 1 and not self.meta.after_unknown
        is_proven = is_first and self._proves_no_evaluation
        self.outcome: Outcome = "not_evaluated" if is_proven else "unknown"
        self.entry: str | None = self.meta.entry

    @property
    def _proves_no_evaluation(self) -> bool:
        return False

    @property
    def status(self) -> int:
        """HTTP status of the last response."""
        return self.meta.status

    @property
    def attempts(self) -> int:
        """Number of requests that were sent for this call."""
        return self.meta.attempts

    @property
    def _possible_effect(self) -> str:
        is_approval = self.operation == "approve"  # no other call evaluates the customer
        return f"may have {'evaluated the customer' if is_approval else 'carried out the call'}"

    def _message(self, advice: str, advice_after_500: str = "") -> str:
        problems = f" ({join_problems(self.problems)})" if self.problems else ""
        if self.attempts > 1:  # only a 500 is retried
            advice = advice_after_500 or (
                f"an earlier attempt of this call failed with status 500 and {self._possible_effect}; "
                f"{_before_repeating(self.operation)}"
            )
        elif self.meta.after_unknown and self._proves_no_evaluation:
            next_step = _before_repeating(self.operation)
            advice = f"an earlier call for this approval has an unknown outcome; {next_step}"
        return f"{self.operation} failed with status {self.status}{problems}: {advice}"

    def __str__(self) -> str:
        return self._message(self._advice)


class RejectedError(ServiceError):
    """Status 400 with messages for fields of the request (spec §7). Correct the fields in `problems`.

    The service did not evaluate the customer, unless an earlier attempt failed with status 500.

    Example:
        >>> from loanasync.testing import rejected, scripted_client
        >>> shop = scripted_client(rejected({"postalCode": ["This value should not be blank."]}))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except RejectedError as error:
        ...     print([problem.field for problem in error.problems])
        ['postal_code']
    """

    _proves_no_evaluation = True
    _advice = "correct these fields, then repeat the call"


class DomainError(ServiceError):
    """Status 400 with a message under ``domain``: the service does not accept the request (spec §7).

    Spec §7 lists four messages, each with its own subclass. After any other message the outcome is unknown,
    because the customer may have been evaluated already. Ask the service for the outcome.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("The campaign has ended"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except DomainError as error:
        ...     print(error.problems[0], "|", error.problems[0].message)
        domain: *** | The campaign has ended
    """

    _advice = "ask the service for the outcome; do not repeat the call"


class UserNotFoundError(DomainError):
    """Status 400, "User not found": the fiscal code is wrong, or no request was created for it (spec §7).

    Check the code, and call `create_request` for it before `approve`.

    Example:
        >>> run(client.approve("TSTBRN00A00A000B", request))
        Traceback (most recent call last):
            ...
        loanasync.UserNotFoundError: approve failed with status 400 (fiscal_code: User not found): ch...
    """

    _proves_no_evaluation = True

    def __str__(self) -> str:
        first = "" if self.operation == "create_request" else ", and call create_request for it first"
        return self._message(f"check the fiscal code{first}")


class ShopNotAllowedError(DomainError):
    """Status 400, "This sales point cannot apply for a loan" (spec §7). Ask the service to enable the shop.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("This sales point cannot apply for a loan"))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.ShopNotAllowedError: approve failed with status 400 (domain: This sales point canno...
    """

    _proves_no_evaluation = True
    _advice = "ask the service to enable this shop for loans; retrying does not help"


class InvalidFiscalCodeError(DomainError):
    """Status 400, "Invalid fiscalCode." (spec §7). Ask the customer to check the code.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("Invalid fiscalCode."))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.InvalidFiscalCodeError: approve failed with status 400 (...): ask the customer...
    """

    _proves_no_evaluation = True
    _advice = "ask the customer to check the fiscal code"


@define(slots=False, repr=False)
class AlreadyEvaluatedError(DomainError):
    """Status 400, "User already evaluated for approval" (spec §3). The response contains no decision.

    The same text with another status, such as 403, 404 or 409, raises this error, too.

    Do not request approval again. Look up the decision where you stored it, or ask the service for it.

    Args:
        after_retry: True if an earlier attempt of this call failed with status 500. The service may have
            evaluated the customer in that attempt, and its decision did not arrive. Ask the service for the
            decision; do not treat the customer as refused.
        response: Status and body as received. Contains personal data, which is masked in `repr()`.
        note: ``evaluated for another order`` if the ledger, or the memory of this process, has a decision for
            another order of the customer, and no earlier request was sent for this one. Then nothing is
            unknown: the service does not evaluate this order.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client, system_error
        >>> shop = scripted_client(system_error(), domain_error("User already evaluated for approval"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except AlreadyEvaluatedError as error:
        ...     print(error.after_retry)
        True
    """

    after_retry: bool = False
    response: RawResponse | None = None
    note: str = ""

    def __str__(self) -> str:
        advice = (
            "this customer was evaluated before; ask the service for its decision, "
            "do not request approval again"
        )
        if self.note:
            advice = f"this customer was {self.note}, whose decision you have; do not request approval again"
        elif self.after_retry and self.operation == "approve":
            advice = (
                "an earlier attempt of this call failed with status 500 and may have evaluated the customer; "
                "its decision did not arrive; ask the service for it, do not request approval again"
            )
        return self._message(advice, advice_after_500=advice)


class AccessDeniedError(ServiceError):
    """Status 403: the service does not accept the shop id or the token (spec §5, §7). Check both.

    Example:
        >>> from loanasync.testing import denied, scripted_client
        >>> shop = scripted_client(denied())
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.AccessDeniedError: approve failed with status 403 (Access denied): check shop_id an...
    """

    _proves_no_evaluation = True
    _advice = "check shop_id and auth_token, and that base_url is the environment that issued them"


class CannotCompleteError(ServiceError):
    """Status 409: the request cannot be completed (spec §4.1, §7). Do not repeat the call.

    The specification does not say if the service has evaluated the customer, so the outcome is unknown.

    Example:
        >>> from loanasync.testing import conflict, scripted_client
        >>> shop = scripted_client(conflict())
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.CannotCompleteError: approve failed with status 409 (***): the service may have evalua...
    """

    def __str__(self) -> str:
        return self._message(
            f"the service {self._possible_effect}; ask it for the outcome, do not repeat the call"
        )


@define(slots=False, repr=False)
class SystemFaultError(ServiceError):
    """Status 500 on the last attempt (spec §7). The service may have carried out the call before it failed.

    Ask the service for the outcome before you repeat the call.

    Args:
        stopped_by: Reason for not retrying. ``attempts``: all attempts were used. ``deadline``: too little
            time was left. ``quota``: the retry quota was used up. ``slot``: no slot was free for the retry.
            ``cancelled``: the caller was cancelled. ``closed``: the client was closed.

    Example:
        >>> from loanasync.testing import scripted_client, system_error
        >>> shop = scripted_client(system_error(), system_error(), system_error())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except SystemFaultError as error:
        ...     print(error.attempts, error.stopped_by)
        3 attempts
    """

    stopped_by: StoppedBy = "attempts"

    def __str__(self) -> str:
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        advice = (
            f"gave up after {times}, stopped by {self.stopped_by}; "
            f"the service {self._possible_effect}; {_before_repeating(self.operation, 'it')}"
        )
        return self._message(advice, advice_after_500=advice)


@define(slots=False, repr=False)
class UnexpectedStatusError(ServiceError):
    """A status that spec §4 does not list for this call. Redirects are never followed.

    Check `base_url` and any proxy between this machine and the service. The outcome is ``not_evaluated`` only
    for statuses that mean "not processed" in HTTP, such as 404 or 429. After any other status, such as 303 or
    502, ask the service for the outcome before you repeat the call.

    Args:
        response: Status and body as received. Contains personal data, which is masked in `repr()`.

    Example:
        >>> from loanasync.testing import response, scripted_client
        >>> shop = scripted_client(response(502))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.UnexpectedStatusError: approve failed with status 502: the specification does not l...
    """

    response: RawResponse | None = None

    @property
    def _proves_no_evaluation(self) -> bool:
        return self.status in NOT_PROCESSED

    def __str__(self) -> str:
        advice = "the specification does not list this status; check base_url and any proxy"
        if self.outcome == "unknown":
            next_step = _before_repeating(self.operation, "it")
            advice += f"; the service may have processed the request; {next_step}"
        return self._message(advice)


@define(slots=False, repr=False)
class UnexpectedResponseError(LoanError):
    """The content of a response does not follow the specification.

    It may contain a decision, such as a boolean `approved` with status 404, that this package does not trust.
    Ask the service for the outcome; do not request approval again. `response` contains the received bytes.

    Args:
        operation: Name of the call.
        reasons: Paths and reasons such as ``approved: expected a boolean``, without values.
        outcome: ``unknown``, or ``done`` if `complete` got a 200 whose body cannot be read.
        meta: Status, attempts, elapsed seconds and trace id.
        problems: Messages of the service that could be read, such as validation errors with status 422.
        response: Status and body as received. Contains personal data, which is masked in `repr()`.

    Example:
        >>> from loanasync.testing import response, scripted_client
        >>> shop = scripted_client(response(422, b"<html>"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except UnexpectedResponseError as error:
        ...     print(error.outcome, error.status, error.response.body)
        unknown 422 b'<html>'
    """

    operation: str
    reasons: tuple[str, ...]
    outcome: UnexpectedOutcome
    meta: Meta
    problems: Problems = field(default=Problems(), converter=_all_problems)
    response: RawResponse | None = None

    def __attrs_post_init__(self) -> None:
        self.entry: str | None = self.meta.entry

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return self.meta.status

    def __str__(self) -> str:
        reasons = "; ".join((*self.reasons, *map(str, self.problems)))
        advice = {
            "unknown": f"the outcome is unknown; {_before_repeating(self.operation)}",
            "done": "the service has carried out the call; do not repeat it",
        }[self.outcome]
        return (
            f"{self.operation} got a {self.status} response outside the specification ({reasons}): {advice}"
        )


_CERTIFICATE = "ClientConnectorCertificateError: "
# Messages for errors of a new connection, by `cause_type` without a number.
_CONNECT_MESSAGES = {
    "ClientHttpProxyError": "the proxy refused the connection; check proxy",
    "ClientProxyConnectionError": "no connection to the proxy; check proxy and the network",
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
    "SessionClosed": "the client or its session was closed",
}
_OTHER_CERTIFICATE = (
    "the server's certificate, or that of its authority, breaks a rule; ask the service for a correct one"
)


# Begins the `cause_type` if the function `auth_token` failed.
TOKEN_FAILED = "auth_token: "  # noqa: S105  (not a token)
# Begins the `cause_type` if an exception ended the attempt that is no error of the network.
PROGRAM_FAILED = "program: "

TransportOutcome = Literal["not_sent", "unknown"]


@define(slots=False, repr=False)
class TransportError(LoanError):
    """No response arrived.

    Repeat the call only if `repeatable` is True. Otherwise ask the service for the outcome first.

    Args:
        operation: Name of the call.
        cause_type: Name of the underlying error's class, followed by its errno or by the reason why the
            certificate was not accepted, if known. After ``auth_token:`` it is the class of an exception of
            your function `auth_token`, or the rule that its result breaks. After ``program:`` it is the class
            of an exception that is no error of the network, such as one that a signal handler raised.
        outcome: ``not_sent`` if no byte of this call was written to a connection, else ``unknown``. Also
            ``unknown`` after an attempt that failed with status 500, or an earlier call with an unknown
            outcome.
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
            else f"the service may have received the request; {_before_repeating(self.operation, 'it')}"
        )
        return f"{self.operation}: {summary} ({self.cause_type}): {advice}"

    def __str__(self) -> str:
        if self.cause_type.startswith(PROGRAM_FAILED):
            return self._message("an exception in this program ended the attempt")
        return self._message(self._summary)


class ConnectError(TransportError):
    """No connection was established within ``Timeout.connect`` seconds.

    Possible causes: the host name was not found, the connection was refused, or the TLS handshake failed.
    Also raised if an idle connection of the pool broke before the request was written to it. Check `base_url`
    and the network, and repeat the call if `repeatable` is True.

    Also raised if `auth_token` is a function that raised an exception or returned no valid token. Also raised
    if another exception, such as one of a signal handler, ended the attempt before a request was sent.

    Example:
        >>> from loanasync.testing import not_connected, scripted_client
        >>> shop = scripted_client(not_connected())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ConnectError as error:
        ...     print(error.outcome)
        not_sent
    """

    @property
    def _summary(self) -> str:  # type: ignore[override]  # it depends on the cause
        if self.cause_type.startswith(TOKEN_FAILED):
            return "no valid token from the function auth_token"
        cause = re.split(" (?:errno|status) ", self.cause_type)[0]
        if cause.startswith(_CERTIFICATE):
            return _CONNECT_MESSAGES.get(cause, _OTHER_CERTIFICATE)
        return _CONNECT_MESSAGES.get(cause, "no connection; check base_url and the network")


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


UnresolvedState = Literal["unknown", "lost", "held"]
_DECIDED_ADVICE = (
    "repeat the call with the data and the order_id of that request to get the decision, "
    "or pass the order_id of a new order"
)
_MISMATCH_ADVICE = {
    "inflight": "wait for that request, then repeat the call with its data",
    "unknown": "ask the service for the outcome of that request",
    "approved": _DECIDED_ADVICE,
    "refused": _DECIDED_ADVICE,
}
_OUTCOMES: dict[str, Outcome] = {"approved": "approved", "refused": "refused"}
_CONTRADICTION_ADVICE = "ask the service for the outcome, then look at the entry with loanasync ledger show"
_NOT_RESOLVED = {
    "missing": (
        "this customer has no entry; check the fiscal code, the order_id and the order token, and the shop, "
        "the key and the environment of the client"
    ),
    "ambiguous": ("several orders of the customer have this order token; pass the order_id instead"),
    "inflight": "a request is in progress; ask the service for the outcome when it has ended",
    "unknown": (
        "the statement may be older than the last request; ask the service for the outcome of that request. "
        "If it was not evaluated, release the entry with loanasync ledger resolve"
    ),
}
_KEY_LENGTH = 12  # characters of an entry's key in messages, enough to identify the entry


@define(slots=False, repr=False)
class LedgerError(LoanError):
    """The ledger or the client's memory prevents the call, or the ledger could not be written.

    Catch its subclasses to handle each case.

    Args:
        operation: Name of the call, ``approve``.
        key: Key of the entry in the ledger, an HMAC without personal data. Empty without a ledger.

    Attributes:
        trace_id: Trace id of the call in hexadecimal, None without a trace.

    Example:
        >>> from loanasync.ledger import SqliteLedger
        >>> shop = sandbox.client(ledger=SqliteLedger("/nowhere/decisions.db"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except LedgerError as error:
        ...     print(type(error).__name__)
        LedgerUnavailableError
        >>> run(shop.aclose())
    """

    operation: str
    key: str

    def __attrs_post_init__(self) -> None:
        self.entry: str | None = self.key or None
        self.trace_id: str | None = None
        if (state := getattr(self, "state", None)) is not None:  # of the entry
            self.outcome: Outcome = _OUTCOMES.get(state, "unknown")

    @property
    def _entry(self) -> str:
        return f"{self.operation}, entry {self.key[:_KEY_LENGTH]}" if self.key else self.operation

    def __str__(self) -> str:
        return f"{self._entry}: ledger error; check the entry in the ledger"


@define(slots=False, repr=False)
class LedgerUnavailableError(LedgerError):
    """The ledger is not available, so no request was sent. Repair the ledger and repeat the call.

    Args:
        cause_type: Name of the underlying error's class.
        reason: The cause and the remedy if they are known, such as a full disk, otherwise empty.

    Example:
        >>> from loanasync.ledger import SqliteLedger
        >>> shop = sandbox.client(ledger=SqliteLedger("/nowhere/decisions.db"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except LedgerUnavailableError as error:
        ...     print(error.cause_type)
        FileNotFoundError
        >>> run(shop.aclose())
    """

    cause_type: str
    reason: str = ""

    repeatable = True

    def __str__(self) -> str:
        cause = f"{self.cause_type}: {self.reason}" if self.reason else self.cause_type
        return (
            f"{self._entry}: the ledger is not available ({cause}); request not sent; "
            "repair the ledger, then repeat the call"
        )


@define(slots=False, repr=False)
class LedgerMismatchError(LedgerError):
    """The ledger does not fit this client, so no request was sent. Nothing was changed in the ledger.

    Without this check, the records of earlier requests would not be found, and every customer would be
    requested again. Correct the settings; a worker waits until then.

    Args:
        ledger: Name of the ledger, such as its path or its address without the password.
        reason: The difference, such as another key, and the remedy.

    Example:
        >>> reason = "is encrypted: set LOANASYNC_LEDGER_CIPHER"
        >>> print(LedgerMismatchError("approve", "", "decisions.db", reason))
        approve: the ledger decisions.db is encrypted: set LOANASYNC_LEDGER_CIPHER; request not sent
    """

    ledger: str
    reason: str

    def __str__(self) -> str:
        return f"{self._entry}: the ledger {self.ledger} {self.reason}; request not sent"


class InFlightError(LedgerError):
    """The approval is still being decided by another worker or call. This call sent no request.

    `approve` raises it after waiting for `LedgerPolicy.wait` seconds, or for its argument `wait`. Show the
    shopper "your request is still being decided", with a button that repeats the call with the same data.
    This is safe, although `repeatable` is False. A later call returns the decision once the other worker has
    it. If that worker was killed, a later call raises `OutcomeUnknownError` once its lease has expired.

    Example:
        >>> print(InFlightError("approve", "c0ffee"))
        approve, entry c0ffee: still being decided by another call or worker; not sent; call again later
    """

    outcome: Outcome = "unknown"

    def __str__(self) -> str:
        return f"{self._entry}: still being decided by another call or worker; not sent; call again later"


@define(slots=False, repr=False)
class OutcomeUnknownError(LedgerError):
    """This approval was requested before, and its outcome is unknown; no request was sent.

    Ask the service for its decision. With a ledger, write it to the entry with `LoanClient.resolve`.
    To send the request again anyway, call ``approve(..., repeat_unknown=True)``.

    Args:
        state: ``unknown``: the service may have decided. ``lost``: the service has decided, but its decision
            did not arrive. ``held``: a person blocked the entry.
        note: The cause, such as the name of an error's class.
        response: The response that could not be interpreted, if the client's memory contains it.

    Example:
        >>> import attrs
        >>> from loanasync.ledger import MemoryLedger
        >>> shop = sandbox.client(ledger=MemoryLedger())
        >>> lost = attrs.evolve(request, email="anna+resetafter@example.com")
        >>> for _ in range(2):
        ...     try:
        ...         run(shop.approve(fiscal_code, lost))
        ...     except LoanError as error:
        ...         print(type(error).__name__)
        ConnectionLostError
        OutcomeUnknownError
        >>> run(shop.aclose())
    """

    state: UnresolvedState
    note: str
    response: RawResponse | None = None

    def __str__(self) -> str:
        if self.note == OTHER_ORDER:
            return f"{self._entry}: this customer was {self.note}; request not sent"
        cause = {
            "unknown": "an earlier request has an unknown outcome",
            "lost": "the service has decided, but its decision did not arrive",
            "held": "a person blocked this entry",
        }[self.state]
        note = f" ({self.note})" if self.note else ""
        return f"{self._entry}: {cause}{note}; request not sent; ask the service for its decision"


@define(slots=False, repr=False)
class DecisionForgottenError(LedgerError):
    """The decision about this customer is not kept any more; no request was sent.

    Without a ledger, the service decided within the last hour: the process keeps the last 10,000 decisions,
    at most 64 MiB of responses. Ask the service for the decision, and pass a ledger to `LoanClient`. With a
    ledger, a person has erased the customer with ``loanasync ledger forget``.

    Args:
        outcome: ``approved`` or ``refused``; ``unknown`` for a customer who was erased.

    Example:
        >>> print(DecisionForgottenError("approve", "", "approved"))
        approve: the service has decided (approved), but this process keeps only its last decisions; reque...
    """

    outcome: Literal["approved", "refused", "unknown"]

    def __str__(self) -> str:
        if self.outcome == "unknown":
            return (
                f"{self._entry}: the data of this customer were erased; request not sent; for another loan, "
                "run loanasync ledger resolve --customer --as released"
            )
        return (
            f"{self._entry}: the service has decided ({self.outcome}), but this process keeps only its last "
            "decisions; request not sent; look it up at the service, and use a ledger"
        )


@define(slots=False, repr=False)
class PayloadMismatchError(LedgerError):
    """This customer's approval was requested before with other data; no request was sent.

    If it is the same order, repeat the call with the data of the first request. For another order pass its
    number as `order_id`. Without `order_id`, a decided order of the customer has this error, too. A client
    without a ledger compares the approvals of the last hour.

    Args:
        state: State of the first request, such as ``approved`` or ``inflight``.

    Example:
        >>> import attrs
        >>> from loanasync.ledger import MemoryLedger
        >>> shop = sandbox.client(ledger=MemoryLedger())
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> try:
        ...     run(shop.approve(fiscal_code, attrs.evolve(request, amount=70_000)))
        ... except PayloadMismatchError as error:
        ...     print(error.state)
        approved
        >>> run(shop.aclose())
    """

    state: str

    def __str__(self) -> str:
        return (
            f"{self._entry}: this approval was requested before with other data (state: {self.state}); "
            f"request not sent; {_MISMATCH_ADVICE.get(self.state, _MISMATCH_ADVICE['unknown'])}"
        )


@define(slots=False, repr=False)
class NotResolvedError(LedgerError):
    """`LoanClient.resolve` wrote nothing: no entry, or several, or one that contradicts the stated outcome.

    Check the customer, the order and the order token. If they are right, ask the service for the outcome, and
    look at the entry with ``loanasync ledger show``.

    Args:
        state: ``missing``: the customer has no entry. ``ambiguous``: several orders of the customer have
            this order token. Otherwise the state of the entry, which contradicts the stated outcome.
            For ``not_evaluated`` this includes ``inflight``, a request in progress, and ``unknown``: the
            approval was requested again, or its request ended after the outcome was stated.
        stated: The stated outcome.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> from loanasync.testing import approved, scripted_client
        >>> shop = scripted_client(approved(), ledger=MemoryLedger())
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> try:
        ...     run(shop.resolve(fiscal_code, "refused", source="webhook"))
        ... except NotResolvedError as error:
        ...     print(error.state, error.outcome)
        approved approved
    """

    state: str
    stated: str

    def __str__(self) -> str:
        reason = _NOT_RESOLVED.get(self.state, f"the entry is {self.state}; {_CONTRADICTION_ADVICE}")
        return f"{self._entry}: not recorded as {self.stated}: {reason}"


@define(slots=False, repr=False)
class DecisionNotRecordedError(LedgerError):
    """The service has decided, but the decision could not be written to the ledger. Store `decision` now.

    Do not request approval again. If `file` is not None, it contains the decision. Call
    ``loanasync.ledger.import_orphans`` to write it to the ledger later.

    Args:
        outcome: ``approved`` or ``refused``.
        decision: The decision.
        file: Path of the orphan file on this machine, None if it could not be written.
        cause_type: Name of the class of the ledger's error.

    Example:
        >>> refused = Refused(meta=Meta(status=422, attempts=1, elapsed=0.2))
        >>> error = DecisionNotRecordedError("approve", "c0ffee", "refused", refused, None, "OSError")
        >>> error.outcome, error.decision.approved, error.repeatable
        ('refused', False, False)
    """

    outcome: Literal["approved", "refused"]
    decision: Decision
    file: str | None
    cause_type: str

    def __str__(self) -> str:
        advice = (
            "the decision was saved to a file; import it with import_orphans"
            if self.file is not None
            else "no file could be written; store error.decision, it is the only copy"
        )
        return (
            f"{self._entry}: the service has decided ({self.outcome}), but the ledger could not be written "
            f"({self.cause_type}); {advice}; do not request approval again"
        )


# Advice by class and outcome. A class without a row has that of its base class; `LoanError` has all outcomes.
_ADVICE: dict[type[LoanError], dict[Outcome, Advice]] = {
    LoanError: {
        "not_sent": "fix_setup",
        "not_evaluated": "fix_setup",
        "unknown": "ask_service",
        "approved": "already_decided",
        "refused": "already_decided",
        "done": "already_decided",
    },
    InvalidRequestError: {"not_sent": "correct_form"},
    CircuitOpenError: {"not_sent": "try_later"},
    RejectedError: {"not_evaluated": "correct_form"},
    UserNotFoundError: {"not_evaluated": "correct_form"},
    InvalidFiscalCodeError: {"not_evaluated": "correct_form"},
    TransportError: {"not_sent": "try_later"},
    LedgerUnavailableError: {"not_sent": "try_later"},
    InFlightError: {"unknown": "wait"},
    PayloadMismatchError: {"approved": "other_data", "refused": "other_data"},
}


def _advice_of(error: LoanError) -> Advice:
    outcome = error.outcome
    if error.operation != "approve" and outcome == "unknown":  # the other calls decide nothing
        match error:
            case ServiceError() if error._proves_no_evaluation:  # noqa: SLF001  (after a 500)
                outcome = "not_evaluated"
            case UnexpectedStatusError(status=status) if status // 100 in (3, 4):
                pass  # a repeat would get the same response, such as 409
            case TransportError() | SystemFaultError() | UnexpectedStatusError() | UnexpectedResponseError():
                return "try_later"
    match error:
        case UnexpectedStatusError(status=429) if outcome == "not_evaluated":
            return "try_later"  # RFC 6585: too many requests
        case PayloadMismatchError(state="inflight"):
            return "other_data"
        case AlreadyEvaluatedError(note=note) | OutcomeUnknownError(state="lost", note=note):
            return "other_order" if note == OTHER_ORDER else "already_decided"
        case DeadlineExceededError(outcome="unknown") if error.entry is not None:
            return "wait"  # the response is still awaited, and the ledger will have it
    rows = (_ADVICE.get(kind, {}) for kind in type(error).__mro__)
    return next(row[outcome] for row in rows if outcome in row)


__all__ = [
    "AccessDeniedError",
    "AlreadyEvaluatedError",
    "CannotCompleteError",
    "CircuitOpenError",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DecisionForgottenError",
    "DecisionNotRecordedError",
    "DomainError",
    "InFlightError",
    "InvalidFiscalCodeError",
    "InvalidRequestError",
    "LedgerError",
    "LedgerMismatchError",
    "LedgerUnavailableError",
    "LoanError",
    "NotResolvedError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "PoolTimeoutError",
    "ReadTimeoutError",
    "RejectedError",
    "ServiceError",
    "ShopNotAllowedError",
    "SystemFaultError",
    "TransportError",
    "UnexpectedResponseError",
    "UnexpectedStatusError",
    "UserNotFoundError",
]

name_by_package(globals(), "loanasync")
