"""Request models as fields of pydantic models and as bodies of FastAPI routes."""

import copy
import json
from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, FastAPI
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Citizenship,
    Limits,
    LoanClient,
    RequestRules,
    Residence,
    UserData,
)
from support.builders import FISCAL_CODE, approval_request
from support.privacy.plants import found_in, planted, values_of

ADDITIONAL: dict[str, Any] = {"residence": "rent", "residence_start_date": "2019-05-01", "salary": 1_600}
ORDER: dict[str, Any] = {
    "amount": 45_000,
    "instalments": 12,
    "email": "anna@example.com",
    "last_name": "Prova",
    "first_name": "Anna",
    "mobile_phone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postal_code": "00100",
    "street_number": "12",
    "citizenship": "outside_eu",
    "additional": ADDITIONAL,
}


class Form(BaseModel):
    fiscal_code: str
    order: Annotated[ApprovalRequest, RequestRules(additional_data_needed=True)]


def errors_of(kind: Any, value: object) -> dict[tuple[str | int, ...], tuple[str, str]]:
    """Return type and message of each error, by place; the same in both modes of validation."""
    adapter = TypeAdapter(kind)
    with pytest.raises(ValidationError) as in_json:
        adapter.validate_json(json.dumps(value))
    with pytest.raises(ValidationError) as in_python:
        adapter.validate_python(value)
    found = in_json.value.errors(include_url=False)
    assert found == in_python.value.errors(include_url=False)
    return {each["loc"]: (each["type"], each["msg"]) for each in found}


def test_json_object_or_an_instance_becomes_a_request() -> None:
    adapter = TypeAdapter(ApprovalRequest)
    additional = AdditionalData(**{**ADDITIONAL, "residence_start_date": date(2019, 5, 1)})
    for order in (adapter.validate_json(json.dumps(ORDER)), adapter.validate_python(ORDER)):
        assert order == ApprovalRequest(**{**ORDER, "additional": additional})
        assert order.citizenship is Citizenship.OUTSIDE_EU
        assert order.additional.residence is Residence.RENT
        assert adapter.validate_python(order) is order
    data = UserData(document_issue_date=date(2019, 5, 1))
    assert TypeAdapter(UserData).validate_python({"document_issue_date": date(2019, 5, 1)}) == data


def test_all_problems_are_reported_at_once_with_their_places() -> None:
    order = copy.deepcopy(ORDER)
    del order["city"]
    order |= {"amount": 450, "instalments": "12", "adress": "Via Prova", "zzz": 1, "province": None}
    order |= {"extra": {"newField": 1}}  # only Python sets it
    order["additional"] |= {"salary": 1.5, "residence_start_date": "05/2019", "residense": "rent"}
    found = errors_of(ApprovalRequest, order)
    assert {place: code for place, (code, _) in found.items()} == {
        ("city",): "city.required",
        ("amount",): "amount.range",
        ("instalments",): "instalments.type",
        ("province",): "province.required",
        ("adress",): "unknown_field",
        ("zzz",): "unknown_field",
        ("extra",): "unknown_field",
        ("additional", "salary"): "salary.type",
        ("additional", "residence_start_date"): "residence_start_date.date",
        ("additional", "residense"): "unknown_field",
    }
    assert found["adress",][1] == "is not a field of ApprovalRequest; did you mean address?"
    assert found["zzz",][1] == "is not a field of ApprovalRequest"
    assert found["additional", "residence_start_date"][1] == "must be a date as YYYY-MM-DD"


def test_rules_have_the_codes_params_and_messages_of_problems() -> None:
    client = LoanClient("http://127.0.0.1", shop_id="shop", auth_token="token")
    [problem] = client.check(FISCAL_CODE, approval_request(amount=450))
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ApprovalRequest).validate_python({**ORDER, "amount": 450})
    [error] = caught.value.errors(include_url=False)
    assert error == {
        "type": problem.code,
        "loc": ("amount",),
        "msg": problem.message,
        "input": "***",
        "ctx": {"least": 5_000, "most": 1_500_000},
    }


def test_hostile_body_has_few_errors() -> None:
    found = errors_of(ApprovalRequest, {**ORDER, **{f"m{number}": 1 for number in range(5_000)}})
    assert list(found) == [(f"m{number}",) for number in range(20)]


@pytest.mark.parametrize("value", [[], "x", 7])
def test_another_type_than_an_object_is_one_problem(value: object) -> None:
    text = "must be an object with the fields of "
    assert errors_of(ApprovalRequest, value) == {(): ("object", f"{text}ApprovalRequest")}
    for needed in (True, False):
        kind = Annotated[ApprovalRequest, RequestRules(additional_data_needed=needed)]
        expected = {("additional",): ("additional.object", f"{text}AdditionalData")}
        assert errors_of(kind, {**ORDER, "additional": value}) == expected


def test_annotation_sets_the_rules() -> None:
    assert ("order", "additional", "children") in errors_of(Form, {"fiscal_code": "", "order": ORDER})
    assert ("order", "additional", "salary") in errors_of(
        Form, {"fiscal_code": "", "order": {**ORDER, "additional": None}}
    )
    small = Annotated[ApprovalRequest, RequestRules(limits=Limits(amount_max=200_000))]
    assert list(errors_of(small, {**ORDER, "amount": 200_001})) == [("amount",)]
    block = Annotated[AdditionalData, RequestRules(additional_data_needed=True)]
    assert set(errors_of(block, ADDITIONAL)) == {
        ("children",),
        ("educational_qualification",),
        ("salary_type",),
    }


@pytest.mark.parametrize("model", [ApprovalRequest, UserData, AdditionalData])
def test_errors_contain_no_value(model: Any) -> None:
    wrong = {name: [str(value)] for name, value in values_of(model).items()}
    assert found_in(str(wrong))
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(model).validate_json(json.dumps(wrong))
    error = caught.value
    assert error.error_count() >= len(wrong)
    assert not found_in(f"{error} {error!r} {error.errors()} {error.json()}")


def test_schemas_of_pydantic_are_those_of_the_models() -> None:
    made = Form.model_json_schema()
    assert made["properties"]["order"]["properties"]["amount"]["maximum"] == 1_500_000
    assert "additional" in made["properties"]["order"]["required"]
    assert "$schema" not in json.dumps(made)
    plain = TypeAdapter(ApprovalRequest).json_schema(mode="serialization")
    assert "additional" not in plain["required"]


def test_json_of_a_request_is_refused() -> None:
    form = Form.model_construct(fiscal_code="", order=planted(ApprovalRequest))
    assert form.model_dump()["order"] is form.order
    with pytest.raises(PydanticSerializationError, match="use a model of your own for responses") as caught:
        form.model_dump_json()
    assert not found_in(str(caught.value))


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    application = FastAPI()

    @application.post("/orders")
    async def pay(order: Annotated[ApprovalRequest, Body()]) -> int:
        return order.amount

    @application.post("/forms")
    async def pay_form(form: Form) -> int:
        return form.order.amount

    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
        yield browser


async def test_fastapi_reads_a_body(browser: httpx.AsyncClient) -> None:
    order = {**ORDER, "additional": {**ADDITIONAL, "educational_qualification": "diploma"}}
    order["additional"] |= {"children": "0", "salary_type": "net-monthly"}
    for path, sent in (("/orders", order), ("/forms", {"fiscal_code": "", "order": order})):
        response = await browser.post(path, json=sent)
        assert (response.status_code, response.json()) == (200, 45_000)
    document = (await browser.get("/openapi.json")).json()
    body = document["paths"]["/orders"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["amount"]["maximum"] == 1_500_000


async def test_default_response_of_fastapi_repeats_no_value(browser: httpx.AsyncClient) -> None:
    wrong = {name: [str(value)] for name, value in values_of(ApprovalRequest).items()}
    response = await browser.post("/orders", json=wrong)
    assert response.status_code == 422
    required = {"type": "amount.required", "loc": ["body", "amount"], "msg": "is required", "input": "***"}
    assert required in [{name: each[name] for name in required} for each in response.json()["detail"]]
    assert not found_in(response.text)
