"""Conversion of models to JSON in both dialects, and of JSON in any spelling to models."""

import contextlib
import json
import sys
from datetime import date
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Approved,
    Citizenship,
    Dialect,
    Meta,
    Refused,
    UserData,
)
from loanasync._display.masking import Body
from loanasync._protocol.codec import read_decision, write
from loanasync._protocol.json import Malformed, decode, decode_any, decode_part, encode, repeated_members
from support.builders import APPROVAL_REQUESTS, additional_data, approval_request

META = Meta(status=201, attempts=1, elapsed=0.1)
STREET, CIVIC = Dialect.street_number(), Dialect.civic_number()
OTHER = Dialect(street_number_field="civicNumber", instalments_field="installments", italian="Italian")

FULL = approval_request(
    country_calling_code="+39",
    iban="IT00",
    zero_interest_rate=False,
    order_token="o",
    payment_day_of_month=5,
    additional=additional_data(residence_start_date=date(987, 5, 1)),
    extra={"newField": [1, {"a": None}]},
)
COMMON = {
    "amount": 45_000,
    "loanFinality": "ecommerce_shop",
    "email": "anna@example.com",
    "lastname": "Prova",
    "firstname": "Anna",
    "mobilePhone": "3330000000",
    "countryCallingCode": "+39",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "iban": "IT00",
    "zeroInterestRate": False,
    "orderToken": "o",
    "paymentDayOfMonth": "5",
    "residence": "rent",
    "residenceStartDate": "05/0987",
    "educationalQualification": "diploma",
    "children": "2",
    "salaryType": "net-monthly",
    "salary": 1_600,
    "newField": [1, {"a": None}],
}

# A URL that URL libraries would normalize; its fragment contains a token.
OPAQUE = "HTTPS://Loans.Example:443/a/../%7eb?c=%c3%a9 \u00e9&&d#t=%2f+/../#e"


def decision(**members: object) -> Approved:
    return read_decision(Approved, decode(json.dumps({"approved": True, **members}).encode()), META)


@pytest.mark.parametrize(
    ("dialect", "own"),
    [
        (STREET, {"streetNumber": "12/A", "instalments": 12, "citizenship": "italian"}),
        (CIVIC, {"civicNumber": "12/A", "instalments": 12, "citizenship": "italian"}),
        (OTHER, {"civicNumber": "12/A", "installments": 12, "citizenship": "Italian"}),
    ],
    ids=["street", "civic", "other"],
)
def test_write_approval_in_each_dialect(dialect: Dialect, own: dict[str, object]) -> None:
    assert json.loads(write(FULL, dialect)) == {**COMMON, **own}


def test_none_is_not_sent() -> None:
    sent = json.loads(write(approval_request(), STREET))
    assert "zeroInterestRate" not in sent
    assert None not in sent.values()
    assert not {"additional", "extra", "iban", "orderToken", "paymentDayOfMonth"} & sent.keys()


@pytest.mark.parametrize(
    ("spelling", "dialect", "written"),
    [
        ("italian", STREET, "italian"),
        ("Italian", STREET, "italian"),
        (Citizenship.ITALIAN, CIVIC, "italian"),
        (Citizenship.ITALIAN, OTHER, "Italian"),
        ("italian", OTHER, "Italian"),
        (Citizenship.OUTSIDE_EU, OTHER, "outside_eu"),
    ],
)
def test_write_citizenship_in_the_spelling_of_the_dialect(
    spelling: str, dialect: Dialect, written: str
) -> None:
    assert json.loads(write(approval_request(citizenship=spelling), dialect))["citizenship"] == written


def test_write_additional_data_omits_none() -> None:
    """Spec §2.1: the conditional fields are required only when additionalDataNeeded is true."""
    plain = json.loads(write(approval_request(), STREET))
    for additional, members in (
        (AdditionalData(), {}),
        (AdditionalData(children="2", salary=0), {"children": "2", "salary": 0}),
    ):
        request = approval_request(additional=additional)
        assert json.loads(write(request, STREET)) == {**plain, **members}


def test_write_subclass_equals_its_base() -> None:
    class Order(ApprovalRequest):
        """A request of another type."""

    class Completion(UserData):
        """User data of another type."""

    order = Order(**attrs.asdict(FULL, recurse=False))
    assert json.loads(write(order, CIVIC)) == json.loads(write(FULL, CIVIC))
    day = date(2019, 5, 1)
    assert json.loads(write(Completion(document_issue_date=day), CIVIC)) == {
        "documentIssueDate": "2019-05-01"
    }


@given(APPROVAL_REQUESTS)
def test_write_and_read_decision_round_trip(request: ApprovalRequest) -> None:
    for dialect in (STREET, CIVIC, OTHER):
        echoed = read_decision(Refused, decode(write(request, dialect)), META)
        for name in ("amount", "instalments", "email", "street_number", "citizenship", "iban", "order_token"):
            assert getattr(echoed, name) == getattr(request, name)
        assert echoed.payment_day_of_month == request.payment_day_of_month
        assert echoed.meta.unread == ()


@pytest.mark.parametrize(
    ("members", "field", "value"),
    [
        ({"civicNumber": "7"}, "street_number", "7"),
        ({"streetNumber": "7"}, "street_number", "7"),
        ({"streetNumber": "7", "civicNumber": "8"}, "street_number", "7"),
        ({"streetNumber": None, "civicNumber": "8"}, "street_number", "8"),
        ({"installments": 9}, "instalments", 9),
        ({"instalments": 9}, "instalments", 9),
        ({"citizenship": "Italian"}, "citizenship", Citizenship.ITALIAN),
        ({"citizenship": "italian"}, "citizenship", Citizenship.ITALIAN),
        ({"citizenship": "swiss"}, "citizenship", "swiss"),
        ({"citizenship": None}, "citizenship", None),
        ({"paymentDayOfMonth": 5}, "payment_day_of_month", 5),
        ({"paymentDayOfMonth": "05"}, "payment_day_of_month", 5),
        ({"paymentDayOfMonth": None}, "payment_day_of_month", None),
        ({"redirectUrl": "https://x.example/#t"}, "redirect_url", "https://x.example/#t"),
        ({"redirectUrl": OPAQUE}, "redirect_url", OPAQUE),
        ({"email": None}, "email", None),
        ({"zeroInterestRate": None}, "zero_interest_rate", None),
        ({"zeroInterestRate": True}, "zero_interest_rate", True),
        ({"netAmount": 5}, "net_amount", 5),
        ({"amount": None}, "amount", None),
    ],
)
def test_read_decision_accepts_all_spellings(members: dict[str, object], field: str, value: object) -> None:
    read = decision(**members)
    assert getattr(read, field) == value
    assert type(getattr(read, field)) is type(value)
    assert read.meta == META


@pytest.mark.parametrize(
    ("wire_name", "value"),
    [
        ("amount", "5000"),
        ("amount", 1.5),
        ("amount", True),
        ("netAmount", [1]),
        ("zeroInterestRate", "false"),
        ("zeroInterestRate", 0),
        ("email", 5),
        ("citizenship", 5),
        ("paymentDayOfMonth", "first"),
        ("paymentDayOfMonth", 5.0),
        ("streetNumber", {"a": 1}),
        ("redirectUrl", ""),
        ("redirectUrl", " "),
        ("redirectUrl", 5),
        ("redirectUrl", ["https://x"]),
    ],
)
def test_read_decision_keeps_the_decision_with_a_wrong_type(wire_name: str, value: object) -> None:
    read = decision(**{"redirectUrl": "https://x", "instalments": 9, wire_name: value})
    assert read.meta.unread == (wire_name,)
    assert read.raw[wire_name] == value
    assert (read.redirect_url, read.instalments) == (None if wire_name == "redirectUrl" else "https://x", 9)
    again = {name: getattr(read, name) for name in ("amount", "net_amount", "zero_interest_rate", "email")}
    assert again == dict.fromkeys(again)


@pytest.mark.parametrize("kind", [Approved, Refused])
def test_read_decision_equals_one_of_the_constructor(kind: type[Approved | Refused]) -> None:
    members: dict[str, Any] = {"email": "anna@example.com", "amount": 45_000, "civicNumber": "7", "new": [1]}
    read = read_decision(kind, members, META)
    made = kind(email="anna@example.com", amount=45_000, street_number="7", raw=Body(members), meta=META)
    assert read == made
    assert vars(read) == vars(made)
    assert vars(read).keys() == attrs.fields_dict(kind).keys()


def test_read_decision_raw_is_the_unchanged_body() -> None:
    read = decision(raw="x", meta="y", approvalMessageApiFull="z", unknown=[1])
    assert dict(read.raw) == {
        "approved": True,
        "raw": "x",
        "meta": "y",
        "approvalMessageApiFull": "z",
        "unknown": [1],
    }
    assert read.meta == META
    assert not hasattr(read, "approval_message_api_full")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"<html>", "not JSON"),
        (b'{"a":', "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": -Infinity}', "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 20_000, "nested too deeply"),
        (b"[]", "not a JSON object"),
        (b'"approved"', "not a JSON object"),
        (b"null", "not a JSON object"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else value,
)
def test_decode_error_has_no_content(body: bytes, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode(body)
    assert caught.value.args == (f"body: {reason}",)
    assert caught.value.__context__ is None


def test_decode_accepts_a_byte_order_mark() -> None:
    assert decode(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"a":1,"c":2}', {}),
        (b'{"a":1,"b":{"c":1,"c":2},"a":2}', {"a": [1, 2]}),
        (b'{"c":1,"a":1,"c":2,"a":3}', {"c": [1, 2], "a": [1, 3]}),
        (b'{"a":1,"b":{"a":1},"c":"a"}', {}),
        (b'{"a" :1,"c":"a","a"\n\t:2}', {"a": [1, 2]}),
        (b'{"a":1,"c":"\\"a\\":\\"a\\":"}', {}),
        (b'{"a":1,"\\u0061":2}', {"a": [1, 2]}),
        (b'{"a":1,"\\u0062":2}', {}),
        (b'{"a":"\\u00e8","c":"\\u0061"}', {}),
        (b'{"a":"\\u00e8","a":2}', {"a": ["\u00e8", 2]}),
        (b'\xef\xbb\xbf{"a":1,"a":2}', {"a": [1, 2]}),
    ],
)
def test_repeated_members_returns_all_values(body: bytes, found: dict[str, list[object]]) -> None:
    assert repeated_members(body, decode(body), ("c", "a")) == found


def test_value_that_equals_a_name_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §2.1: both deprecated texts of a response may be `approved`."""
    monkeypatch.setattr("loanasync._protocol.json._PAIRS", None)
    body = b'{"approved":true,"approvalMessageApiFull":"approved","approvalMessageApiSemiFull":"approved"}'
    assert repeated_members(body, decode(body), ["approved"]) == {}
    with pytest.raises(AttributeError):
        repeated_members(b'{"approved":true,"approved":true}', {"approved": True}, ["approved"])


@given(APPROVAL_REQUESTS)
def test_encode_is_equal_with_both_libraries(request: ApprovalRequest) -> None:
    written = write(request, STREET)
    assert written == encode(json.loads(written))


def test_repeated_names_in_a_deep_body_are_malformed() -> None:
    deep = b'{"a":1,"a":%s1%s}' % (b"[" * 50_000, b"]" * 50_000)
    with pytest.raises(Malformed, match="nested too deeply"):
        repeated_members(deep, {"a": []}, ["a"])


def test_decode_any_with_a_raised_recursion_limit_refuses_a_deep_body() -> None:
    """A deeper body would overflow the stack of Python 3.11."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        with pytest.raises(Malformed, match="nested too deeply"):
            decode_any(b"[" * 10_001 + b"]" * 10_001)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("value", "found"), [(b'"IT60', "IT60…"), (b'"a\\u00', "a…"), (b"[1", None), (b"tru", None), (b"1", 1)]
)
def test_decode_part_reads_a_truncated_text_only(value: bytes, found: object) -> None:
    assert decode_part(b'{"a":' + value, "a") == [found]


@given(st.binary())
def test_decode_any_bytes_returns_members_or_malformed(body: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(decode(body), dict)


INTEGERS = st.integers(-(2**63), 2**64 - 1)  # longer ones are floats: no amount is one, and none is written
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
WIRE_NAMES = st.sampled_from(
    ["approved", "amount", "email", "redirectUrl", "citizenship", "paymentDayOfMonth", "x"]
)


@given(st.dictionaries(WIRE_NAMES, JSON_VALUES))
def test_read_decision_any_members_are_read_or_in_raw(body: dict[str, Any]) -> None:
    read = read_decision(Refused, decode(json.dumps(body).encode()), META)
    assert dict(read.raw) == body


def test_bodies_are_encoded_as_utf8_without_spaces() -> None:
    assert encode({"a": {"b": [1, "è"]}}) == '{"a":{"b":[1,"è"]}}'.encode()
