"""Queue messages: conversion to JSON and back, and invalid messages."""

import json
from typing import Any

import pytest
from hypothesis import given

from loanasync import AdditionalData, ApprovalRequest, Citizenship, InvalidRequestError, Problem
from loanasync.ledger import MemoryLedger
from loanasync.testing import approved, scripted_client
from loanasync.worker import handle, message
from loanasync.worker.handler import arguments_of
from support.builders import APPROVAL_REQUESTS, FISCAL_CODE, additional_data, approval_request


@given(APPROVAL_REQUESTS)
def test_message_through_json_gives_the_same_request(request: ApprovalRequest) -> None:
    received = json.loads(json.dumps(message(FISCAL_CODE, request, additional_data_needed=True, scope="7")))
    expected = {"fiscal_code": FISCAL_CODE, "request": request, "additional_data_needed": True, "scope": "7"}
    assert arguments_of(received) == expected


def test_message_keeps_choices_and_unknown_members() -> None:
    request = approval_request(citizenship=Citizenship.EU, extra={"newField": [1, {"a": None}]})
    received = json.loads(json.dumps(message(FISCAL_CODE, request)))
    assert arguments_of(received)["request"] == request
    assert type(received["request"]["citizenship"]) is str


WRONG: list[tuple[Any, str]] = [
    ("a text", "message: must be an object, not str"),
    (None, "message: must be an object, not NoneType"),
    ({"fiscal_code": FISCAL_CODE}, "request: is required"),
    ({"request": {}}, "fiscal_code: is required"),
    ({"fiscal_code": FISCAL_CODE, "request": []}, "request: must be an object"),
    ({**message(FISCAL_CODE, approval_request()), "shop": 1}, "shop: is not a member of this message"),
    (
        {**message(FISCAL_CODE, approval_request()), "additional_data_needed": "true"},
        "additional_data_needed: must be true or false",
    ),
    (
        {"fiscal_code": FISCAL_CODE, "request": {"amonut": 1}},
        "amonut: is not .*; amount: is required",
    ),
    ({"fiscal_code": FISCAL_CODE, "request": {"additional": {"salry": 1}}}, "salry: is not a member"),
]


@pytest.mark.parametrize(("received", "text"), WRONG, ids=[text for _, text in WRONG])
def test_invalid_message_is_reported_with_its_problems(received: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        arguments_of(received)


@pytest.mark.parametrize("additional", [AdditionalData(), AdditionalData(salary=1), additional_data()])
def test_message_keeps_a_partial_conditional_block(additional: AdditionalData) -> None:
    request = approval_request(additional=additional)
    received = json.loads(json.dumps(message(FISCAL_CODE, request)))
    assert None not in received["request"]["additional"].values()
    assert arguments_of(received)["request"] == request


async def test_message_values_are_checked_by_the_request_rules() -> None:
    received = message(None, approval_request(amount="450", additional=additional_data()))  # type: ignore[arg-type]
    received["request"]["additional"]["residence_start_date"] = "05/2019"
    received["scope"] = (
        None  # null from another language: not text, and it would lead to another entry than ""
    )
    async with scripted_client(approved(), ledger=MemoryLedger()) as client:
        ended = await handle(client, received)
    assert ended["status"] == "rejected"
    reported = json.loads(json.dumps(ended))["error"]["problems"]
    assert {each["code"] for each in reported} == {
        *("amount.type", "fiscal_code.required", "residence_start_date.date", "scope.type"),
    }
    [amount] = [each for each in reported if each["field"] == "amount"]
    assert Problem(**amount).text("it") == "Inserire un importo tra 50,00 e 15.000,00 euro."
