"""Queue messages: conversion to JSON and back, and invalid messages."""

import json
from typing import Any

import pytest
from hypothesis import given

from loanasync import ApprovalRequest, Citizenship, InvalidRequestError, Problem
from loanasync.ledger import MemoryLedger
from loanasync.testing import approved, scripted_client
from loanasync.worker import handle, message
from loanasync.worker.handler import arguments_of
from support.builders import APPROVAL_REQUESTS, FISCAL_CODE, additional_data, approval_request


@given(APPROVAL_REQUESTS)
def test_message_through_json_gives_the_same_request(request: ApprovalRequest) -> None:
    received = json.loads(
        json.dumps(message(FISCAL_CODE, request, additional_data_needed=True, order_id="7"))
    )
    expected = {
        "fiscal_code": FISCAL_CODE,
        "request": request,
        "additional_data_needed": True,
        "order_id": "7",
    }
    assert arguments_of(received) == expected


def test_message_has_plain_values_and_keeps_unknown_members() -> None:
    request = approval_request(citizenship=Citizenship.EU, extra={"newField": [1, {"a": None}]})
    made = message(FISCAL_CODE, request)
    assert type(made["request"]["citizenship"]) is str
    assert arguments_of(json.loads(json.dumps(made)))["request"] == request


MESSAGE = message(FISCAL_CODE, approval_request(additional=additional_data()))
NO_DATE = {**MESSAGE["request"], "additional": {"residence_start_date": "05/2019"}}
WRONG: list[tuple[Any, str]] = [
    ("a text", "message: must be an object, not str"),
    ({"fiscal_code": FISCAL_CODE}, "request: must be an object"),
    ({"request": MESSAGE["request"]}, "fiscal_code: is required"),
    ({**MESSAGE, "request": []}, "request: must be an object"),
    ({**MESSAGE, "shop": 1}, "shop: is not a member of this message"),
    ({**MESSAGE, "additional_data_needed": "true"}, "additional_data_needed: must be true or false"),
    ({**MESSAGE, "request": {"amonut": 1}}, "amount: is required; .*amonut: is not .* did you mean amount"),
    ({**MESSAGE, "request": {"additional": {"salry": 1}}}, "salry: is not .* did you mean salary"),
    ({**MESSAGE, "request": NO_DATE}, "residence_start_date: must be a date as YYYY-MM-DD"),
]


@pytest.mark.parametrize(("received", "text"), WRONG, ids=[text for _, text in WRONG])
def test_invalid_message_is_reported_with_its_problems(received: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text) as caught:
        arguments_of(received)
    for each in caught.value.problems:
        assert each.text("en") != each.message, "its code has a text"
        assert each.wire_name is not None


async def test_message_values_are_checked_by_the_request_rules() -> None:
    # A null order_id from another language is not text, and it would lead to another entry than "".
    received = {**MESSAGE, "fiscal_code": None, "order_id": None}
    received["request"] = {**MESSAGE["request"], "amount": "450"}
    async with scripted_client(approved(), ledger=MemoryLedger()) as client:
        ended = json.loads(json.dumps(await handle(client, received)))
    assert ended["status"] == "rejected"
    problems = [Problem(**each) for each in ended["error"]["problems"]]
    assert {each.code for each in problems} == {"amount.type", "fiscal_code.required", "order_id.type"}
    [amount] = [each for each in problems if each.field == "amount"]
    assert amount.text("it") == "Inserire un importo tra 50,00 e 15.000,00 euro."
