"""`RowResult`: its flat row, and the display of customers who were decided before."""

from typing import Any

import attrs
import pytest

from loanasync import Approved, LoanError, Meta, Problem, Refused, errors
from loanasync.bulk import Row, RowResult
from loanasync.bulk.rows import result_of
from loanasync.bulk.summary import Tally
from support.builders import FISCAL_CODE, approval_request

META = Meta(status=201, attempts=2, elapsed=0.5, trace_id="7" * 32, entry="c0ffee")
DECISION = Approved(
    amount=45_000, net_amount=43_650, instalments=12, redirect_url="https://pay.example.com/#t", meta=META
)


def result(outcome: Approved | Refused | LoanError, **changes: Any) -> RowResult:
    return result_of(3, Row(FISCAL_CODE, approval_request(**changes), id="A0001"), outcome)


def test_row_of_a_decision_is_flat_and_not_personal() -> None:
    approved = result(DECISION)
    row = {
        "index": 3, "id": "A0001", "status": "approved", "outcome": "approved", "repeatable": False,
        "sent": True, "at": approved.at,
        "amount": 45_000, "net_amount": 43_650, "instalments": 12, "error": None, "message": None,
        "entry": "c0ffee", "attempts": 2, "elapsed": 0.5, "trace_id": "7" * 32,
    }  # fmt: skip
    assert approved.as_row() == row
    personal = {"fiscal_code": FISCAL_CODE, "redirect_url": "https://pay.example.com/#t"}
    assert approved.as_row(personal=True) == row | personal
    refused = result(Refused(net_amount=1, meta=META), amount=70_000).as_row(personal=True)
    assert (refused["status"], refused["amount"], refused["redirect_url"]) == ("refused", 70_000, None)
    assert refused["net_amount"] is None, "the shop receives nothing"


def test_error_of_a_row_keeps_no_other_exception() -> None:
    """Exceptions and frames of a user's token function or transport may contain personal data."""
    error = errors.ConnectError("approve", "OSError", "not_sent", 1)
    try:
        int("Anna")
    except ValueError as other:
        with pytest.raises(errors.ConnectError):
            raise error from other
    kept = result(error).error
    assert kept is error
    assert (kept.__cause__, kept.__context__, kept.__traceback__) == (None, None, None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ConnectError("approve", "OSError", "not_sent", 1), {"repeatable": True, "attempts": 1}),
        (errors.ConnectionLostError("approve", "OSError", "unknown", 2, "7" * 32, "c0ffee"), {
            "status": "unknown", "outcome": "unknown", "attempts": 2, "trace_id": "7" * 32, "entry": "c0ffee",
        }),
        (errors.DomainError("approve", (), META), {"attempts": 2, "elapsed": 0.5, "trace_id": "7" * 32}),
        (errors.InvalidRequestError((Problem("amount", "amount", "must be less"),)), {
            "status": "rejected", "amount": 45_000, "attempts": None, "elapsed": None, "entry": None,
        }),
        (errors.PayloadMismatchError("approve", "c0ffee", "inflight"), {"entry": "c0ffee", "attempts": None}),
        (errors.DecisionNotRecordedError("approve", "c0ffee", "approved", DECISION, None, "OSError"), {
            "status": "approved", "net_amount": 43_650,
        }),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_row_of_an_error_has_its_message_and_facts(error: LoanError, expected: dict[str, Any]) -> None:
    row = result(error).as_row(personal=True)
    assert row | expected == row
    assert (row["error"], row["message"]) == (type(error).__name__, str(error))
    assert (row["amount"], row["fiscal_code"]) == (45_000, FISCAL_CODE)


def test_result_knows_whether_its_call_sent_a_request() -> None:
    sent: list[Approved | LoanError] = [
        DECISION, errors.ConnectionLostError("approve", "OSError", "unknown", 1),
        errors.DomainError("approve", (), META),
        errors.DecisionNotRecordedError("approve", "c0ffee", "approved", DECISION, None, "OSError"),
    ]  # fmt: skip
    not_sent: list[Approved | LoanError] = [
        attrs.evolve(DECISION, meta=attrs.evolve(META, attempts=0)),
        errors.InvalidRequestError(()), errors.ConnectError("approve", "OSError", "not_sent", 1),
        errors.OutcomeUnknownError("approve", "c0ffee", "lost", ""),
    ]  # fmt: skip
    assert [result(outcome).sent for outcome in (*sent, *not_sent)] == [True] * 4 + [False] * 4


@pytest.mark.parametrize("row", [None, {"fiscal_code": FISCAL_CODE}, (FISCAL_CODE, None)])
def test_row_that_is_no_row_has_no_amount(row: Any) -> None:
    flat = result_of(0, row, errors.InvalidRequestError(())).as_row(personal=True)
    assert (flat["id"], flat["amount"], flat["redirect_url"]) == (None, None, None)


def test_amount_that_is_no_int_is_not_in_the_row() -> None:
    for amount in ("450", 450.0, True, None):
        assert result(errors.InvalidRequestError(()), amount=amount).as_row()["amount"] is None


DECIDED_BEFORE: list[LoanError] = [
    errors.AlreadyEvaluatedError("approve", (), META),
    errors.PayloadMismatchError("approve", "c0ffee", "approved"),
    errors.PayloadMismatchError("approve", "c0ffee", "refused"),
    errors.OutcomeUnknownError("approve", "c0ffee", "lost", ""),
]
OPEN: list[LoanError] = [
    errors.DomainError("approve", (), META),
    errors.PayloadMismatchError("approve", "c0ffee", "inflight"),
    errors.OutcomeUnknownError("approve", "c0ffee", "unknown", ""),
    errors.OutcomeUnknownError("approve", "c0ffee", "held", ""),
    errors.ConnectError("approve", "OSError", "not_sent", 1),
]


UNRECORDED = errors.DecisionNotRecordedError("approve", "c0ffee", "approved", DECISION, None, "OSError")


@pytest.mark.parametrize(
    ("outcome", "is_shown"),
    [
        *((error, True) for error in DECIDED_BEFORE),
        *((outcome, False) for outcome in (*OPEN, DECISION, UNRECORDED)),
        (attrs.evolve(DECISION, meta=attrs.evolve(META, attempts=0)), False),
    ],
)
def test_customer_decided_before_is_shown_as_already_decided(
    outcome: Approved | LoanError, *, is_shown: bool
) -> None:
    again = result(outcome)
    shown = "already decided" if is_shown else again.status
    assert (again.already_decided, again.as_row()["status"]) == (is_shown, shown)
    assert f">{shown}</td>" in again._repr_html_()
    assert again.as_row()["outcome"] == getattr(outcome, "outcome", "approved")


def test_summary_counts_customers_decided_before() -> None:
    tally = Tally()
    outcomes: list[Approved | LoanError] = [DECISION, *DECIDED_BEFORE, *OPEN]
    for outcome in outcomes:
        tally.add(result(outcome))
    summary = tally.summary()
    assert (summary.already_decided, summary.unknown, summary.failed, summary.not_sent, summary.rows) == (
        4,
        6,
        2,
        1,
        10,
    )
    counts = "<Summary of 10 rows: 1 approved, 6 unknown, 2 failed, 1 not_sent, 4 of them already decided; "
    assert repr(summary).startswith(counts)
    assert "<strong>Summary of 10 rows, 4 of them already decided</strong>" in summary._repr_html_()
    assert "already decided" not in repr(Tally().summary()) + Tally().summary()._repr_html_()
