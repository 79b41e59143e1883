"""Errors for responses that are neither a decision nor a success: a branch of the tree in `errors`."""

from typing import Literal

from attrs import define

from loanasync._results import Meta, Problem, RawResponse
from loanasync.errors.root import LoanError, Outcome, listed

StoppedBy = Literal["attempts", "deadline", "quota", "slot", "cancelled", "closed"]
Unclassified = Literal["unknown", "done"]

# HTTP defines that a server which sends one of these has not processed the request (RFC 9110 §15, RFC 6585).
NOT_PROCESSED = frozenset(
    {301, 307, 308, 401, 404, 405, 407, 410, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431}
)

_ASK = "ask the service for the outcome before repeating the call"


@define(slots=False, repr=False)
class ServiceError(LoanError):
    """The service answered with a status that is neither a decision nor a success (spec §7).

    Catch its subclasses for what to do about each; show or log `problems`, they hold nothing personal.

    Args:
        operation: The call: ``create_request``, ``approve``, ``upload_documents`` or ``complete``.
        problems: What the service says, in its own words and language; personal values of the request
            are taken out of them.
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

    _advice = "see its problems"

    def __attrs_post_init__(self) -> None:
        # Only a 500 is followed by another attempt, and the service may have evaluated that first request.
        is_first = self.attempts <= 1 and not self.meta.after_unknown
        proven = is_first and self._proves_no_evaluation
        self.outcome: Outcome = "not_evaluated" if proven else "unknown"
        self.entry: str | None = self.meta.entry

    @property
    def _proves_no_evaluation(self) -> bool:
        return False

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self.meta.status

    @property
    def attempts(self) -> int:
        """How many requests were sent for this call."""
        return self.meta.attempts

    @property
    def _may_have(self) -> str:
        is_approval = self.operation == "approve"  # no other call evaluates the customer
        return f"the service may have {'evaluated the customer' if is_approval else 'carried out the call'}"

    def _says(self, advice: str, after_fault: str = "") -> str:
        said = f" ({listed(self.problems)})" if self.problems else ""
        # Only a 500 is ever followed by another attempt.
        if self.attempts > 1:
            done = "evaluated" if self.operation == "approve" else "carried out"
            fault = f"an earlier attempt of this call was answered with 500 and may have been {done}: {_ASK}"
            advice = after_fault or fault
        elif self.meta.after_unknown and self._proves_no_evaluation:
            advice = f"an earlier call for this approval has an unknown outcome: {_ASK}"
        return f"{self.operation} was answered with {self.status}{said}: {advice}"

    def __str__(self) -> str:
        return self._says(self._advice)


class RejectedError(ServiceError):
    """400 whose messages belong to fields of the request (spec §7). Correct the fields in `problems`.

    The service did not evaluate the customer, unless an earlier attempt was answered with 500.

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
    _advice = "correct these fields; then the call may be repeated"


class DomainError(ServiceError):
    """400 under ``domain``: the request is well formed, and the service does not accept it (spec §7).

    The outcome of a message that spec §7 does not list is unknown: it may mean that the customer was already
    evaluated. Ask the service for the outcome. The subclasses stand for the messages that spec §7 lists.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("The campaign has ended"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except DomainError as error:
        ...     print(*error.problems)
        domain: The campaign has ended
    """

    _advice = "ask the service for the outcome; do not repeat the call"


class UserNotFoundError(DomainError):
    """400 "User not found": the fiscal code is wrong, or no request was created for it (spec §7).

    Check the code, and call `create_request` for it first.

    Example:
        >>> run(client.approve("TSTBRN00A00A000B", request))
        Traceback (most recent call last):
            ...
        loanasync.UserNotFoundError: approve was answered with 400 (domain: User not found): check t...
    """

    _proves_no_evaluation = True

    def __str__(self) -> str:
        first = "" if self.operation == "create_request" else ", and call create_request for it first"
        return self._says(f"check the fiscal code{first}")


class ShopNotAllowedError(DomainError):
    """400 "This sales point cannot apply for a loan" (spec §7). Ask the service to enable the shop.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("This sales point cannot apply for a loan"))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.ShopNotAllowedError: approve was answered with 400 (domain: This sales point canno...
    """

    _proves_no_evaluation = True
    _advice = "the service has to allow this shop to request loans; no retry helps"


class InvalidFiscalCodeError(DomainError):
    """400 "Invalid fiscalCode." (spec §7). Let the customer check the code.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("Invalid fiscalCode."))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.InvalidFiscalCodeError: approve was answered with 400 (...): let the customer...
    """

    _proves_no_evaluation = True
    _advice = "let the customer check the fiscal code"


@define(slots=False, repr=False)
class AlreadyEvaluatedError(DomainError):
    """400 "User already evaluated for approval" (spec §3): a decision exists, and this is not it.

    The same text with another status, such as 403, 404 or 409, means the same.

    Do not request approval again: look up the decision where it was stored, or ask the service for it.

    Args:
        after_retry: True if an earlier attempt of this call was answered with 500. That attempt may be the
            evaluation, whose decision did not arrive. Ask the service for it; do not treat the customer as
            refused.

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

    def __str__(self) -> str:
        advice = (
            "this customer was evaluated before: ask the service for its decision, "
            "do not request approval again"
        )
        if self.after_retry and self.operation == "approve":
            advice = (
                "an earlier attempt of this call, answered with 500, may be the evaluation; "
                "its decision did not arrive: ask the service for it, do not request approval again"
            )
        return self._says(advice, after_fault=advice)


class AccessDeniedError(ServiceError):
    """403: the shop id or the token is not accepted (spec §5, §7). Check both.

    Example:
        >>> from loanasync.testing import denied, scripted_client
        >>> shop = scripted_client(denied())
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.AccessDeniedError: approve was answered with 403 (Access denied): check shop_id an...
    """

    _proves_no_evaluation = True
    _advice = "check shop_id and auth_token, and that base_url is the environment they belong to"


class CannotCompleteError(ServiceError):
    """409: the request cannot be completed (spec §4.1, §7). Do not repeat it.

    The specification does not say whether the service evaluated the customer, so the outcome is unknown.

    Example:
        >>> from loanasync.testing import conflict, scripted_client
        >>> shop = scripted_client(conflict())
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.CannotCompleteError: approve was answered with 409 (The request cannot be complete...
    """

    def __str__(self) -> str:
        return self._says(f"{self._may_have}: ask it for the outcome; do not repeat the call")


@define(slots=False, repr=False)
class SystemFaultError(ServiceError):
    """500 to the last attempt (spec §7): the service failed, and it may have carried out the call before.

    Ask the service for the outcome before the call is repeated.

    Args:
        stopped_by: Why no further attempt was made: ``attempts``, ``deadline``, ``quota``, ``cancelled``, or
            ``slot`` if the call got no slot again after it had waited for its retry; ``closed`` if the
            client was closed while the call waited.

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
            f"{self._may_have}: ask it for the outcome before repeating the call"
        )
        return self._says(advice, after_fault=advice)


@define(slots=False, repr=False)
class UnexpectedStatusError(ServiceError):
    """A status that spec §4 does not name for this call. Redirects are never followed.

    Check `base_url`, and proxies between this machine and the service. The outcome is ``not_evaluated`` only
    for statuses that mean "not processed" in HTTP, such as 404 or 429. After any other status, such as 303 or
    502, ask the service for the outcome before the call is repeated.

    Args:
        response: Status and body as received; personal, and masked when printed.

    Example:
        >>> from loanasync.testing import response, scripted_client
        >>> shop = scripted_client(response(502))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.UnexpectedStatusError: approve was answered with 502: the specification does not n...
    """

    response: RawResponse | None = None

    @property
    def _proves_no_evaluation(self) -> bool:
        return self.status in NOT_PROCESSED

    def __str__(self) -> str:
        advice = "the specification does not name this status; check base_url and proxies in between"
        if self.outcome == "unknown":
            advice += "; the service may have processed it: ask it for the outcome before repeating the call"
        return self._says(advice)


@define(slots=False, repr=False)
class UnexpectedResponseError(LoanError):
    """The content of a response is outside the specification, and nothing was guessed from it.

    Ask the service for the outcome; do not request approval again. `response` holds what was received.

    Args:
        operation: The call.
        reasons: Where the response is wrong, as paths such as ``approved: expected a boolean``; never values.
        outcome: ``unknown``; ``done`` if `complete` was answered with 200 and the body cannot be read.
        meta: Status, attempts, elapsed seconds and trace id.
        problems: Messages of the service that could be read, such as validation errors sent with 422.
        response: Status and body as received; personal, and masked when printed.

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
    outcome: Unclassified
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
            "unknown": "the outcome is unknown: ask the service for it before repeating the call",
            "done": "the service has carried out the call, and its response could not be read",
        }[self.outcome]
        what = f"{self.operation} was answered with {self.status} outside the specification"
        return f"{what} ({reasons}): {advice}"
