"""The record of a row whose decision only the ledger has, and of one with an error."""

import json

import attrs
import pytest

from loanasync import Approved, InvalidRequestError, Meta, UnexpectedResponseError
from loanasync.bulk import FileRow
from loanasync.bulk.rows import result_of
from loanasync.cli.approve_many.results import error_members, members_of_entry, record_of
from loanasync.ledger import Entry, State
from loanasync.testing import response, scripted_client
from support.builders import FISCAL_CODE, approval_request

NUMBERS = {"amount": 45_000, "instalments": 12}
DECIDED = {
    "status": "approved",
    "outcome": "approved",
    "repeatable": False,
    "at": "1970-01-01T00:00:00.000+00:00",
}


@pytest.mark.parametrize("spelling", ["instalments", "installments"])
@pytest.mark.parametrize(
    ("response", "members"),
    [
        (
            {"netAmount": 43_650, "redirectUrl": "https://a.b"},
            {"net_amount": 43_650, "redirect_url": "https://a.b"},
        ),
        ({}, {"message": "approved without a redirect: ask the service where to send the customer"}),
    ],
)
def test_record_has_the_values_of_the_stored_response(
    spelling: str, response: dict[str, object], members: dict[str, object]
) -> None:
    body = {"approved": True, "amount": 45_000, spelling: 12, "firstname": "Anna", **response}
    entry = Entry(
        key="k", state=State.APPROVED, token="t", payload="p", claimed=0.0, changed=0.0, expires=0.0,
        status=201, body=json.dumps(body).encode(),
    )  # fmt: skip
    assert members_of_entry(entry) == {**DECIDED, **NUMBERS, **members}


@pytest.mark.parametrize(("amount", "shown"), [(44_000, 44_000), (None, 45_000)])
def test_record_has_the_amount_of_the_decision(amount: int | None, shown: int) -> None:
    order = FileRow(FISCAL_CODE, approval_request(), line=1)
    result = result_of(0, order, Approved(amount=amount, meta=Meta(201, 1, 0.5)))
    assert record_of(order, result)["amount"] == shown


async def test_record_of_an_unreadable_response_has_its_status() -> None:
    async with scripted_client(response(201, b"{")) as client:
        with pytest.raises(UnexpectedResponseError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    members = error_members(caught.value)
    assert (members["error"], members["status_code"], members["attempts"]) == (
        "UnexpectedResponseError", 201, 1
    )  # fmt: skip


async def test_record_has_no_name_that_the_specification_does_not_list() -> None:
    async with scripted_client(response(400, b'{"errors":{"Anna Prova":["is unknown"]}}')) as client:
        with pytest.raises(UnexpectedResponseError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert "Anna" not in str(error_members(caught.value))


async def test_record_of_an_invalid_request_has_problems_with_their_hints() -> None:
    request = attrs.evolve(approval_request(), citizenship=5)  # type: ignore[arg-type]
    async with scripted_client() as client:
        with pytest.raises(InvalidRequestError) as caught:
            await client.approve(FISCAL_CODE, request)
    [problem] = error_members(caught.value)["problems"]
    assert (problem["field"], problem["code"]) == ("citizenship", "citizenship.choice")
    assert problem["message"].endswith("; use a str, not int")
