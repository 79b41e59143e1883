"""Exact messages of the validation rules, as a checkout form shows them."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from loanasync import Dialect, Limits, Problem, Residence
from loanasync._models import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync._results import described
from loanasync._validation import rules
from support.builders import additional_data, approval_request, user_data

NOT_SENDABLE = "must not contain line breaks or other control characters"
PHONE = "must not contain the international prefix; put it into country_calling_code"
PROVINCE = "must be two upper-case letters, such as RM"
NAPOLI = "; pandas reads NA (Napoli) as a missing value: read the column as text"
NOVARA = "; YAML reads NO (Novara) as false: put it in quotes"
ZEROS = "; give five digits as text, because a number loses its leading zeros (00100 is Roma)"
DAY = "must be a whole number between 1 and 31"
CENTS = "must be a whole number between 5000 and 1500000 (euro cents)"


@pytest.mark.parametrize(
    ("field", "value", "rule", "sentence"),
    [
        ("amount", None, "required", CENTS.replace("must be", "is required:")),
        ("amount", 125.5, "type", f"{CENTS}; use an int, not float; 125.50 euros are 12550 cents"),
        ("amount", "204,00", "type", f"{CENTS}; use an int, not str; 125.50 euros are 12550 cents"),
        ("amount", "450", "type", f"{CENTS}; use an int, not str; 125.50 euros are 12550 cents"),
        ("amount", " ", "type", f"{CENTS}; use an int, not str"),
        ("amount", 1, "range", CENTS),
        ("amount", float("nan"), "type", f"{CENTS}; use an int, not NaN"),
        ("amount", True, "type", f"{CENTS}; use an int, not bool; 125.50 euros are 12550 cents"),
        (
            "instalments",
            np.float64(9),
            "type",
            "must be a whole number between 3 and 60; use an int, not numpy.float64",
        ),
        ("instalments", 61, "range", "must be a whole number between 3 and 60"),
        (
            "instalments",
            "9",
            "type",
            "must be a whole number between 3 and 60; use an int, not str; convert it with int(...)",
        ),
        ("instalments", "9,0", "type", "must be a whole number between 3 and 60; use an int, not str"),
        ("last_name", None, "required", "is required"),
        ("last_name", 5, "type", "must be text; use a str, not int"),
        ("last_name", " ", "blank", "must not be blank"),
        (
            "last_name",
            "a\ud800",
            "encoding",
            "must not contain an unpaired surrogate, which UTF-8 cannot encode",
        ),
        ("email", None, "required", "is required"),
        ("email", 5, "type", "must be text; use a str, not int"),
        (
            "email",
            "anna",
            "format",
            "must be an e-mail address: one @ with text on both sides, and no spaces",
        ),
        ("mobile_phone", "+39333", "prefix", PHONE),
        ("mobile_phone", "0039333", "prefix", PHONE),
        ("country_calling_code", 39, "type", "must be text; use a str, not int"),
        (
            "address",
            "Via Prova, 12",
            "comma",
            "must be the street name without commas; put the number into street_number",
        ),
        ("province", "rm", "format", PROVINCE),
        ("province", None, "required", "is required" + NAPOLI),
        ("province", 0.5, "type", "must be text; use a str, not float" + NAPOLI),
        ("province", float("nan"), "type", "must be text; use a str, not NaN" + NAPOLI),
        ("province", False, "type", "must be text; use a str, not bool" + NOVARA),
        ("province", 5, "type", "must be text; use a str, not int"),
        (
            "postal_code",
            "100",
            "format",
            "must be five digits; if it is shorter, it may have lost leading zeros",
        ),
        ("postal_code", 100, "type", "must be text; use a str, not int" + ZEROS),
        ("postal_code", 100.0, "type", "must be text; use a str, not float" + ZEROS),
        ("postal_code", float("nan"), "type", "must be text; use a str, not NaN"),
        ("postal_code", b"00100", "type", "must be text; use a str, not bytes"),
        ("citizenship", None, "required", "is required"),
        ("citizenship", "martian", "choice", "must be one of italian, eu, outside_eu, Italian"),
        ("iban", float("nan"), "type", "must be text; use a str, not NaN; use None for missing values"),
        ("zero_interest_rate", 0, "yes_no", "must be true or false; use a bool, not int"),
        ("payment_day_of_month", 32, "range", DAY),
        (
            "payment_day_of_month",
            "",
            "type",
            f"{DAY}; use an int, not str; use None for missing values",
        ),
    ],
)
def test_message_of_an_approval_field(field: str, value: Any, rule: str, sentence: str) -> None:
    changes = {field: value}
    [problem] = check(**changes)
    assert (problem.field, problem.wire_name) == (field, APPROVAL_NAMES[field])
    assert (problem.code, str(problem)) == (f"{field}.{rule}", f"{field}: {sentence}")


@pytest.mark.parametrize(
    ("field", "value", "rule", "sentence"),
    [
        (
            "residence",
            5,
            "choice",
            f"must be one of {', '.join(Residence)}; use a str, not int",
        ),
        (
            "residence_start_date",
            "05/2019",
            "date",
            "must be a date; use a datetime.date, not str; convert it with date.fromisoformat(...)",
        ),
        ("residence_start_date", 2019, "date", "must be a date; use a datetime.date, not int"),
        (
            "residence_start_date",
            datetime(2019, 5, 1, tzinfo=UTC),
            "time",
            "must be a date without a time; convert it with .date()",
        ),
        ("children", 2, "choice", "must be one of 0, 1, 2, 3, 4, 5+; use a str, not int"),
        (
            "salary",
            1.5,
            "type",
            "must be a whole number (euros); use an int, not float; cents are not sent",
        ),
        ("salary", 2**63, "digits", "must be a number of at most 64 bits"),
    ],
)
def test_message_of_an_additional_data_field(field: str, value: object, rule: str, sentence: str) -> None:
    [problem] = check(additional=additional_data(**{field: value}))
    assert (problem.field, problem.wire_name) == (field, APPROVAL_NAMES[field])
    assert (problem.code, str(problem)) == (f"{field}.{rule}", f"{field}: {sentence}")


def test_messages_of_limits_that_are_off_by_default() -> None:
    limits = Limits(mobile_phone="[0-9]+", country_calling_code="[+].*", salary_max=5, single_line=True)
    changes: dict[str, Any] = {"mobile_phone": "333 0", "country_calling_code": "39", "city": "a\nb"}
    found = check(limits=limits, additional=additional_data(salary=-1), **changes)
    assert {each.code: described(each) for each in found} == {
        "mobile_phone.format": "must be a valid mobile number; it does not match limits.mobile_phone",
        "country_calling_code.format": (
            "must be a valid calling code; it does not match limits.country_calling_code"
        ),
        "city.control_characters": NOT_SENDABLE,
        "salary.range": "must be a whole number between 0 and 5 (euros)",
    }
    [problem] = check(limits=limits, additional=additional_data(salary=1.5))
    assert problem.message == "must be a whole number between 0 and 5 (euros)"
    assert problem.hint == "use an int, not float; cents are not sent"


def test_messages_of_additional_data_as_a_whole() -> None:
    missing = check(needed=True)
    assert len(missing) == 6
    assert {described(each) for each in missing} == {"is required; the service asked for additional data"}
    assert {each.code for each in missing} == {f"{each.field}.required" for each in missing}
    assert shown(check(additional=[])) == [("additional.object", "must be an AdditionalData; not list")]


def test_messages_of_dialect_options() -> None:
    dialect = Dialect(order_token_required=True, sends_iban=False, sends_payment_day_of_month=False)
    found = check(dialect, iban="IT00", payment_day_of_month=5)
    assert [each.wire_name for each in found] == ["orderToken", "iban", "paymentDayOfMonth"]
    assert shown(found) == [
        ("order_token.required", "is required; this dialect requires it"),
        (
            "iban.dialect",
            "is not part of this dialect; omit it, or set sends_iban=True in the Dialect",
        ),
        (
            "payment_day_of_month.dialect",
            "is not part of this dialect; omit it, or set sends_payment_day_of_month=True in the Dialect",
        ),
    ]


def test_message_of_the_street_number_limit() -> None:
    found = check(limits=Limits(street_number="[0-9]+"), street_number="SNC")
    sentence = "must be a valid street number; it does not match limits.street_number"
    assert shown(found) == [("street_number.format", sentence)]
    assert found[0].params == {"pattern": "[0-9]+"}


def test_messages_of_extra_members() -> None:
    json_only = "must contain only JSON values; use str, int, finite float, bool, None, list and dict"
    assert shown(check(extra={"a": 1j})) == [("extra.json", json_only)]
    assert shown(check(extra={5: 5})) == [("extra.keys", "must have only texts as keys")]
    assert shown(check(extra="abc")) == [("extra.object", "must be a mapping; not str")]
    found = check(extra={"iban": 1, "email": 2})
    assert [each.wire_name for each in found] == ["email", "iban"]
    assert shown(found) == [
        ("extra.known", f"must not contain {name}; extra is for members without a field")
        for name in ("email", "iban")
    ]
    assert shown(rules.check_payload([])) == [("payload.object", "must be a mapping; not list")]
    assert shown(rules.check_scope(7)) == [("scope.type", "must be text; use a str, not int")]


def test_messages_of_wrong_types() -> None:
    found = rules.check_approval(
        [], additional_data_needed=False, dialect=Dialect.street_number(), limits=Limits()
    )
    assert shown(found) == [("request.object", "must be an instance of ApprovalRequest; not list")]
    assert shown(rules.check_user_data([])) == [("data.object", "must be an instance of UserData; not list")]


def test_message_of_a_user_data_field() -> None:
    [problem] = rules.check_user_data(user_data(document_type="library_card"))
    options = ("identity_card", "driving_license", "passport")
    sentence = f"must be one of {', '.join(options)}"
    assert problem == Problem("document_type", USER_DATA_NAMES["document_type"], sentence)
    assert (problem.code, problem.params) == ("document_type.choice", {"options": options})


@pytest.mark.parametrize(
    ("value", "rule", "sentence"),
    [
        (None, "required", "is required"),
        (5, "type", "must be text; use a str, not int"),
        ("SHORT", "format", "must be 16 letters and digits"),
        (
            "TSTXYZ80A01A000A",
            "check_letter",
            "has a wrong check letter; ask the customer to type it again",
        ),
    ],
)
def test_message_of_the_fiscal_code(value: object, rule: str, sentence: str) -> None:
    [problem] = rules.check_fiscal_code(value, strict=True)
    assert (problem.wire_name, problem.code) == ("fiscalCode", f"fiscal_code.{rule}")
    assert str(problem) == f"fiscal_code: {sentence}"


def shown(found: Iterable[Problem]) -> list[tuple[str, str]]:
    return [(each.code, described(each)) for each in found]


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
