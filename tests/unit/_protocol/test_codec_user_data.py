"""Conversion of user data (spec §2.2) to JSON, and of the response to a completion to user data."""

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import DocumentType, UserData
from loanasync._models import USER_DATA_NAMES
from loanasync._protocol.codec import read_user_data, write
from loanasync._protocol.json import decode
from support.builders import USER_DATA, user_data
from unit._protocol.test_codec import CIVIC, JSON_VALUES, STREET


def test_user_data_is_written_exactly() -> None:
    sent = write(user_data(document_type=DocumentType.PASSPORT, extra={"x": "à"}), STREET)
    assert (
        sent
        == (
            '{"documentOfType":"passport","documentCode":"AA00000AA","documentCity":"Roma",'
            '"documentIssueDate":"2022-05-17","documentExpirationDate":"2032-05-17",'
            '"iban":"IT00A0000000000000000000000","politicallyExposed":false,"usPerson":false,"marketing":true,'
            '"paymentDayOfMonth":5,"profession":"baker","x":"à"}'
        ).encode()
    )


def test_read_user_data_document_type_is_an_enum_member() -> None:
    assert read_user_data({"documentOfType": "passport"}).document_type is DocumentType.PASSPORT


@given(USER_DATA)
def test_user_data_round_trip(data: UserData) -> None:
    assert read_user_data(decode(write(data, CIVIC))) == data


def test_unknown_members_of_user_data_go_into_extra() -> None:
    assert dict(read_user_data(decode(b'{"usPerson":true,"new":[1]}')).extra) == {"new": [1]}
    assert read_user_data(decode(b'{"documentOfType":"library_card"}')).document_type == "library_card"
    assert read_user_data(decode(b'{"documentOfType":null,"iban":"IT"}')).document_type is None


@pytest.mark.parametrize("day", [b'"5"', b"5"])
def test_read_user_data_day_of_month_as_text_or_integer(day: bytes) -> None:
    read = read_user_data(decode(b'{"paymentDayOfMonth":%s}' % day))
    assert read == UserData(payment_day_of_month=5)


def test_read_user_data_null_is_none() -> None:
    names = ("usPerson", "marketing", "profession", "iban", "documentIssueDate", "paymentDayOfMonth")
    assert read_user_data(decode(json.dumps(dict.fromkeys(names)).encode())) == UserData()


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        ({"paymentDayOfMonth": 1.9}, ("paymentDayOfMonth",)),
        ({"usPerson": "no", "documentIssueDate": "17/05/2022"}, ("documentIssueDate", "usPerson")),
        ({"documentIssueDate": "2022-02-30"}, ("documentIssueDate",)),
        ({"documentIssueDate": "20220517"}, ("documentIssueDate",)),
        ({"documentIssueDate": "2022-05-17 or so"}, ("documentIssueDate",)),
        ({"documentIssueDate": "2022-05-17T00:00:00 or so"}, ("documentIssueDate",)),
        ({"documentExpirationDate": {"date": "2022-05-17"}}, ("documentExpirationDate",)),
        ({"documentOfType": 5}, ("documentOfType",)),
        ({"iban": ["IT00"], "documentCode": 5, "marketing": 0}, ("documentCode", "iban", "marketing")),
    ],
)
def test_read_user_data_unreadable_members_are_none_and_unread(
    body: dict[str, Any], unread: tuple[str, ...]
) -> None:
    """Spec §4.2: 200 means that the data are saved, so an unreadable member is not an error."""
    read = read_user_data(decode(json.dumps({**body, "profession": "baker"}).encode()))
    assert read == UserData(profession="baker")
    assert read.unread == unread


@pytest.mark.parametrize(
    "written",
    [
        "2020-01-31",
        "2020-01-31T00:00:00+02:00",
        "2020-01-31T23:59:59-05:00",
        "2020-01-31 00:00:00",
        "2020-01-31T00:00:00Z",
        "2020-01-31T00:00:00.000000+0000",
        "2020-01-31 00:00",
    ],
)
def test_read_user_data_timestamp_is_its_date(written: str) -> None:
    read = read_user_data({"documentIssueDate": written, "documentExpirationDate": written})
    assert (read.document_issue_date, read.document_expiration_date) == (date(2020, 1, 31), date(2020, 1, 31))
    assert read.unread == ()


def test_unread_is_not_sent_and_not_compared() -> None:
    read = read_user_data({"usPerson": True, "iban": 5})
    assert read.unread == ("iban",)
    assert (read, hash(read)) == (UserData(us_person=True), hash(UserData(us_person=True)))
    assert write(read, STREET) == b'{"usPerson":true}'
    assert UserData().unread == ()


@given(st.dictionaries(st.sampled_from([*USER_DATA_NAMES.values(), "new"]), JSON_VALUES))
def test_read_user_data_any_member_is_read_or_unread(body: dict[str, Any]) -> None:
    members = decode(json.dumps(body).encode())
    read = read_user_data(members)
    for field, wire_name in USER_DATA_NAMES.items():
        is_none = members.get(wire_name) is None or wire_name in read.unread
        assert (getattr(read, field) is None) == is_none
    assert read.extra == {name: members[name] for name in members if name == "new"}
