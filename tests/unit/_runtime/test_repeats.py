"""Requests that are sent again although an earlier one has an unknown outcome, with and without a ledger."""

import pytest

from loanasync import (
    LoanError,
    OutcomeUnknownError,
    RawResponse,
    ServiceError,
    UnexpectedResponseError,
)
from loanasync.ledger import Ledger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    denied,
    not_connected,
    rejected,
    response,
)
from support.builders import FISCAL_CODE, approval_request

ERRORS = {
    "403": denied(),
    "fields": rejected({"city": ["This value should not be blank."]}),
    "404": response(404),
    "not connected": not_connected(),
}


@pytest.mark.parametrize("step", ERRORS.values(), ids=ERRORS)
async def test_repeat_unknown_error_has_an_unknown_outcome(
    step: ScriptedResponse, ledger: Ledger | None
) -> None:
    script = ScriptedTransport(connection_lost(), step, approved())
    async with script.client(ledger=ledger) as client:
        with pytest.raises(LoanError):
            await client.approve(FISCAL_CODE, approval_request())
        with pytest.raises(LoanError) as caught:
            await client.approve(FISCAL_CODE, approval_request(), repeat_unknown=True)
        assert (caught.value.outcome, caught.value.repeatable) == ("unknown", False)
        if isinstance(caught.value, ServiceError):
            assert "an earlier call for this approval has an unknown outcome" in str(caught.value)
        with pytest.raises(OutcomeUnknownError):
            await client.approve(FISCAL_CODE, approval_request())
        again = await client.approve(FISCAL_CODE, approval_request(), repeat_unknown=True)
    assert again.approved
    assert len(script.sent) == 3


async def test_memory_keeps_a_response_that_is_unclassified() -> None:
    body = b'{"approved": true, "redirectUrl": "https://example.com/#t", "fiscalCode": "TSTXYZ00A00A000B"}'
    script = ScriptedTransport(response(201, body))
    async with script.client() as client:
        with pytest.raises(UnexpectedResponseError) as first:
            await client.approve(FISCAL_CODE, approval_request())
        with pytest.raises(OutcomeUnknownError) as second:
            await client.approve(FISCAL_CODE, approval_request())
    assert first.value.response == RawResponse(201, body)
    assert second.value == OutcomeUnknownError(
        "approve", "", "unknown", "UnexpectedResponseError", RawResponse(201, body)
    )
    assert "example.com" not in repr(first.value) + repr(second.value)
