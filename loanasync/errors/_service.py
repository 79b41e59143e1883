"""What is raised when the service answered otherwise than asked: a branch of the tree in `errors`."""

from typing import Literal

from attrs import define

from loanasync._meta import Meta, Problem
from loanasync.errors._failure import LoanError, listed

__all__ = [
    "AccessDeniedError",
    "AlreadyEvaluatedError",
    "CannotCompleteError",
    "DomainError",
    "InvalidFiscalCodeError",
    "RejectedError",
    "ReplyOutcome",
    "ServiceError",
    "ShopNotAllowedError",
    "StoppedBy",
    "SystemFaultError",
    "UnexpectedReplyError",
    "UnexpectedStatusError",
    "UserNotFoundError",
]

StoppedBy = Literal["attempts", "deadline", "quota"]
ReplyOutcome = Literal["approved", "refused", "done", "unknown"]

_REDIRECT, _SERVER_ERROR = 300, 500


_AFTER_FAULT = (
    "an earlier attempt of this call was answered with a 500 and may have been carried out: "
    "settle its outcome with the service before repeating it"
)


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
        >>> from loanasync.testing import reply, scripted_client
        >>> shop = scripted_client(reply(503))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except ServiceError as error:
        ...     print(error.status, error.attempts, error.may_be_carried_out)
        503 1 True
    """

    operation: str
    problems: tuple[Problem, ...]
    meta: Meta

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self.meta.status

    @property
    def attempts(self) -> int:
        """How many requests were sent for this call."""
        return self.meta.attempts

    @property
    def may_be_carried_out(self) -> bool:
        """Whether the service may have carried the call out all the same.

        So it may after a 500, of this attempt or of one before, and after whatever else tells of no refusal:
        a gateway that gave up waiting, or a success that the specification does not name.
        """
        return self.attempts > 1 or not _REDIRECT <= self.status < _SERVER_ERROR

    def _says(self, advice: str, after_fault: str = _AFTER_FAULT) -> str:
        said = f" ({listed(self.problems)})" if self.problems else ""
        # Only a 500 is ever followed by another attempt.
        what = after_fault if self.attempts > 1 else advice
        return f"{self.operation} was answered with {self.status}{said}: {what}"

    def __str__(self) -> str:
        return self._says("see its problems")


class RejectedError(ServiceError):
    """400: a parameter is formally wrong for the service (spec §7). Mend `problems` and ask again.

    Example:
        >>> from loanasync.testing import rejected, scripted_client
        >>> shop = scripted_client(rejected({"postal_code": ["This value should not be blank."]}))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except RejectedError as error:
        ...     print([problem.field for problem in error.problems])
        ['postal_code']
    """

    def __str__(self) -> str:
        return self._says("mend these fields, then the call may be repeated")


class DomainError(RejectedError):
    """400 under ``domain``: the request is well formed and yet not possible (spec §7).

    Do not repeat it unchanged; its subclasses say what is in the way.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("The campaign has ended"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except DomainError as error:
        ...     print(*error.problems)
        domain: The campaign has ended
    """

    def __str__(self) -> str:
        return self._says("the request as it stands is not possible; do not repeat it unchanged")


class UserNotFoundError(DomainError):
    """400 "User not found": the fiscal code is wrong, or no request was created for it (spec §7).

    Check the code, and call `create_request` for it first.

    Example:
        >>> run(client.approve("TSTBRN00A00A000B", request))
        Traceback (most recent call last):
            ...
        loanasync.errors.UserNotFoundError: approve was answered with 400 (domain: User not found): check t...
    """

    def __str__(self) -> str:
        return self._says("check the fiscal code, and call create_request for it first")


class ShopNotAllowedError(DomainError):
    """400 "This sales point cannot apply for a loan" (spec §7). Ask the service to enable the shop.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("This sales point cannot apply for a loan"))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.errors.ShopNotAllowedError: approve was answered with 400 (domain: This sales point canno...
    """

    def __str__(self) -> str:
        return self._says("the service has to allow this shop to request loans; no retry helps")


class InvalidFiscalCodeError(DomainError):
    """400 "Invalid fiscalCode." (spec §7). Let the customer check the code.

    Example:
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("Invalid fiscalCode."))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.errors.InvalidFiscalCodeError: approve was answered with 400 (...): let the customer...
    """

    def __str__(self) -> str:
        return self._says("let the customer check the fiscal code")


@define(slots=False, repr=False)
class AlreadyEvaluatedError(DomainError):
    """400 "User already evaluated for approval" (spec §3): a decision exists, and this is not it.

    Do not ask for approval again: look the decision up where it was kept, or ask the service for it.

    Args:
        after_retry: True when an earlier attempt of this same call was answered with a 500: that attempt
            may be the evaluation, and its decision did not reach us. Ask the service for it by other
            means; do not treat the customer as refused.

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
        advice = "this customer was evaluated before; do not ask again"
        if self.after_retry:
            advice = (
                "an earlier attempt of this call, answered with a 500, may be the evaluation; "
                "its decision did not arrive: ask the service for it, do not ask for approval again"
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
        loanasync.errors.AccessDeniedError: approve was answered with 403 (Access denied): check shop_id an...
    """

    def __str__(self) -> str:
        return self._says("check shop_id and auth_token, and that base_url is the environment they belong to")


class CannotCompleteError(ServiceError):
    """409: the request cannot be completed (spec §4.1, §7). Do not repeat it.

    Example:
        >>> from loanasync.testing import conflict, scripted_client
        >>> shop = scripted_client(conflict())
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.errors.CannotCompleteError: approve was answered with 409 (The request cannot be complete...
    """

    def __str__(self) -> str:
        return self._says("the service cannot complete this request; do not repeat it")


@define(slots=False, repr=False)
class SystemFaultError(ServiceError):
    """500 to the last attempt (spec §7): the service failed, and what it did before is not known.

    Settle with the service what became of the request before it is repeated.

    Args:
        stopped_by: Why no further attempt was made: ``attempts``, ``deadline`` or ``quota``.

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
            "the service may have carried it out all the same, so repeat it only knowingly"
        )
        return self._says(advice, after_fault=advice)


class UnexpectedStatusError(ServiceError):
    """A status that spec §4 does not name for this call; redirects are among them, never followed.

    Check `base_url`, and what stands between this machine and the service. From 500 on, a gateway may have
    given up while the service went on: settle the outcome before the call is repeated.

    Example:
        >>> from loanasync.testing import reply, scripted_client
        >>> shop = scripted_client(reply(502))
        >>> run(shop.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.errors.UnexpectedStatusError: approve was answered with 502: the specification does not n...
    """

    def __str__(self) -> str:
        advice = "the specification does not name this status here; check base_url and what stands in between"
        if self.may_be_carried_out:
            advice += "; it may have been carried out all the same: settle its outcome before repeating it"
        return self._says(advice)


@define(slots=False, repr=False)
class UnexpectedReplyError(LoanError):
    """An answer came, and its content is outside the specification; nothing was guessed from it.

    Ask the service for what is missing, as `outcome` says; do not ask for approval again.

    Args:
        operation: The call.
        reasons: Where it is wrong, as paths such as ``approved: expected bool``; never values.
        outcome: ``refused`` when a 422, or ``approved`` when a 201, is not contradicted by its own body
            (spec §3: the status alone is final), ``done`` for a 200 of `complete` (spec §4.2: the data are
            saved), else ``unknown``.
        meta: Status, attempts, elapsed seconds and trace id.

    Example:
        >>> from loanasync.testing import reply, scripted_client
        >>> shop = scripted_client(reply(422, b"cut off"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except UnexpectedReplyError as error:
        ...     print(error.outcome, error.status)
        refused 422
    """

    operation: str
    reasons: tuple[str, ...]
    outcome: ReplyOutcome
    meta: Meta

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self.meta.status

    def __str__(self) -> str:
        known = {
            "approved": "by its status it is an approval: do not ask again, ask the service for the details",
            "refused": "by its status it is a refusal, which is final",
            "done": "the data are saved; the response could not be read",
            "unknown": "the outcome is not known; settle it with the service before repeating the call",
        }[self.outcome]
        reasons = "; ".join(self.reasons)
        return (
            f"{self.operation} was answered with {self.status} outside the specification ({reasons}): {known}"
        )
