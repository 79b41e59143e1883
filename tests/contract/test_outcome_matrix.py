"""Each outcome of an approval at each front: client, memory, ledger, bulk, worker and command line."""

import json
from typing import Literal, TypeAlias

import attrs
import pytest
from attrs import frozen

from loanasync import Approved, Decision, LoanClient, LoanError, Refused, Response, RetryPolicy, errors
from loanasync.errors import Outcome
from loanasync.ledger import MemoryLedger, State
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    conflict,
    connection_lost,
    denied,
    domain_error,
    not_connected,
    refused,
    rejected,
    response,
    system_error,
    timed_out,
)
from loanasync.worker import handle, message
from support.builders import FISCAL_CODE, approval_request

EVALUATED = "User already evaluated for approval"
OTHER_CODE = "TSTXYZ00A00A000Z"
RETRY = RetryPolicy(attempts=2)
Status: TypeAlias = Literal["approved", "refused", "rejected", "unknown", "failed", "not_sent"]


def cut_off(status: int, body: bytes) -> ScriptedResponse:
    return Response(status=status, headers={}, body=body, fault="truncated")


@frozen
class Row:
    """The responses of the service, and the expected results.

    Args:
        steps: The responses to the attempts of one call.
        result: The class of the decision or the error.
        state: The state of the ledger's entry. After `State.RELEASED`, a next call sends its request.
        status: The status of a row of `approve_many` and of a worker's result.
        outcome: By default, that of the state.
        is_put_back: The worker raises the error, so that its queue delivers the message again.
    """

    steps: tuple[ScriptedResponse, ...]
    result: type[Decision] | type[LoanError]
    state: State
    status: Status
    outcome: Outcome = attrs.field()
    is_put_back: bool = False

    @outcome.default
    def _outcome_of_the_state(self) -> Outcome:
        outcomes: dict[State, Outcome] = {
            State.APPROVED: "approved",
            State.REFUSED: "refused",
            State.RELEASED: "not_evaluated",
        }
        return outcomes.get(self.state, "unknown")

    @property
    def error(self) -> type[LoanError]:
        assert issubclass(self.result, LoanError)
        return self.result


def decided(*steps: ScriptedResponse, by: type[Decision] = Approved) -> Row:
    return (
        Row(steps, by, State.APPROVED, "approved")
        if by is Approved
        else Row(steps, by, State.REFUSED, "refused")
    )


def released(step: ScriptedResponse, error: type[LoanError], *, is_put_back: bool = False) -> Row:
    return Row((step,), error, State.RELEASED, "failed", is_put_back=is_put_back)


def unknown(*steps: ScriptedResponse, error: type[LoanError], state: State = State.UNKNOWN) -> Row:
    return Row(steps, error, state, "unknown")


BLANK = rejected({"city": ["This value should not be blank."]})
ROWS = {
    # decided
    "approved": decided(approved()),
    "refused": decided(refused(), by=Refused),
    "approved after a 500": decided(system_error(), approved()),
    "refused with 201": decided(response(201, {"approved": False}), by=Refused),
    "refused with an empty body": decided(response(422, b""), by=Refused),
    "approved, cut off": decided(cut_off(201, b'{"approved": true, "am')),
    "refused, cut off": decided(cut_off(422, b'{"approved": false, "am'), by=Refused),
    # proven not to be evaluated
    "not connected": Row(
        (not_connected(),),
        errors.ConnectError,
        State.RELEASED,
        "not_sent",
        outcome="not_sent",
        is_put_back=True,
    ),
    "field refused": Row((BLANK,), errors.RejectedError, State.RELEASED, "rejected"),
    "user not found": released(domain_error("User not found"), errors.UserNotFoundError),
    "invalid fiscal code": released(domain_error("Invalid fiscalCode."), errors.InvalidFiscalCodeError),
    "shop not allowed": released(
        domain_error("This sales point cannot apply for a loan"), errors.ShopNotAllowedError, is_put_back=True
    ),
    "denied": released(denied(), errors.AccessDeniedError, is_put_back=True),
    "404": released(response(404), errors.UnexpectedStatusError, is_put_back=True),
    "429": released(response(429), errors.UnexpectedStatusError, is_put_back=True),
    # evaluated earlier; the decision is not in this response
    "already evaluated": unknown(
        domain_error(EVALUATED), error=errors.AlreadyEvaluatedError, state=State.LOST
    ),
    "already evaluated after a 500": unknown(
        system_error(), domain_error(EVALUATED), error=errors.AlreadyEvaluatedError, state=State.LOST
    ),
    "already evaluated with 409": unknown(
        response(409, {"error": EVALUATED}), error=errors.AlreadyEvaluatedError, state=State.LOST
    ),
    # perhaps evaluated
    "500 to the last attempt": unknown(system_error(), system_error(), error=errors.SystemFaultError),
    "denied after a 500": unknown(system_error(), denied(), error=errors.AccessDeniedError),
    "field refused after a 500": unknown(system_error(), BLANK, error=errors.RejectedError),
    "not connected after a 500": unknown(system_error(), not_connected(), error=errors.ConnectError),
    "409": unknown(conflict(), error=errors.CannotCompleteError),
    "502": unknown(response(502), error=errors.UnexpectedStatusError),
    "404 with a decision": unknown(response(404, {"approved": True}), error=errors.UnexpectedResponseError),
    "another domain message": unknown(domain_error("Something new"), error=errors.DomainError),
    "no response": unknown(timed_out(), error=errors.ReadTimeoutError),
    "connection lost": unknown(connection_lost(), error=errors.ConnectionLostError),
    "201 without a body": unknown(response(201, b""), error=errors.UnexpectedResponseError),
    "422 that is not JSON": unknown(response(422, b"<html>"), error=errors.UnexpectedResponseError),
    "422 with problems": unknown(
        response(422, {"errors": {"email": ["is taken"]}}), error=errors.UnexpectedResponseError
    ),
    "response for another customer": unknown(
        response(201, {"approved": True, "fiscalCode": OTHER_CODE}), error=errors.UnexpectedResponseError
    ),
}
each_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def script_of(row: Row) -> ScriptedTransport:
    return ScriptedTransport(*row.steps)


async def result_of(client: LoanClient) -> Decision | LoanError:
    try:
        return await client.approve(FISCAL_CODE, approval_request())
    except LoanError as error:
        return error


def entry_of(result: Decision | LoanError) -> str | None:
    return result.entry if isinstance(result, LoanError) else result.meta.entry


def check(row: Row, result: Decision | LoanError) -> None:
    assert type(result) is row.result
    if isinstance(result, LoanError):
        assert (result.outcome, result.repeatable) == (row.outcome, row.outcome == "not_sent")


async def check_next_call(
    row: Row, result: Decision | LoanError, client: LoanClient, script: ScriptedTransport
) -> None:
    """Assert that a call sends its request only if nothing was evaluated; otherwise it gets what is known."""
    script.add(refused())
    again = await result_of(client)
    if row.state is State.RELEASED:
        assert isinstance(again, Refused)
        return
    assert (entry_of(again) or None) == entry_of(result)
    assert script.left == 1
    if isinstance(result, Approved | Refused):
        assert isinstance(again, Approved | Refused)
        assert (type(again), again.amount) == (row.result, result.amount)
        assert (again.meta.status, again.meta.unread) == (result.meta.status, result.meta.unread)
        assert again.meta.attempts == 0
    else:
        assert isinstance(again, errors.OutcomeUnknownError)
        assert (again.state, again.outcome, again.repeatable) == (row.state.value, "unknown", False)
        assert again.note == row.result.__name__


@each_row
async def test_outcome_without_a_ledger_decides_about_the_next_call(row: Row) -> None:
    script = script_of(row)
    client = script.client(retry=RETRY)
    result = await result_of(client)
    check(row, result)
    assert (entry_of(result), script.left) == (None, 0)
    await check_next_call(row, result, client, script)


@each_row
async def test_outcome_in_a_ledger_decides_about_calls_of_other_clients(row: Row) -> None:
    script, ledger = script_of(row), MemoryLedger()
    result = await result_of(script.client(retry=RETRY, ledger=ledger))
    check(row, result)
    [entry] = [each async for each in ledger.scan()]
    assert entry.state is row.state
    assert entry.key == entry_of(result)
    await check_next_call(row, result, script.client(retry=RETRY, ledger=ledger), script)


@each_row
async def test_outcome_of_a_bulk_row_has_its_status(row: Row) -> None:
    results = script_of(row).client(retry=RETRY).approve_many([(FISCAL_CODE, approval_request())])
    [result] = [each async for each in results]
    assert (result.status, result.outcome) == (row.status, row.outcome)
    assert result.repeatable == (row.outcome == "not_sent")
    assert type(result.error if result.decision is None else result.decision) is row.result


@each_row
async def test_outcome_of_a_message_is_a_result_or_puts_it_back(row: Row) -> None:
    client = script_of(row).client(retry=RETRY, ledger=MemoryLedger())
    handled = handle(client, message(FISCAL_CODE, approval_request()))
    if row.is_put_back:
        with pytest.raises(row.error):
            await handled
        return
    result = json.loads(json.dumps(await handled))
    assert (result["status"], result["outcome"], result["repeatable"]) == (row.status, row.outcome, False)
    assert (result["error"] or {}).get("type") == (None if row.state.is_decided else row.result.__name__)
    assert "TSTXYZ" not in json.dumps(result)
