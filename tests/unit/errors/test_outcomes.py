"""The attributes `outcome`, `repeatable` and `entry` of each error."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

import loanasync
from loanasync import LoanError, Meta, Problem, RetryPolicy, errors
from loanasync.errors import Outcome
from loanasync.ledger import MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    denied,
    not_connected,
    response,
    scripted_client,
)
from support.builders import FISCAL_CODE, approval_request
from support.response_reader import APPROVE, COMPLETE, read

PROBLEMS = (Problem("email", "email", "is taken"),)
ENTRY = ("approve", "0123456789abcdef" * 4)
REFUSED = loanasync.Refused(meta=Meta(status=422, attempts=1, elapsed=0.1))


def service(kind: type[errors.ServiceError], status: int) -> Callable[[int], LoanError]:
    return lambda attempts: kind("approve", PROBLEMS, Meta(status, attempts, 0.1))


def transport(kind: type[errors.TransportError], outcome: Any) -> Callable[[int], LoanError]:
    return lambda attempts: kind("approve", "TimeoutError", outcome, attempts)


def unexpected(outcome: Any) -> Callable[[int], LoanError]:
    meta = Meta(200, 1, 0.1)
    return lambda _: errors.UnexpectedResponseError("approve", (), outcome, meta, response=None)


def fixed(error: LoanError) -> Callable[[int], LoanError]:
    return lambda _: error


# Error factory, outcome after one attempt, outcome after two attempts, `repeatable`.
TABLE: list[tuple[Callable[[int], LoanError], Outcome, Outcome, bool]] = [
    (fixed(LoanError()), "not_sent", "not_sent", False),
    (fixed(errors.InvalidRequestError(PROBLEMS)), "not_sent", "not_sent", False),
    (fixed(errors.ConfigurationError("shop_id", "must be given")), "not_sent", "not_sent", False),
    (fixed(errors.ClientClosedError()), "not_sent", "not_sent", False),
    (fixed(errors.CircuitOpenError("approve", "unknown", 12.5)), "not_sent", "not_sent", True),
    (service(errors.ServiceError, 400), "unknown", "unknown", False),
    (service(errors.RejectedError, 400), "not_evaluated", "unknown", False),
    (service(errors.DomainError, 400), "unknown", "unknown", False),
    (service(errors.UserNotFoundError, 400), "not_evaluated", "unknown", False),
    (service(errors.ShopNotAllowedError, 400), "not_evaluated", "unknown", False),
    (service(errors.InvalidFiscalCodeError, 400), "not_evaluated", "unknown", False),
    (service(errors.AlreadyEvaluatedError, 400), "unknown", "unknown", False),
    (service(errors.AccessDeniedError, 403), "not_evaluated", "unknown", False),
    (service(errors.CannotCompleteError, 409), "unknown", "unknown", False),
    (service(errors.SystemFaultError, 500), "unknown", "unknown", False),
    (service(errors.UnexpectedStatusError, 404), "not_evaluated", "unknown", False),
    (service(errors.UnexpectedStatusError, 429), "not_evaluated", "unknown", False),
    (service(errors.UnexpectedStatusError, 303), "unknown", "unknown", False),
    (service(errors.UnexpectedStatusError, 502), "unknown", "unknown", False),
    (fixed(errors.DecisionForgottenError(*ENTRY, "approved")), "approved", "approved", False),
    (fixed(errors.DecisionForgottenError(*ENTRY, "refused")), "refused", "refused", False),
    (unexpected("unknown"), "unknown", "unknown", False),
    (unexpected("done"), "done", "done", False),
    *(
        row
        for kind in (
            errors.TransportError,
            errors.ConnectError,
            errors.PoolTimeoutError,
            errors.ReadTimeoutError,
            errors.ConnectionLostError,
            errors.DeadlineExceededError,
        )
        for row in (
            (transport(kind, "not_sent"), "not_sent", "not_sent", True),
            (transport(kind, "unknown"), "unknown", "unknown", False),
        )
    ),
    (fixed(errors.LedgerError(*ENTRY)), "not_sent", "not_sent", False),
    (fixed(errors.LedgerUnavailableError(*ENTRY, "OSError")), "not_sent", "not_sent", True),
    (fixed(errors.LedgerMismatchError(*ENTRY, "x.db", "is encrypted")), "not_sent", "not_sent", False),
    (fixed(errors.InFlightError(*ENTRY)), "unknown", "unknown", False),
    *(
        (fixed(errors.OutcomeUnknownError(*ENTRY, state, "")), "unknown", "unknown", False)
        for state in ("unknown", "lost", "held")
    ),
    (fixed(errors.PayloadMismatchError(*ENTRY, "approved")), "approved", "approved", False),
    (fixed(errors.PayloadMismatchError(*ENTRY, "refused")), "refused", "refused", False),
    *(
        (fixed(errors.PayloadMismatchError(*ENTRY, state)), "unknown", "unknown", False)
        for state in ("inflight", "unknown", "lost", "held")
    ),
    *(
        (fixed(errors.NotResolvedError(*ENTRY, state, "not_evaluated")), "unknown", "unknown", False)
        for state in ("missing", "inflight", "lost")
    ),
    (fixed(errors.NotResolvedError(*ENTRY, "approved", "refused")), "approved", "approved", False),
    (fixed(errors.NotResolvedError(*ENTRY, "refused", "approved")), "refused", "refused", False),
    *(
        (
            fixed(errors.DecisionNotRecordedError(*ENTRY, outcome, REFUSED, None, "OSError")),
            outcome,
            outcome,
            False,
        )
        for outcome in ("approved", "refused")
    ),
]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("make", "first", "later", "repeatable"), TABLE)
def test_error_has_its_outcome_and_repeatable(
    make: Callable[[int], LoanError], first: str, later: str, attempts: int, *, repeatable: bool
) -> None:
    error = make(attempts)
    assert error.outcome == (first if attempts == 1 else later)
    assert error.repeatable is repeatable
    assert error.outcome in get_args(Outcome)
    if repeatable:
        assert error.outcome == "not_sent", "a program may only repeat a call that was not sent"


def test_table_has_every_public_error() -> None:
    assert {type(make(1)).__name__ for make, *_ in TABLE} == set(errors.__all__)


async def failure(*steps: ScriptedResponse, **options: Any) -> LoanError:
    client = ScriptedTransport(*steps).client(**options)
    with pytest.raises(LoanError) as caught:
        await client.approve(FISCAL_CODE, approval_request(), retry=RetryPolicy(attempts=2))
    return caught.value


async def test_approve_error_has_its_entry_with_a_ledger_only() -> None:
    for step in (response(502), denied(), response(201, b""), connection_lost(), not_connected()):
        assert (await failure(step)).entry is None
        ledger = MemoryLedger()
        error = await failure(step, ledger=ledger)
        assert error.entry is not None
        found = await ledger.get(error.entry)
        assert found is not None
        assert error.entry == found.key


async def test_approve_decision_has_its_entry_with_a_ledger_only() -> None:
    assert (await scripted_client(approved()).approve(FISCAL_CODE, approval_request())).meta.entry is None
    ledger = MemoryLedger()
    client = scripted_client(approved(), ledger=ledger)
    decision = await client.approve(FISCAL_CODE, approval_request())
    again = await client.approve(FISCAL_CODE, approval_request())
    assert decision.meta.entry is not None
    assert await ledger.get(decision.meta.entry) is not None
    assert again.meta.entry == decision.meta.entry


async def test_ledger_errors_name_the_entry() -> None:
    ledger = MemoryLedger()
    client = scripted_client(connection_lost(), ledger=ledger)
    with pytest.raises(errors.ConnectionLostError) as lost:
        await client.approve(FISCAL_CODE, approval_request())
    with pytest.raises(errors.OutcomeUnknownError) as unknown:
        await client.approve(FISCAL_CODE, approval_request())
    with pytest.raises(errors.PayloadMismatchError) as mismatch:
        await client.approve(FISCAL_CODE, approval_request(amount=70_000))
    assert lost.value.entry == unknown.value.entry == mismatch.value.entry == unknown.value.key


def test_complete_200_with_unreadable_body_is_done() -> None:
    error = read(COMPLETE, 200, b"<html>")
    assert (type(error), error.outcome, error.repeatable) == (errors.UnexpectedResponseError, "done", False)
    assert read(APPROVE, 201, b"<html>").outcome == "unknown"
