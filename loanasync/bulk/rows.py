"""Rows of `approve_many`, and the result of each row: a decision or an error."""

from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from loanasync._display.masking import mask, masked_unless
from loanasync._models.requests import ApprovalRequest
from loanasync._results import Approved, Decision, Problem, Refused
from loanasync.errors import (
    DecisionNotRecordedError,
    InvalidRequestError,
    LoanError,
    RejectedError,
    TransportError,
)
from loanasync.errors.root import Outcome

Status: TypeAlias = Literal["approved", "refused", "rejected", "unknown", "error"]


@frozen
class Row:
    """An approval to request: the pair ``(fiscal_code, request)`` and optional arguments.

    Args:
        fiscal_code: The customer's fiscal code.
        request: What is to be financed, and for whom.
        additional_data_needed: Whether the service asked for the conditional block (spec §2.1).
        id: Yours, to find the row again, such as the order's number; not sent, masked when printed.

    Example:
        >>> from loanasync.bulk import Row
        >>> Row(fiscal_code, request, id="order 1042")
        Row(fiscal_code=***, request=ApprovalRequest(...), additional_data_needed=False, id=***)
    """

    fiscal_code: str = field(repr=mask)
    request: ApprovalRequest = field(repr=masked_unless(ApprovalRequest))
    additional_data_needed: bool = field(default=False, kw_only=True)
    id: object = field(default=None, kw_only=True, repr=mask)


RowLike: TypeAlias = Row | tuple[str, ApprovalRequest]


@frozen
class RowResult:
    """The result of one row of `LoanClient.approve_many`.

    ====================  =================================================  ===============================
    status                meaning                                            next step
    ====================  =================================================  ===============================
    ``approved``          `decision` is `Approved`                           redirect the customer
    ``refused``           `decision` is `Refused`                            none: a refusal is final
    ``rejected``          fields are wrong, found here or by the service;    correct `error.problems`
                          `outcome` is not_sent or not_evaluated
    ``unknown``           the service may have evaluated the customer;       ask the service for the outcome
                          `outcome` is unknown
    ``error``             any other `error`; see its `outcome`               see `error` and `repeatable`
    ====================  =================================================  ===============================

    A row whose `outcome` is ``not_sent`` or ``not_evaluated`` may be given again when the cause of its error
    is corrected; only a `repeatable` row may be given again unchanged.

    Args:
        index: The row's place among the rows, from 0.
        row: What was given.
        status: As above.
        decision: The service's decision.
        error: The reason why there is no decision, or why a ledger could not store it; without traceback.

    Example:
        >>> from loanasync.bulk import Row
        >>> async def asked(rows):
        ...     return [result async for result in client.approve_many(rows, ordered=True)]
        >>> good, bad = run(asked([Row(fiscal_code, request, id="order 1042"), ("RSSMRA", request)]))
        >>> good.id, good.status, good.outcome, good.is_decided, good.request.amount
        ('order 1042', 'approved', 'approved', True, 45000)
        >>> bad.fiscal_code, bad.status, bad.outcome, bad.repeatable
        ('RSSMRA', 'rejected', 'not_sent', False)
    """

    index: int
    row: RowLike = field(repr=mask)
    status: Status
    decision: Decision | None = None
    error: Exception | None = field(
        default=None, repr=lambda error: "None" if error is None else type(error).__name__
    )

    @property
    def id(self) -> object:
        """The `Row.id`; None for a pair."""
        return self.row.id if isinstance(self.row, Row) else None

    @property
    def fiscal_code(self) -> str:
        """The customer's code, as it was given; empty if `row` is neither a `Row` nor a pair."""
        code: str = self._members[0]
        return code

    @property
    def request(self) -> ApprovalRequest:
        """The request as it was given; None if `row` is neither a `Row` nor a pair."""
        request: ApprovalRequest = self._members[1]
        return request

    @property
    def _members(self) -> tuple[Any, Any]:
        if isinstance(self.row, Row):
            return self.row.fiscal_code, self.row.request
        return self.row if _is_pair(self.row) else ("", None)

    @property
    def is_decided(self) -> bool:
        """Whether the service has approved or refused, and this is known."""
        return self.status in ("approved", "refused")

    @property
    def outcome(self) -> Outcome:
        """The outcome of the decision or of the error, as in `LoanError`.

        It is ``unknown`` for an error that is not one of this package's.
        """
        if self.decision is not None:
            return "approved" if self.decision.approved else "refused"
        return self.error.outcome if isinstance(self.error, LoanError) else "unknown"

    @property
    def repeatable(self) -> bool:
        """True if a program may send the same row again unchanged."""
        return self.decision is None and isinstance(self.error, LoanError) and self.error.repeatable

    def _repr_html_(self) -> str:
        from loanasync._display import notebook  # noqa: PLC0415  (in a notebook only)

        amounts = (getattr(self.decision, name, None) for name in ("amount", "net_amount"))
        error = "" if self.error is None else type(self.error).__name__
        if isinstance(self.error, LoanError):  # the text of another error may be personal
            error += f": {self.error}"
        row = (self.index, self.status, *map(notebook.euro, amounts), error)
        return notebook.table("Result of a row", ("row", "status", "amount", "net amount", "error"), [row])


_PAIR = 2


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == _PAIR


def arguments_of(row: RowLike) -> tuple[str, ApprovalRequest, bool]:
    """Return the fiscal code, the request, and whether the conditional block is needed.

    Raises:
        InvalidRequestError: It is neither a `Row` nor a pair.
    """
    if isinstance(row, Row):
        return row.fiscal_code, row.request, row.additional_data_needed
    if _is_pair(row):
        return (*row, False)
    wrong = f"must be a Row or a pair (fiscal_code, ApprovalRequest), not {type(row).__name__}"
    raise InvalidRequestError((Problem("row", "", wrong),))


def result_of(index: int, row: RowLike, answer: Decision | BaseException) -> RowResult:
    """Return a row's result, by its decision or by the exception that its call ended with."""
    if isinstance(answer, Approved | Refused):
        return RowResult(index, row, _status_of(answer), answer)
    error = answer if isinstance(answer, Exception) else _given_up(answer)
    # Its frames know the customer, and a result may be kept for long.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    # Decided, and only not written to the ledger: this may be the only copy of the decision.
    if isinstance(error, DecisionNotRecordedError):
        return RowResult(index, row, _status_of(error.decision), error.decision, error)
    return RowResult(index, row, _status_without_decision(error), None, error)


def _given_up(cancellation: BaseException) -> TransportError:
    """Return the error of a cancelled call; its request may have been sent."""
    return TransportError("approve", type(cancellation).__name__, "unknown", 1)


def _status_of(decision: Decision) -> Status:
    return "approved" if decision.approved else "refused"


def _status_without_decision(error: Exception) -> Status:
    outcome = error.outcome if isinstance(error, LoanError) else "unknown"
    if outcome == "unknown":
        return "unknown"
    return "rejected" if isinstance(error, InvalidRequestError | RejectedError) else "error"
