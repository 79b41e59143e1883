"""The attributes `outcome`, `repeatable` and `entry` of each error."""

from typing import Any, get_args

import pytest

import loanasync
from loanasync import LoanError, Meta, RetryPolicy, errors
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

ENTRY = ("approve", "0123456789abcdef" * 4)
REFUSED = loanasync.Refused(meta=Meta(status=422, attempts=1, elapsed=0.1))


def service(kind: type[errors.ServiceError], status: int, attempts: int = 1) -> LoanError:
    return kind("approve", (), Meta(status, attempts, 0.1))


def unexpected(outcome: Any) -> LoanError:
    return errors.UnexpectedResponseError("approve", (), outcome, Meta(200, 1, 0.1))


PROVING: list[tuple[type[errors.ServiceError], int]] = [  # unless an earlier attempt has failed
    (errors.RejectedError, 400), (errors.UserNotFoundError, 400), (errors.ShopNotAllowedError, 400),
    (errors.InvalidFiscalCodeError, 400), (errors.AccessDeniedError, 403),
    (errors.UnexpectedStatusError, 404), (errors.UnexpectedStatusError, 429),
]  # fmt: skip
NOT_PROVING: list[tuple[type[errors.ServiceError], int]] = [
    (errors.ServiceError, 400), (errors.DomainError, 400), (errors.AlreadyEvaluatedError, 400),
    (errors.CannotCompleteError, 409), (errors.SystemFaultError, 500),
    (errors.UnexpectedStatusError, 303), (errors.UnexpectedStatusError, 502),
]  # fmt: skip
WITHOUT_RESPONSE: list[type[errors.TransportError]] = [
    errors.TransportError, errors.ConnectError, errors.PoolTimeoutError, errors.ReadTimeoutError,
    errors.ConnectionLostError, errors.DeadlineExceededError,
]  # fmt: skip
# Errors by their outcome.
TABLE: dict[Outcome, list[LoanError]] = {
    "not_sent": [
        LoanError(),
        errors.InvalidRequestError(()),
        errors.ConfigurationError("shop_id", "must be given"),
        errors.ClientClosedError(),
        errors.CircuitOpenError("approve", "unknown", 12.5),
        *(kind("approve", "TimeoutError", "not_sent", 1) for kind in WITHOUT_RESPONSE),
        errors.LedgerError(*ENTRY),
        errors.LedgerUnavailableError(*ENTRY, "OSError"),
        errors.LedgerMismatchError(*ENTRY, "x.db", "is encrypted"),
    ],
    "not_evaluated": [service(*row) for row in PROVING],
    "unknown": [
        *(service(*row, attempts=2) for row in PROVING),
        *(service(*row, attempts=attempts) for row in NOT_PROVING for attempts in (1, 2)),
        unexpected("unknown"),
        *(kind("approve", "TimeoutError", "unknown", 1) for kind in WITHOUT_RESPONSE),
        errors.InFlightError(*ENTRY),
        *(errors.OutcomeUnknownError(*ENTRY, state, "") for state in get_args(errors.UnresolvedState)),
        *(errors.PayloadMismatchError(*ENTRY, state) for state in ("inflight", "unknown", "lost", "held")),
        *(errors.NotResolvedError(*ENTRY, state, "refused") for state in ("missing", "inflight", "lost")),
    ],
    "approved": [
        errors.DecisionForgottenError(*ENTRY, "approved"),
        errors.PayloadMismatchError(*ENTRY, "approved"),
        errors.NotResolvedError(*ENTRY, "approved", "refused"),
        errors.DecisionNotRecordedError(*ENTRY, "approved", REFUSED, None, "OSError"),
    ],
    "refused": [
        errors.DecisionForgottenError(*ENTRY, "refused"),
        errors.PayloadMismatchError(*ENTRY, "refused"),
        errors.NotResolvedError(*ENTRY, "refused", "approved"),
        errors.DecisionNotRecordedError(*ENTRY, "refused", REFUSED, None, "OSError"),
    ],
    "done": [unexpected("done")],
}
REPEATABLE = (errors.CircuitOpenError, errors.LedgerUnavailableError, *WITHOUT_RESPONSE)


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_error_has_its_outcome_and_repeatable(outcome: Outcome) -> None:
    """A program may only repeat a call that was not sent."""
    for error in TABLE[outcome]:
        assert error.outcome == outcome, type(error)
        assert error.repeatable is (outcome == "not_sent" and isinstance(error, REPEATABLE)), type(error)


def test_table_has_every_public_error() -> None:
    assert {type(error).__name__ for found in TABLE.values() for error in found} == set(errors.__all__)


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
