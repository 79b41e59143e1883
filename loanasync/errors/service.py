"""Errors for responses that are neither a decision nor a success."""

from typing import Literal

from attrs import define

from loanasync._results import Meta, Problem, RawResponse
from loanasync.errors.root import LoanError, Outcome, join_problems

StoppedBy = Literal["attempts", "deadline", "quota", "slot", "cancelled", "closed"]
UnexpectedOutcome = Literal["unknown", "done"]

# A server that returns one of these statuses has not processed the request (RFC 9110 §15, RFC 6585).
NOT_PROCESSED = frozenset(
    {301, 307, 308, 401, 404, 405, 407, 410, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431}
)

_ASK_FIRST = "ask the service for the outcome before repeating the call"


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
    problems: tuple[Problem, ...]
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
        return f"the service may have {'evaluated the customer' if is_approval else 'carried out the call'}"

    def _message(self, advice: str, advice_after_500: str = "") -> str:
        problems = f" ({join_problems(self.problems)})" if self.problems else ""
        if self.attempts > 1:  # only a 500 is retried
            effect = "evaluated the customer" if self.operation == "approve" else "carried out the call"
            advice = advice_after_500 or (
                f"an earlier attempt of this call failed with status 500 and may have {effect}; {_ASK_FIRST}"
            )
        elif self.meta.after_unknown and self._proves_no_evaluation:
            advice = f"an earlier call for this approval has an unknown outcome; {_ASK_FIRST}"
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
        loanasync.UserNotFoundError: approve failed with status 400 (domain: User not found): check t...
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

    def __str__(self) -> str:
        advice = (
            "this customer was evaluated before; ask the service for its decision, "
            "do not request approval again"
        )
        if self.after_retry and self.operation == "approve":
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
        return self._message(f"{self._possible_effect}; ask it for the outcome, do not repeat the call")


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
            f"{self._possible_effect}; ask it for the outcome before repeating the call"
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
            advice += (
                "; the service may have processed the request; "
                "ask it for the outcome before repeating the call"
            )
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
    problems: tuple[Problem, ...] = ()
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
            "unknown": "the outcome is unknown; ask the service for it before repeating the call",
            "done": "the service has carried out the call; do not repeat it",
        }[self.outcome]
        return (
            f"{self.operation} got a {self.status} response outside the specification ({reasons}): {advice}"
        )
