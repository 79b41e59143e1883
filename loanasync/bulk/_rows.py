"""Rows of a bulk, and what became of each: a decision, or why there is none."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import field, frozen

from loanasync._decisions import Approved, Decision, Refused
from loanasync._display import mask, masked_unless
from loanasync._meta import Problem
from loanasync._models import ApprovalRequest
from loanasync._outcome import outcome_of
from loanasync.errors import (
    AlreadyEvaluatedError,
    CannotCompleteError,
    DecisionNotRecordedError,
    InvalidRequestError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    RejectedError,
    TransportError,
)

if TYPE_CHECKING:
    from loanasync._html import Tone

__all__ = ["Row", "RowLike", "RowResult", "Status", "no_row", "result_of"]

Status: TypeAlias = Literal["approved", "refused", "rejected", "unknown", "error"]


@frozen
class Row:
    """One customer to ask for: as much as the pair ``(fiscal_code, request)``, and room for more.

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
    """What became of one row of `LoanClient.approve_many`.

    ====================  =====================================================  =========================
    status                what happened                                          what to do
    ====================  =====================================================  =========================
    ``approved``          `decision` is `Approved`                               send the customer on
    ``refused``           `decision` is `Refused`, or None where the body of     nothing: it is final
                          the refusal could not be read (see `error`)
    ``rejected``          rules are broken, found here or by the service         see `error.problems`
    ``unknown``           it may have been decided, and the answer is not here   settle it with the service
    ``error``             turned away or never sent; nothing was decided         see `error`, ask again
    ====================  =====================================================  =========================

    Args:
        index: The row's place among the rows, from 0.
        row: What was given.
        status: As above.
        decision: The service's decision.
        error: Why there is none, or why a ledger could not keep it; without traceback.

    Example:
        >>> from loanasync.bulk import Row
        >>> async def asked(rows):
        ...     return [result async for result in client.approve_many(rows, ordered=True)]
        >>> good, bad = run(asked([Row(fiscal_code, request, id="order 1042"), ("RSSMRA", request)]))
        >>> good.id, good.status, good.is_decided, good.request.amount
        ('order 1042', 'approved', True, 45000)
        >>> bad.fiscal_code, bad.status, bad.may_be_repeated
        ('RSSMRA', 'rejected', True)
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
        """The customer's code, as it was given."""
        return self.row.fiscal_code if isinstance(self.row, Row) else self.row[0]

    @property
    def request(self) -> ApprovalRequest:
        """What was asked."""
        return self.row.request if isinstance(self.row, Row) else self.row[1]

    @property
    def is_decided(self) -> bool:
        """Whether the service has approved or refused, and this is known."""
        return self.status in ("approved", "refused")

    @property
    def may_be_repeated(self) -> bool:
        """Whether the row may be given again, mended where need be, since nobody was evaluated for it."""
        final = isinstance(self.error, AlreadyEvaluatedError | CannotCompleteError | PayloadMismatchError)
        return self.status in ("rejected", "error") and not final

    def _repr_html_(self) -> str:
        from loanasync import _html as html  # noqa: PLC0415  (in a notebook only)

        ours = [
            each for each in (self.decision, self.error) if isinstance(each, Approved | Refused | LoanError)
        ]
        # What an error that is not ours says may be anybody's.
        foreign = self.error is not None and not isinstance(self.error, LoanError)
        said = type(self.error).__name__ if foreign else ""
        return html.card(f"Row {self.index}: {self.status}", _TONES[self.status], said=said, inside=ours)


_TONES: "dict[Status, Tone]" = {
    "approved": "good", "refused": "bad", "rejected": "bad", "unknown": "doubt", "error": "bad"
}  # fmt: skip


def no_row(value: object) -> InvalidRequestError:
    """What is wrong with something that is no row."""
    wrong = f"must be a Row or a pair (fiscal_code, ApprovalRequest), not {type(value).__name__}"
    return InvalidRequestError((Problem("row", "", wrong),))


def result_of(index: int, row: RowLike, answer: Decision | BaseException) -> RowResult:
    """A row's result, by its decision or by the exception that its call ended with."""
    if isinstance(answer, Approved):
        return RowResult(index, row, "approved", answer)
    if isinstance(answer, Refused):
        return RowResult(index, row, "refused", answer)
    error = answer if isinstance(answer, Exception) else _given_up(answer)
    # Its frames know the customer, and a result may be kept for long.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    # Decided, and only not written down: this may be the only copy of the decision.
    decision = error.decision if isinstance(error, DecisionNotRecordedError) else None
    if decision is not None:
        return RowResult(index, row, "approved" if decision.approved else "refused", decision, error)
    return RowResult(index, row, _status(error), None, error)


def _given_up(cancellation: BaseException) -> TransportError:
    """How often a cancelled call was sent is not known: it may have been."""
    return TransportError("approve", type(cancellation).__name__, "maybe", 1)


def _status(error: Exception) -> Status:
    if isinstance(error, InvalidRequestError):
        return "rejected"
    if isinstance(error, OutcomeUnknownError):  # of a call before this one
        return "unknown"
    match outcome_of(error, attempts=1):  # of an error that is not ours, nobody knows when it was raised
        case "refused":
            return "refused"
        case "approved" | "unknown":  # an approval that could not be read has lost where to send the customer
            return "unknown"
    return "rejected" if isinstance(error, RejectedError) else "error"
