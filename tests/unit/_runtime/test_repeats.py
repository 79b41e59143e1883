"""Requests that are sent again although an earlier one has an unknown outcome, with and without a ledger."""

import pytest

from loanasync import Approved, LoanError, RawResponse, errors
from loanasync.ledger import Ledger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    denied,
    domain_error,
    not_connected,
    rejected,
    response,
)
from support.memory_clients import request

ERRORS = {
    "403": denied(),
    "fields": rejected({"city": ["This value should not be blank."]}),
    "user not found": domain_error("User not found"),
    "404": response(404),
    "429": response(429),
    "not connected": not_connected(),
}


@pytest.mark.parametrize("step", ERRORS.values(), ids=ERRORS)
async def test_repeat_unknown_error_has_an_unknown_outcome(
    step: ScriptedResponse, ledger: Ledger | None
) -> None:
    script = ScriptedTransport(connection_lost(), step, approved())
    client = script.client(ledger=ledger)
    await request(client)
    error = await request(client, repeat_unknown=True)
    assert isinstance(error, LoanError)
    assert (error.outcome, error.repeatable) == ("unknown", False)
    if isinstance(error, errors.ServiceError):
        assert "an earlier call for this approval has an unknown outcome" in str(error)
    assert isinstance(await request(client), errors.OutcomeUnknownError)
    assert isinstance(await request(client, repeat_unknown=True), Approved)
    assert len(script.sent) == 3


async def test_memory_keeps_a_response_that_is_unclassified() -> None:
    body = b'{"approved": true, "redirectUrl": "https://example.com/#t", "fiscalCode": "TSTXYZ00A00A000B"}'
    client = ScriptedTransport(response(201, body)).client()
    first, second = await request(client), await request(client)
    raw = RawResponse(201, body)
    assert isinstance(first, errors.UnexpectedResponseError)
    assert first.response == raw
    assert second == errors.OutcomeUnknownError("approve", "", "unknown", "UnexpectedResponseError", raw)
    assert "example.com" not in repr(first) + repr(second)
