"""Valid, made-up requests, to be bent by each test as it needs."""

from datetime import date
from typing import Any

from hypothesis import strategies as st

from loanasync import AdditionalData, ApprovalRequest, UserData

FISCAL_CODE = "TSTXYZ00A00A000A"


def additional_data(**changes: Any) -> AdditionalData:
    values = {
        "residence": "rent",
        "residence_start_date": date(2019, 5, 1),
        "educational_qualification": "diploma",
        "children": "2",
        "salary_type": "net-monthly",
        "salary": 1_600,
    }
    return AdditionalData(**{**values, **changes})


def approval_request(**changes: Any) -> ApprovalRequest:
    values = {
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
        "street_number": "12/A",
        "citizenship": "italian",
    }
    return ApprovalRequest(**{**values, **changes})


def user_data(**changes: Any) -> UserData:
    values = {
        "document_type": "identity_card",
        "document_code": "AA00000AA",
        "document_city": "Roma",
        "document_issue_date": date(2022, 5, 17),
        "document_expiration_date": date(2032, 5, 17),
        "iban": "IT00A0000000000000000000000",
        "politically_exposed": False,
        "us_person": False,
        "marketing": True,
        "payment_day_of_month": 5,
        "profession": "baker",
    }
    return UserData(**{**values, **changes})


def _user_data(fields: dict[str, Any]) -> UserData:
    return UserData(**fields)


def _approval_request(fields: dict[str, Any]) -> ApprovalRequest:
    return ApprovalRequest(**fields)


# Anything a person may type: letters of every script, no control characters, no halves of surrogate pairs.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda text: text.strip() != ""
)
DAYS = st.dates(min_value=date(1900, 1, 1))

USER_DATA = st.fixed_dictionaries(
    {"us_person": st.booleans()},
    optional={
        "document_type": st.sampled_from(["identity_card", "driving_license", "passport"]),
        "document_code": TEXTS,
        "document_city": TEXTS,
        "document_issue_date": DAYS,
        "document_expiration_date": DAYS,
        "iban": TEXTS,
        "politically_exposed": st.booleans(),
        "marketing": st.booleans(),
        "payment_day_of_month": st.integers(1, 31),
        "profession": TEXTS,
        "extra": st.dictionaries(st.just("newField") | st.just("other"), st.integers() | TEXTS, max_size=2),
    },
).map(_user_data)

APPROVAL_REQUESTS = st.fixed_dictionaries(
    {
        "amount": st.integers(5_000, 1_500_000),
        "instalments": st.integers(3, 60),
        "email": st.emails(),
        "last_name": TEXTS,
        "first_name": TEXTS,
        "mobile_phone": st.from_regex("[1-9][0-9]{5,10}", fullmatch=True),
        "city": TEXTS,
        "address": TEXTS.filter(lambda text: "," not in text),
        "province": st.from_regex("[A-Z]{2}", fullmatch=True),
        "postal_code": st.from_regex("[0-9]{5}", fullmatch=True),
        "street_number": TEXTS,
        "citizenship": st.sampled_from(["italian", "eu", "outside_eu"]),
    },
    optional={
        "country_calling_code": st.sampled_from(["+39", "+1", "+353"]),
        "iban": TEXTS,
        "zero_interest_rate": st.booleans(),
        "order_token": TEXTS,
        "payment_day_of_month": st.integers(1, 31),
        "additional": st.builds(
            additional_data, residence_start_date=DAYS, salary=st.integers(0, 10**7), children=st.just("5+")
        ),
    },
).map(_approval_request)
