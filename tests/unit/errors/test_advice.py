"""The page that a shop shows after each error: `advice` and `text`."""

from typing import Any, get_args

import pytest

from errors_page import ROWS, for_operation
from loanasync import LoanError, Meta, errors
from loanasync._display.texts import Advice

ENTRY = ("approve", "0123456789abcdef" * 4)
DATA_CALLS = ("create_request", "upload_documents", "complete")
LOST = "ConnectionLostError"
CORRECTABLE = (errors.RejectedError, errors.UserNotFoundError)


def answered(kind: Any, operation: str, status: int = 400, attempts: int = 1) -> LoanError:
    error: LoanError = kind(operation, (), Meta(status, attempts, 0.1))
    return error


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


MISMATCH, LATE = errors.PayloadMismatchError, ("approve", "TimeoutError", "unknown", 1)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        *((MISMATCH(*ENTRY, state), "ask_service") for state in ("unknown", "lost", "held")),
        *((MISMATCH(*ENTRY, state), "other_data") for state in ("inflight", "approved")),
        *((answered(kind, "approve"), "correct_form") for kind in CORRECTABLE),
        *((answered(kind, "approve", attempts=2), "ask_service") for kind in CORRECTABLE),
        *((answered(kind, "complete", attempts=2), "correct_form") for kind in CORRECTABLE),
        *((answered(errors.UnexpectedStatusError, "complete", code), "ask_service") for code in (302, 409)),
        (errors.DeadlineExceededError(*LATE, entry="c0ffee"), "wait"),  # type: ignore[arg-type]
        (errors.DeadlineExceededError(*LATE), "ask_service"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_advice_depends_on_state_attempts_and_ledger(error: LoanError, advice: str) -> None:
    assert error.advice == advice


def test_every_error_has_a_page_and_a_text_in_each_language() -> None:
    shown: dict[str, set[str]] = {}
    for row in ROWS:
        for operation in ("approve", *DATA_CALLS):
            for error in for_operation(row, operation):
                texts = {error.text("en"), error.text("it-IT")}
                assert len(texts) == 2
                assert all(text.endswith(".") and text not in str(error) for text in texts)
                shown.setdefault(error.advice, set()).add(error.text("en"))
    assert shown.keys() == set(get_args(Advice))
    assert sum(map(len, shown.values())) > len(shown)
