"""Requests for tests, from `loanasync.testing`, and Hypothesis strategies for arbitrary requests."""

from datetime import date
from typing import Any
from unicodedata import normalize

import attrs
from hypothesis import strategies as st

from loanasync import ApprovalRequest, UserData, testing
from loanasync._models.characters import is_blank
from loanasync.testing import additional_data, user_data

__all__ = [
    "APPROVAL_REQUESTS",
    "FISCAL_CODE",
    "USER_DATA",
    "additional_data",
    "approval_request",
    "user_data",
]

FISCAL_CODE = "TSTXYZ00A00A000A"


def approval_request(**changes: Any) -> ApprovalRequest:
    # A fixed e-mail address, so that tests can compare it.
    return testing.approval_request(**{"email": "anna@example.com", **changes})


def _user_data(fields: dict[str, Any]) -> UserData:
    return UserData(**fields)


def _approval_request(fields: dict[str, Any]) -> ApprovalRequest:
    return ApprovalRequest(**fields)


# Texts that a person may type: letters of every script, no control characters, no unpaired surrogates.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda text: not is_blank(text)
)
DAYS = st.dates(min_value=date(1900, 1, 1))
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {str | None: TEXTS, bool | None: st.booleans()}

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
        "address": TEXTS.filter(lambda text: "," not in normalize("NFKC", text)),
        "province": st.from_regex("[A-Z]{2}", fullmatch=True),
        "postal_code": st.from_regex("[0-9]{5}", fullmatch=True),
        "street_number": TEXTS,
        "citizenship": st.sampled_from(["italian", "eu", "outside_eu"]),
    },
    optional={
        **{each.name: BY_TYPE[each.type] for each in attrs.fields(ApprovalRequest) if each.type in BY_TYPE},
        "country_calling_code": st.sampled_from(["+39", "+1", "+353"]),
        "payment_day_of_month": st.integers(1, 31),
        "additional": st.builds(
            additional_data, residence_start_date=DAYS, salary=st.integers(0, 10**7), children=st.just("5+")
        ),
    },
).map(_approval_request)
