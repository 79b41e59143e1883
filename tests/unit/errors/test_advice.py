"""The page that a shop shows after each error: `advice` and `text`."""

from typing import Any, assert_never, get_args

import pytest

from errors_page import ROWS, for_operation
from loanasync import LoanError, Meta, errors
from loanasync._display.texts import Advice

ENTRY = ("approve", "0123456789abcdef" * 4)
DATA_CALLS = ("create_request", "upload_documents", "complete")
LOST = "ConnectionLostError"


def answered(kind: Any, operation: str, status: int = 400, attempts: int = 1) -> LoanError:
    error: LoanError = kind(operation, (), Meta(status, attempts, 0.1))
    return error


def page_for(error: LoanError) -> str:  # noqa: PLR0911  (one line for each advice)
    """Match every advice in seven lines; mypy proves that none is missing."""
    match error.advice:
        case "correct_form":
            return "form"
        case "wait":
            return "check again"
        case "try_later":
            return "try again"
        case "ask_service":
            return "we will write"
        case "already_decided":
            return "decided"
        case "other_data":
            return "applied before"
        case "fix_setup":
            return "pay by card"
        case other:
            assert_never(other)


@pytest.mark.parametrize("operation", DATA_CALLS)
def test_lost_response_of_other_calls_is_not_a_lost_decision(operation: str) -> None:
    lost: list[LoanError] = [
        errors.ConnectionLostError(operation, LOST, "unknown", 1),
        errors.ReadTimeoutError(operation, LOST, "unknown", 1),
        errors.DeadlineExceededError(operation, LOST, "unknown", 1),
        answered(errors.SystemFaultError, operation, 500),
        answered(errors.UnexpectedStatusError, operation, 502),
        errors.UnexpectedResponseError(operation, (), "unknown", Meta(201, 1, 0.1)),
    ]
    assert {error.advice for error in lost} == {"try_later"}
    assert "decision" not in "".join(error.text() for error in lost)


@pytest.mark.parametrize("state", ["unknown", "lost", "held"])
def test_other_data_after_an_unknown_outcome_asks_the_service(state: str) -> None:
    assert errors.PayloadMismatchError(*ENTRY, state).advice == "ask_service"
    assert errors.PayloadMismatchError(*ENTRY, "inflight").advice == "other_data"


@pytest.mark.parametrize("kind", [errors.RejectedError, errors.UserNotFoundError])
def test_rejection_after_a_500_asks_the_service_about_an_approval(kind: Any) -> None:
    assert answered(kind, "approve").advice == "correct_form"
    assert answered(kind, "approve", attempts=2).advice == "ask_service"
    assert answered(kind, "complete", attempts=2).advice == "correct_form"


def test_deadline_of_an_approval_waits_only_with_a_ledger() -> None:
    lost = ("approve", "TimeoutError", "unknown", 1)
    assert errors.DeadlineExceededError(*lost, entry="c0ffee").advice == "wait"  # type: ignore[arg-type]
    assert errors.DeadlineExceededError(*lost).advice == "ask_service"  # type: ignore[arg-type]


def test_conflict_of_a_creation_asks_the_service_without_a_decision() -> None:
    error = answered(errors.CannotCompleteError, "create_request", 409)
    assert (error.advice, error.text()) == (
        "ask_service",
        "We could not process your data. We will contact you.",
    )


def test_every_error_has_a_page_and_a_text_in_each_language() -> None:
    shown: dict[str, set[str]] = {}
    for row in ROWS:
        for operation in ("approve", *DATA_CALLS):
            for error in for_operation(row, operation):
                assert page_for(error)
                texts = {error.text("en"), error.text("it-IT")}
                assert len(texts) == 2
                assert all(text.endswith(".") and text not in str(error) for text in texts)
                shown.setdefault(error.advice, set()).add(error.text("en"))
    assert shown.keys() == set(get_args(Advice))
    assert sum(map(len, shown.values())) > len(shown)


def test_text_in_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="pass 'en' or 'it'"):
        errors.ClientClosedError().text("de")
