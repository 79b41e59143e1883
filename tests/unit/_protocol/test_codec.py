"""Conversion of models to JSON in both dialects, and of JSON in any spelling to models."""

import json
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
    DocumentType,
    Meta,
    Refused,
    UserData,
)
from loanasync._models.masking import Body
from loanasync._models.requests import USER_DATA_NAMES
from loanasync._protocol.codec import read_decision, read_user_data, write
from loanasync._protocol.json import decode
from support.builders import APPROVAL_REQUESTS, USER_DATA, additional_data, approval_request, user_data

META = Meta(status=201, attempts=1, elapsed=0.1)
STREET, CIVIC = Dialect.street_number(), Dialect.civic_number()
OTHER = Dialect(street_number_field="civicNumber", instalments_field="installments", italian="Italian")

FULL = approval_request(
    country_calling_code="+39", iban="IT00", zero_interest_rate=False, order_token="o",
    payment_day_of_month=5, additional=additional_data(residence_start_date=date(987, 5, 1)),
    extra={"newField": [1, {"a": None}]},
)  # fmt: skip
COMMON = {
    "amount": 45_000, "loanFinality": "ecommerce_shop", "email": "anna@example.com", "lastname": "Prova",
    "firstname": "Anna", "mobilePhone": "3330000000", "countryCallingCode": "+39", "city": "Roma",
    "address": "Via Prova", "province": "RM", "postalCode": "00100", "iban": "IT00",
    "zeroInterestRate": False, "orderToken": "o", "paymentDayOfMonth": "5", "residence": "rent",
    "residenceStartDate": "05/0987", "educationalQualification": "diploma", "children": "2",
    "salaryType": "net-monthly", "salary": 1_600, "newField": [1, {"a": None}],
}  # fmt: skip

# A URL that URL libraries would normalize; its fragment contains a token.
OPAQUE = "HTTPS://Loans.Example:443/a/../%7eb?c=%c3%a9 \u00e9&&d#t=%2f+/../#e"


def written(model: ApprovalRequest | UserData, dialect: Dialect = STREET) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(write(model, dialect))
    return members


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
    assert written(FULL, dialect) == {**COMMON, **own}
    for spelling in ("italian", "Italian", Citizenship.ITALIAN):
        assert written(approval_request(citizenship=spelling), dialect)["citizenship"] == own["citizenship"]
    eu = approval_request(citizenship=Citizenship.OUTSIDE_EU)
    assert written(eu, dialect)["citizenship"] == "outside_eu"


def test_none_is_not_sent() -> None:
    """Spec §2.1: the conditional fields are required only when additionalDataNeeded is true."""
    plain = written(approval_request())
    assert None not in plain.values()
    optional = {"additional", "extra", "iban", "orderToken", "paymentDayOfMonth", "zeroInterestRate"}
    assert not optional & plain.keys()
    assert written(approval_request(additional=AdditionalData())) == plain
    some = approval_request(additional=AdditionalData(children="2", salary=0))
    assert written(some) == {**plain, "children": "2", "salary": 0}


def test_write_subclass_equals_its_base() -> None:
    class Order(ApprovalRequest):
        """A request of another type."""

    class Completion(UserData):
        """User data of another type."""

    order = Order(**attrs.asdict(FULL, recurse=False))
    assert written(order, CIVIC) == written(FULL, CIVIC)
    completion = Completion(document_issue_date=date(2019, 5, 1))
    assert written(completion) == {"documentIssueDate": "2019-05-01"}


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
        ({"redirectUrl": OPAQUE}, "redirect_url", OPAQUE),
        ({"redirectUrl": None}, "redirect_url", None),
        ({"email": None}, "email", None),
        ({"zeroInterestRate": True}, "zero_interest_rate", True),
        ({"netAmount": 5}, "net_amount", 5),
    ],
)
def test_read_decision_accepts_all_spellings(members: dict[str, object], field: str, value: object) -> None:
    read = read_decision(Approved, members, META)
    assert (type(getattr(read, field)), getattr(read, field)) == (type(value), value)
    assert read.meta == META


@pytest.mark.parametrize(
    "url", [f" {OPAQUE}", f"{OPAQUE}\n", f"\r\n\t{OPAQUE} \t\r\n", f"\xa0{OPAQUE}\u2028"]
)
def test_read_decision_removes_spaces_and_line_breaks_around_the_url(url: str) -> None:
    """A web framework raises an error for a line break in the header Location."""
    read = read_decision(Approved, {"redirectUrl": url}, META)
    assert (read.redirect_url, read.meta.unread, read.raw["redirectUrl"]) == (OPAQUE, (), url)


@pytest.mark.parametrize(
    ("wire_name", "values"),
    [
        ("amount", ["5000", 1.5, True]),
        ("netAmount", [[1]]),
        ("zeroInterestRate", ["false", 0]),
        ("email", [5]),
        ("citizenship", [5]),
        ("paymentDayOfMonth", ["first", "105", 5.0]),
        ("streetNumber", [{"a": 1}]),
        ("redirectUrl", ["", " ", "\t\n", 5, ["https://x"]]),
        ("redirectUrl", [f"https://x{control}#t" for control in "\n\r\t\0\x1f\x7f\x85\u2028"]),
        ("redirectUrl", ["\0https://x", "https://x\x7f"]),
    ],
)
def test_read_decision_keeps_the_decision_with_a_wrong_type(wire_name: str, values: list[object]) -> None:
    for value in values:
        members = {"redirectUrl": "https://x", "instalments": 9, wire_name: value}
        read = read_decision(Approved, members, META)
        right = read_decision(Approved, {**members, wire_name: None}, META)
        assert read.meta == attrs.evolve(META, unread=(wire_name,))
        assert attrs.evolve(read, raw=Body(), meta=META) == attrs.evolve(right, raw=Body())
        assert read.raw[wire_name] == value


INTEGERS = st.integers(-(2**63), 2**64 - 1)  # longer ones are floats: no amount is one, and none is written
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_user_data_is_written_exactly() -> None:
    sent = write(user_data(document_type=DocumentType.PASSPORT, extra={"x": "à"}), STREET)
    assert sent.decode() == (
        '{"documentOfType":"passport","documentCode":"AA00000AA","documentCity":"Roma",'
        '"documentIssueDate":"2022-05-17","documentExpirationDate":"2032-05-17",'
        '"iban":"IT00A0000000000000000000000","politicallyExposed":false,"usPerson":false,"marketing":true,'
        '"paymentDayOfMonth":5,"profession":"baker","x":"à"}'
    )


@given(USER_DATA)
def test_user_data_round_trip(data: UserData) -> None:
    assert read_user_data(decode(write(data, CIVIC))) == data


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"usPerson": True, "new": [1]}, UserData(us_person=True, extra={"new": [1]})),
        ({"unread": "x", "extra": 5}, UserData(extra={"unread": "x", "extra": 5})),
        ({"documentOfType": "passport"}, UserData(document_type=DocumentType.PASSPORT)),
        ({"documentOfType": "library_card"}, UserData(document_type="library_card")),
        ({"paymentDayOfMonth": "5"}, UserData(payment_day_of_month=5)),
        (dict.fromkeys(USER_DATA_NAMES.values()), UserData()),
        *(
            ({"documentIssueDate": f"2020-01-31{time}"}, UserData(document_issue_date=date(2020, 1, 31)))
            for time in ("T00:00:00+02:00", "T23:59:59-05:00", "T00:00:00Z", "T00:00:00.000000+0000",
                         " 00:00:00", " 00:00")
        ),
    ],
    ids=str,
)  # fmt: skip
def test_read_user_data_accepts_all_spellings(body: dict[str, Any], read: UserData) -> None:
    found = read_user_data(body)
    assert (found, found.unread) == (read, ())
    assert type(found.document_type) is type(read.document_type)


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        ({"paymentDayOfMonth": 1.9}, ("paymentDayOfMonth",)),
        ({"usPerson": "no", "documentIssueDate": "17/05/2022"}, ("documentIssueDate", "usPerson")),
        *(
            ({"documentIssueDate": day}, ("documentIssueDate",))
            for day in ("2022-02-30", "20220517", "2022-05-17 or so", "2022-05-17T00:00:00 or so")
        ),
        ({"documentExpirationDate": {"date": "2022-05-17"}}, ("documentExpirationDate",)),
        ({"documentOfType": 5}, ("documentOfType",)),
        ({"iban": ["IT00"], "documentCode": 5, "marketing": 0}, ("documentCode", "iban", "marketing")),
    ],
)
def test_read_user_data_unreadable_members_are_none_and_unread(
    body: dict[str, Any], unread: tuple[str, ...]
) -> None:
    """Spec §4.2: 200 means that the data are saved. Unread members are neither sent nor compared."""
    read, same = read_user_data({**body, "profession": "baker"}), UserData(profession="baker")
    assert (read, hash(read), read.unread) == (same, hash(same), unread)
    assert write(read, STREET) == b'{"profession":"baker"}'


@given(st.dictionaries(st.sampled_from([*USER_DATA_NAMES.values(), "new"]), JSON_VALUES))
def test_read_user_data_any_member_is_read_or_unread(body: dict[str, Any]) -> None:
    members = decode(json.dumps(body).encode())
    read = read_user_data(members)
    for field, wire_name in USER_DATA_NAMES.items():
        is_none = members.get(wire_name) is None or wire_name in read.unread
        assert (getattr(read, field) is None) == is_none
    assert read.extra == {name: members[name] for name in members if name == "new"}
