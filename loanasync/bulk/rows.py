"""Rows of `approve_many`, and the result of each row: a decision or an error."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, cast, get_args

from attrs import field, frozen

from loanasync._models.decisions import OTHER_ORDER, Approved, Decision, Problem, Refused
from loanasync._models.masking import MaskedPairs, mask, masked_unless
from loanasync._models.requests import ApprovalRequest
from loanasync.bulk.records import InputProblem
from loanasync.errors import (
    AlreadyEvaluatedError,
    DecisionForgottenError,
    DecisionNotRecordedError,
    InvalidRequestError,
    LoanError,
    Outcome,
    OutcomeUnknownError,
    RejectedError,
    TransportError,
)

Status: TypeAlias = Literal["approved", "refused", "rejected", "unknown", "failed", "not_sent"]
STATUSES: tuple[Status, ...] = get_args(Status)
_DECIDED = ("approved", "refused")


@frozen(repr=False)
class Row:
    """An approval to request: the pair ``(fiscal_code, request)`` with optional settings.

    Args:
        fiscal_code: The customer's fiscal code.
        request: The order and the customer's data.
        additional_data_needed: True if the service asked for the conditional block (spec §2.1).
        order_id: Number of the order, as in `LoanClient.approve`.
        id: Any value of your own that identifies the row, such as an order number. It is not sent. Do not
            use a personal value: it is shown in ``repr``, tables and data frames.

    Example:
        >>> from loanasync.bulk import Row
        >>> Row(fiscal_code, request, id="order 1042")
        Row(id='order 1042', fiscal_code=***, request=ApprovalRequest(...))
    """

    fiscal_code: str = field(repr=mask)
    request: ApprovalRequest = field(repr=masked_unless(ApprovalRequest))
    additional_data_needed: bool = field(default=False, kw_only=True)
    id: object = field(default=None, kw_only=True)
    order_id: str = field(default="", kw_only=True)

    def __repr__(self) -> str:
        request = masked_unless(ApprovalRequest)(self.request)
        return (
            f"{type(self).__name__}(id={self.id!r}, fiscal_code={mask(self.fiscal_code)}, request={request})"
        )


@frozen(repr=False)
class FileRow(Row):
    """A row of an input file. A row with `problems` is not sent: `approve_many` reports it as ``rejected``.

    Args:
        line: Number of the line on which the row began.
        problems: All problems of the row.
        members: The columns or members as they are in the file.

    Example:
        >>> from loanasync.bulk import FileRow, InputProblem
        >>> wrong = InputProblem("orders.csv", 3, "", "amount", "must be a whole number, digits only")
        >>> row = FileRow(fiscal_code, request, line=3, problems=(wrong,))
        >>> result = run(anext(client.approve_many([row])))
        >>> result.status, result.row.line, result.error.problems[0].field
        ('rejected', 3, 'amount')
    """

    line: int = field(default=0, kw_only=True)
    problems: tuple[InputProblem, ...] = field(default=(), kw_only=True)
    members: Mapping[str, object] = field(factory=dict, kw_only=True, repr=mask)


RowLike: TypeAlias = Row | tuple[str, ApprovalRequest]


@frozen(repr=False)
class RowResult(MaskedPairs):
    """The result of one row of `LoanClient.approve_many`.

    ============  ==============================  ====================================================
    status        outcome                         meaning and next step
    ============  ==============================  ====================================================
    ``approved``  approved                        `decision` is `Approved`: redirect the customer
    ``refused``   refused                         `decision` is `Refused`, which is final
    ``rejected``  not_sent, not_evaluated         wrong fields: correct `error.problems`
    ``unknown``   unknown                         the service may have evaluated the customer: ask it
    ``failed``    not_evaluated, approved,        not evaluated, or decided earlier with other data or for
                  refused, unknown                another order, or the customer was erased: see `error`
    ``not_sent``  not_sent                        no request was sent: see `error` and `repeatable`
    ============  ==============================  ====================================================

    A row whose `outcome` is ``not_sent`` or ``not_evaluated`` may be sent again after the cause of its error
    was corrected. Only a `repeatable` row may be sent again unchanged.

    Args:
        index: Number of the row, from 0.
        row: The `Row` or pair that was passed to `approve_many`.
        status: See the table.
        decision: The service's decision, if there is one.
        error: The error that left the row without a decision, or the ledger's error when the decision could
            not be recorded. It has no traceback. A cancelled call, and an exception that is not a
            `LoanError`, are a `TransportError` with an unknown outcome and the exception as `cause_type`.
        at: Time at which the result arrived.

    Example:
        >>> from loanasync.bulk import Row
        >>> async def read_all(rows):
        ...     return [result async for result in client.approve_many(rows)]
        >>> bad, good = run(read_all([("RSSMRA", request), Row(fiscal_code, request, id="order 1042")]))
        >>> good
        <RowResult: approved, id='order 1042', index=1>
        >>> good.outcome, good.is_decided, good.sent, good.request.amount
        ('approved', True, True, 45000)
        >>> bad
        <RowResult: rejected, id=None, index=0, error=InvalidRequestError>
        >>> bad.fiscal_code, bad.outcome, bad.sent, bad.repeatable
        ('RSSMRA', 'not_sent', False, False)
    """

    index: int
    row: RowLike = field(repr=mask)
    status: Status
    decision: Decision | None = None
    error: LoanError | None = field(
        default=None, repr=lambda error: "None" if error is None else type(error).__name__
    )
    at: datetime = field(factory=lambda: datetime.now(UTC), eq=False, kw_only=True)

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={type(self.error).__name__}"
        return f"<RowResult: {self.status}, id={self.id!r}, index={self.index}{error}>"

    @property
    def id(self) -> object:
        """The `Row.id`, or None for a pair."""
        row = _row_of(self.row)
        return None if row is None else row.id

    @property
    def fiscal_code(self) -> str:
        """The fiscal code of the row, unchanged. Empty if `row` is neither a `Row` nor a pair."""
        row = _row_of(self.row)
        return "" if row is None else row.fiscal_code

    @property
    def request(self) -> ApprovalRequest:
        """The request of the row. None if `row` is neither a `Row` nor a pair."""
        row = _row_of(self.row)
        return cast("ApprovalRequest", None if row is None else row.request)

    @property
    def is_decided(self) -> bool:
        """True if the service has approved or refused the request."""
        return self.status in _DECIDED

    @property
    def outcome(self) -> Outcome:
        """The outcome, as in `LoanError.outcome`."""
        if self.decision is not None:
            return "approved" if self.decision.approved else "refused"
        return "unknown" if self.error is None else self.error.outcome

    @property
    def sent(self) -> bool:
        """True if this call may have sent a request. False if a ledger or the client knew the outcome."""
        source = self.error if self.decision is None else self.decision
        meta = getattr(source, "meta", source)
        return self.outcome != "not_sent" and bool(getattr(meta, "attempts", 0))

    @property
    def repeatable(self) -> bool:
        """True if a program may send the same row again unchanged."""
        return self.decision is None and self.error is not None and self.error.repeatable

    @property
    def already_decided(self) -> bool:
        """True if `error` says that the service decided earlier. This result does not have that decision.

        For example, a new client without a ledger runs the same rows again. Ask the service for the decision,
        or call with the original data. Tables show ``already decided`` as the status of this row.

        Example:
            >>> async def read_one(shop):
            ...     return await anext(shop.approve_many([(fiscal_code, request)]))
            >>> first, restarted = run(read_one(client)), sandbox.client()
            >>> again = run(read_one(restarted))
            >>> first.status, again.status, again.already_decided
            ('approved', 'unknown', True)
            >>> run(restarted.aclose())
        """
        if self.decision is not None or self.error is None:
            return False
        is_lost = isinstance(self.error, OutcomeUnknownError) and self.error.state == "lost"
        return is_lost or isinstance(self.error, AlreadyEvaluatedError) or self.outcome in _DECIDED

    @property
    def _shown_status(self) -> str:
        return "already decided" if self.already_decided else self.status

    def as_row(self, *, personal: bool = False) -> dict[str, Any]:
        """Return the result as a flat dict, for a table. By default it contains no personal data.

        ``id`` is the `Row.id`. ``status`` is `status`, or ``already decided`` (see
        `already_decided`). ``amount`` is the requested amount if the service returned none. Values that are
        not known are None.

        Args:
            personal: Add ``fiscal_code`` and ``redirect_url``. Do not save them with a notebook.

        Example:
            >>> async def read_all(rows):
            ...     return [result async for result in client.approve_many(rows)]
            >>> [result] = run(read_all([(fiscal_code, request)]))
            >>> row = result.as_row()
            >>> row["status"], row["amount"], row["net_amount"], row["error"]
            ('approved', 45000, 43650, None)
            >>> result.as_row(personal=True).keys() - row.keys() == {"fiscal_code", "redirect_url"}
            True
        """
        decision, error = self.decision, self.error
        source = error if decision is None else decision
        meta = getattr(source, "meta", source)  # errors without a response have some of these attributes
        requested = getattr(self.request, "amount", None)
        row = {
            "index": self.index,
            "id": self.id,
            "status": self._shown_status,
            "outcome": self.outcome,
            "repeatable": self.repeatable,
            "sent": self.sent,
            "at": self.at,
            "amount": getattr(decision, "amount", None) or (requested if type(requested) is int else None),
            "net_amount": self._net_amount,
            "instalments": getattr(decision, "instalments", None),
            "error": None if error is None else type(error).__name__,
            "message": None if error is None else str(error),
            **{name: getattr(meta, name, None) for name in ("entry", "attempts", "elapsed", "trace_id")},
        }
        if personal:
            row |= {"fiscal_code": self.fiscal_code, "redirect_url": getattr(decision, "redirect_url", None)}
        return row

    @property
    def _net_amount(self) -> int | None:
        return self.decision.net_amount if isinstance(self.decision, Approved) else None

    def _repr_html_(self) -> str:
        from loanasync._models import notebook  # noqa: PLC0415  (only notebooks need it)

        amounts = (getattr(self.decision, "amount", None), self._net_amount)
        error = "" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        name = self.index if self.id is None else self.id
        row = (self._shown_status, name, *map(notebook.euro, amounts), error)
        return notebook.table("Result of a row", ("status", "row", "amount", "net amount", "error"), [row])


def _row_of(row: object) -> Row | None:
    """Return a row, or the row of a pair; None if it is neither."""
    if isinstance(row, tuple) and len(row) == 2:  # noqa: PLR2004  (a pair)
        return Row(*row)
    return row if isinstance(row, Row) else None


def arguments_of(row: RowLike) -> tuple[str, ApprovalRequest, bool, str]:
    """Return the fiscal code, the request, `additional_data_needed` and the order of a row.

    Raises:
        InvalidRequestError: The row is neither a `Row` nor a pair, or has problems of an input file.
    """
    if isinstance(row, FileRow) and row.problems:
        raise InvalidRequestError(
            tuple(Problem(each.field, each.column, each.message, each.code) for each in row.problems)
        )
    if (found := _row_of(row)) is not None:
        return found.fiscal_code, found.request, found.additional_data_needed, found.order_id
    wrong = f"must be a Row or a pair (fiscal_code, ApprovalRequest), not {type(row).__name__}"
    raise InvalidRequestError((Problem("row", "", wrong, "row.object"),))


def result_of(index: int, row: RowLike, outcome: Decision | BaseException) -> RowResult:
    """Return the result of a row from its decision, or from the exception that its call raised."""
    if isinstance(outcome, Approved | Refused):
        return RowResult(index, row, _status_of(outcome), outcome)
    error = outcome if isinstance(outcome, LoanError) else _error_of(outcome)
    # The frames of a traceback contain personal data, and a result may be kept for a long time.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    # The service decided and the ledger could not record it: this may be the only copy of the decision.
    if isinstance(error, DecisionNotRecordedError):
        return RowResult(index, row, _status_of(error.decision), error.decision, error)
    return RowResult(index, row, _status_without_decision(error), None, error)


def _error_of(exception: BaseException) -> TransportError:
    """Return the error for a cancelled call, or for a defect. Its request may have been sent.

    The text of the exception may contain personal data, so only its type is kept.
    """
    return TransportError("approve", type(exception).__name__, "unknown", 1)


def _status_of(decision: Decision) -> Status:
    return "approved" if decision.approved else "refused"


def _status_without_decision(error: LoanError) -> Status:
    if error.outcome == "unknown":
        is_final = getattr(error, "note", "") == OTHER_ORDER or isinstance(error, DecisionForgottenError)
        return "failed" if is_final else "unknown"
    if isinstance(error, InvalidRequestError | RejectedError):
        return "rejected"
    return "not_sent" if error.outcome == "not_sent" else "failed"
