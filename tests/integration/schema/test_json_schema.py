"""The JSON Schema of the request models agrees with the checks of the client, with pydantic and the codec."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from typing import Annotated, Any

import attrs
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Dialect,
    Limits,
    LoanClient,
    RequestRules,
    UserData,
    schema,
)
from loanasync._protocol.codec import write
from support.builders import (
    APPROVAL_REQUESTS,
    FISCAL_CODE,
    USER_DATA,
    additional_data,
    approval_request,
    user_data,
)

CIVIC = Dialect(
    street_number_field="civicNumber",
    instalments_field="installments",
    italian="Italian",
    order_token_required=True,
    sends_iban=False,
    sends_payment_day_of_month=False,
)
STRICT = Limits(mobile_phone="[0-9]+|0", province=".{2}")
RULES = [
    RequestRules(),
    RequestRules(additional_data_needed=True),
    RequestRules(dialect=CIVIC, limits=STRICT),
]
REQUEST = approval_request(
    street_number="12", country_calling_code="+39", order_token="token", additional=additional_data()
)


def plain(model: Any) -> dict[str, Any]:
    """Return the fields of a model as JSON, under their Python names."""
    found: dict[str, Any] = {}
    for name, value in attrs.asdict(model, recurse=False).items():
        if attrs.has(type(value)):
            found[name] = plain(value)
        elif name not in ("extra", "unread"):
            found[name] = str(value) if isinstance(value, date | str) else value
    return found


ORDER, USER = plain(REQUEST), plain(user_data(profession="baker"))


# Values at the edges of the rules, for every field.
VALUES: list[Any] = [
    *("", " ", "\n", "  ", "RM", "rm", "RMX", "R\n", "a,b", "+39 333", " (0039)", "00333", "0", "0100"),
    *("00100", "12/A", "123456", "a@b", "a@b@c", "a b@c", "+39", "+39000", "\x00", "a\tb", "a\u2028b", "è"),
    *("2019-05-01", "2019-02-30", "20190501", "2019-W01-1", "2019-5-1", "05/2019", "2019-05-01T00:00:00"),
    *("italian", "Italian", "eu", "EU", "rent", "5+", "6", "true", "5000", "net-monthly", "passport"),
    *(-(2**63) - 1, -(2**63), -1, 0, 1, 2, 3, 31, 32, 60, 61, 4_999, 5_000, 100_000, 100_001),
    *(1_500_000, 1_500_001, 2**63 - 1, 2**63, 1.5, True, False, None, [], {}, {"salary": 1}, {"typo": 1}),
]


def changed(body: Mapping[str, Any], values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the body with each member missing, and with each member replaced by each value."""
    for name in (*body, "typo"):
        yield {other: value for other, value in body.items() if other != name}
        for value in values:
            yield {**body, name: value}
    if "additional" in body:
        for additional in changed(body["additional"], values):
            yield {**body, "additional": additional}


def read_date(value: object) -> object:
    """Return the date in a text that is exactly one."""
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return day if str(day) == value else value


def instance(model: Any, body: Mapping[str, Any]) -> Any:
    members = {name: read_date(value) if "date" in name else value for name, value in body.items()}
    if isinstance(body.get("additional"), dict):
        members["additional"] = instance(AdditionalData, body["additional"])
    return model(**members)


def is_accepted_by_client(model: Any, body: Mapping[str, Any], rules: RequestRules) -> bool:
    client = LoanClient(
        "http://127.0.0.1", shop_id="shop", auth_token="token", dialect=rules.dialect, limits=rules.limits
    )
    try:
        request = instance(model, body)
    except TypeError:  # a missing or an unknown field
        return False
    return not client.check(FISCAL_CODE, request, additional_data_needed=rules.additional_data_needed)


@cache
def adapter(model: Any, rules: RequestRules) -> Any:
    return TypeAdapter(Annotated[model, rules])


def is_accepted_by_pydantic(model: Any, body: Mapping[str, Any], rules: RequestRules) -> bool:
    try:
        adapter(model, rules).validate_json(json.dumps(body))
    except ValidationError:
        return False
    return True


@cache
def validator(model: Any, rules: RequestRules, *, wire_names: bool = False) -> Any:
    made = schema(
        model,
        dialect=rules.dialect,
        limits=rules.limits,
        additional_data_needed=rules.additional_data_needed,
        wire_names=wire_names,
    )
    assert jsonschema_rs.meta.is_valid(made)
    return jsonschema_rs.Draft202012Validator(made, validate_formats=True)


def assert_all_agree(model: Any, body: Mapping[str, Any], rules: RequestRules) -> bool:
    accepted = is_accepted_by_client(model, body, rules)
    assert validator(model, rules).is_valid(body) == accepted, body
    assert is_accepted_by_pydantic(model, body, rules) == accepted, body
    return accepted


@pytest.mark.parametrize("rules", RULES, ids=["default", "additional", "other settings"])
@pytest.mark.parametrize("model", [ApprovalRequest, UserData])
def test_schema_accepts_what_the_client_accepts(model: Any, rules: RequestRules) -> None:
    valid = ORDER if model is ApprovalRequest else USER
    assert assert_all_agree(model, valid, rules)
    accepted = {assert_all_agree(model, body, rules) for body in changed(valid, VALUES)}
    assert accepted == {True, False}


@given(APPROVAL_REQUESTS | USER_DATA, st.sampled_from(RULES[::2]))
def test_wire_schema_accepts_what_the_client_sends(
    request: ApprovalRequest | UserData, rules: RequestRules
) -> None:
    if rules.dialect is CIVIC and isinstance(request, ApprovalRequest):
        request = attrs.evolve(request, iban=None, payment_day_of_month=None, order_token="token")
    body = json.loads(write(request, rules.dialect))
    model: Any = type(request)
    validator(model, RequestRules(dialect=rules.dialect), wire_names=True).validate(body)


def test_wire_schema_refuses_what_the_client_does_not_send() -> None:
    body = json.loads(write(REQUEST, Dialect.street_number()))
    is_valid = validator(ApprovalRequest, RequestRules(), wire_names=True).is_valid
    assert is_valid(body)
    assert is_valid({**body, "newField": 1})
    for name in ("amount", "streetNumber", "loanFinality"):
        assert not is_valid({other: value for other, value in body.items() if other != name})
    for name, value in (
        *(("iban", None), ("citizenship", "Italian"), ("residenceStartDate", "2019-05-01")),
        *(("paymentDayOfMonth", 9), ("paymentDayOfMonth", "09"), ("address", "Via Prova, 12")),
    ):
        assert not is_valid({**body, name: value})


def test_wire_schema_has_the_names_of_the_dialect() -> None:
    made = schema(ApprovalRequest, dialect=CIVIC, wire_names=True)
    assert {"civicNumber", "installments", "orderToken"} <= set(made["required"])
    assert made["properties"]["citizenship"]["enum"] == ["Italian", "eu", "outside_eu"]
    assert not jsonschema_rs.is_valid(made["properties"]["iban"], "IT00")


def test_required_additional_data_are_required_on_the_wire() -> None:
    needed = schema(ApprovalRequest, additional_data_needed=True, wire_names=True)["required"]
    assert set(needed) - set(schema(ApprovalRequest, wire_names=True)["required"]) == {
        *("residence", "residenceStartDate", "educationalQualification", "children", "salaryType", "salary")
    }
