"""Exact messages of the validation rules, as a checkout form shows them."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from loanasync import Dialect, Limits, Problem
from loanasync._models.dialect import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync._validation import rules
from support.builders import additional_data, approval_request, user_data

NOT_SENDABLE = "must not contain line breaks or other control characters"
PHONE = "must not contain the international prefix; put it into country_calling_code"
PROVINCE = "must be two upper-case letters, such as RM"
NAPOLI = "; pandas reads NA (Napoli) as a missing value: read the column as text"
NOVARA = "; YAML reads NO (Novara) as false: put it in quotes"
ZEROS = "; give five digits as text, because a number loses its leading zeros (00100 is Roma)"


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("amount", None, "is required: an int between 5000 and 1500000 (euro cents)"),
        (
            "amount",
            125.5,
            "must be an int, not float: euro cents, between 5000 and 1500000; 125.50 euros are 12550 cents",
        ),
        ("amount", 1, "must be between 5000 and 1500000 (euro cents)"),
        ("instalments", 61, "must be between 3 and 60 (instalments)"),
        (
            "amount",
            float("nan"),
            "must be an int, not NaN: euro cents, between 5000 and 1500000; 125.50 euros are 12550 cents",
        ),
        ("instalments", np.float64(9), "must be an int, not numpy.float64: instalments, between 3 and 60"),
        ("instalments", "9", "must be an int, not str: instalments, between 3 and 60"),
        ("last_name", None, "is required"),
        ("last_name", 5, "must be a str, not int"),
        ("last_name", " ", "must not be blank"),
        ("last_name", "a\ud800", "must not contain an unpaired surrogate, which UTF-8 cannot encode"),
        ("email", None, "is required"),
        ("email", 5, "must be a str, not int"),
        ("email", "anna", "must be an e-mail address: one @ with text on both sides, and no spaces"),
        ("mobile_phone", "+39333", PHONE),
        ("mobile_phone", "0039333", PHONE),
        ("country_calling_code", 39, "must be a str, not int"),
        (
            "address",
            "Via Prova, 12",
            "must be the street name without commas; put the number into street_number",
        ),
        ("province", "rm", PROVINCE),
        ("province", None, "is required" + NAPOLI),
        ("province", 0.5, "must be a str, not float" + NAPOLI),
        ("province", float("nan"), "must be a str, not NaN" + NAPOLI),
        ("province", False, "must be a str, not bool" + NOVARA),
        ("province", 5, "must be a str, not int"),
        ("postal_code", "100", "must be five digits; if it is shorter, it may have lost leading zeros"),
        ("postal_code", 100, "must be a str, not int" + ZEROS),
        ("postal_code", 100.0, "must be a str, not float" + ZEROS),
        ("postal_code", float("nan"), "must be a str, not NaN"),
        ("postal_code", b"00100", "must be a str, not bytes"),
        ("citizenship", None, "is required"),
        ("citizenship", "martian", "must be one of italian, eu, outside_eu, Italian"),
        ("iban", float("nan"), "must be a str, not NaN; use None for missing values"),
        ("zero_interest_rate", 0, "must be True or False, not int"),
        ("payment_day_of_month", 32, "must be between 1 and 31 (day of the month)"),
    ],
)
def test_message_of_an_approval_field(field: str, value: Any, sentence: str) -> None:
    changes = {field: value}
    assert check(**changes) == [Problem(field, APPROVAL_NAMES[field], sentence)]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (
            "residence",
            5,
            "must be one of rent, home_ownership, home_ownership_mortgage, home_business, with_relatives",
        ),
        ("residence_start_date", "05/2019", "must be a datetime.date, not str"),
        (
            "residence_start_date",
            datetime(2019, 5, 1, tzinfo=UTC),
            "must be a date without a time; convert it with .date()",
        ),
        ("children", 2, "must be one of 0, 1, 2, 3, 4, 5+, as a str"),
        (
            "salary",
            1.5,
            "must be an int, not float: whole euros; cents are not sent",
        ),
        ("salary", 2**63, "must be whole euros as an int of at most 64 bits"),
    ],
)
def test_message_of_an_additional_data_field(field: str, value: object, sentence: str) -> None:
    assert check(additional=additional_data(**{field: value})) == [
        Problem(field, APPROVAL_NAMES[field], sentence)
    ]


def test_messages_of_limits_that_are_off_by_default() -> None:
    limits = Limits(mobile_phone="[0-9]+", country_calling_code="[+].*", salary_max=5, single_line=True)
    changes: dict[str, Any] = {"mobile_phone": "333 0", "country_calling_code": "39", "city": "a\nb"}
    found = check(limits=limits, additional=additional_data(salary=-1), **changes)
    assert {each.field: each.message for each in found} == {
        "mobile_phone": "must be a mobile number that matches limits.mobile_phone",
        "country_calling_code": "must be a calling code that matches limits.country_calling_code",
        "city": NOT_SENDABLE,
        "salary": "must be between 0 and 5 (whole euros)",
    }
    [problem] = check(limits=limits, additional=additional_data(salary=1.5))
    assert problem.message == "must be an int, not float: whole euros, between 0 and 5; cents are not sent"


def test_messages_of_additional_data_as_a_whole() -> None:
    missing = check(needed=True)
    assert len(missing) == 6
    assert {each.message for each in missing} == {"is required because the service asked for additional data"}
    assert check(additional=[]) == [Problem("additional", "", "must be an AdditionalData, not list")]


def test_messages_of_dialect_options() -> None:
    dialect = Dialect(order_token_required=True, sends_iban=False, sends_payment_day_of_month=False)
    found = check(dialect, iban="IT00", payment_day_of_month=5)
    assert found == [
        Problem("order_token", "orderToken", "is required in this dialect"),
        Problem(
            "iban", "iban", "is not part of this dialect; omit it, or set sends_iban=True in the Dialect"
        ),
        Problem(
            "payment_day_of_month",
            "paymentDayOfMonth",
            "is not part of this dialect; omit it, or set sends_payment_day_of_month=True in the Dialect",
        ),
    ]


def test_message_of_the_street_number_limit() -> None:
    found = check(limits=Limits(street_number="[0-9]+"), street_number="SNC")
    sentence = "must be a street number that matches limits.street_number"
    assert found == [Problem("street_number", APPROVAL_NAMES["street_number"], sentence)]


def test_messages_of_extra_members() -> None:
    json_only = "must contain only JSON values: str, int, finite float, bool, None, list, dict"
    assert check(extra={"a": 1j}) == [Problem("extra", "", json_only)]
    assert check(extra={5: 5}) == [Problem("extra", "", "must have only keys of type str")]
    assert check(extra="abc") == [Problem("extra", "", "must be a mapping, not str")]
    assert check(extra={"iban": 1, "email": 2}) == [
        Problem("extra", name, f"must not contain {name}; extra is for members without a field")
        for name in ("email", "iban")
    ]
    assert list(rules.check_payload([])) == [Problem("payload", "", "must be a mapping, not list")]
    assert list(rules.check_scope(7)) == [Problem("scope", "", "must be a str, not int")]


def test_messages_of_wrong_types() -> None:
    found = rules.check_approval(
        [], additional_data_needed=False, dialect=Dialect.street_number(), limits=Limits()
    )
    assert list(found) == [Problem("request", "", "must be an instance of ApprovalRequest, not list")]
    assert list(rules.check_user_data([])) == [
        Problem("data", "", "must be an instance of UserData, not list")
    ]


def test_message_of_a_user_data_field() -> None:
    [problem] = rules.check_user_data(user_data(document_type="library_card"))
    sentence = "must be one of identity_card, driving_license, passport"
    assert problem == Problem("document_type", USER_DATA_NAMES["document_type"], sentence)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (None, "is required"),
        (5, "must be a str, not int"),
        ("SHORT", "must be 16 letters and digits"),
        ("TSTXYZ80A01A000A", "has a wrong check letter; ask the customer to type it again"),
    ],
)
def test_message_of_the_fiscal_code(code: object, sentence: str) -> None:
    assert list(rules.check_fiscal_code(code, strict=True)) == [
        Problem("fiscal_code", "fiscalCode", sentence)
    ]


def check(
    dialect: Dialect | None = None, limits: Limits | None = None, *, needed: bool = False, **changes: Any
) -> list[Problem]:
    return list(
        rules.check_approval(
            approval_request(**changes),
            additional_data_needed=needed,
            dialect=dialect or Dialect.street_number(),
            limits=limits or Limits(),
        )
    )
