"""The JSON Schema of the SDK and the checks of the sandbox agree, member by member.

Both are made from separate tables, so a mistake in one of them is found here.
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from loanasync import ApprovalRequest, Dialect, UserData, schema
from loanasync._protocol.codec import write
from loanasync.sandbox.validation import USER_DATA, approval_errors, body_errors
from support.builders import additional_data, approval_request, user_data

TEXTS = ["", " ", "\n", "x", "RM", "rm", "RMX", "00100", "0010", "12/A", "a,b", "a@b", "a b@c", "+39", "0039"]
CHOICES = ["italian", "Italian", "eu", "rent", "diploma", "0", "5+", "6", "net-monthly", "passport", "true"]
DATES = ["2019-05-01", "2019-02-30", "20190501", "05/2019", "13/2019", "5/2019", "1", "31", "32", "09"]
NUMBERS = [-1, 0, 1, 2, 3, 31, 32, 60, 61, 4_999, 5_000, 1_500_000, 1_500_001, 2**63 - 1, 2**63]
VALUES: list[Any] = [*TEXTS, *CHOICES, *DATES, *NUMBERS, 1.5, True, False, None, [], {}]
BLANK = ["", " ", "\n"]

BODIES: dict[str, Any] = {
    "Approval": approval_request(
        additional=additional_data(),
        country_calling_code="+39",
        iban="IT00",
        zero_interest_rate=True,
        order_token="token",
        payment_day_of_month=9,
    ),
    "UserData": user_data(profession="baker", payment_day_of_month=9),
}
ACCEPTED_BY_SDK_ONLY: dict[str, Any] = {
    # The specification does not say if an optional text may be blank. Only the SDK accepts it.
    "Approval": dict.fromkeys(("countryCallingCode", "iban", "orderToken"), BLANK) | {"salary": [-1]},
    "UserData": dict.fromkeys(("iban", "profession"), BLANK),
}
ACCEPTED_BY_SANDBOX_ONLY: dict[str, Any] = {
    "Approval": {
        "citizenship": ["Italian"],  # the spelling of the other description
        "salary": [2**63],
    },
    "UserData": {},
}


def bodies(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each member and value with the body in which that member has the value."""
    body = json.loads(write(BODIES[name], Dialect.street_number()))
    for member in body:
        for value in VALUES:
            yield member, value, {**body, member: value}


def required(name: str, is_valid: Any) -> set[str]:
    body = json.loads(write(BODIES[name], Dialect.street_number()))
    assert is_valid(body)
    return {member for member in body if not is_valid({k: v for k, v in body.items() if k != member})}


@pytest.mark.parametrize(("name", "model"), [("Approval", ApprovalRequest), ("UserData", UserData)])
def test_sdk_and_sandbox_accept_the_same_members(name: str, model: Any) -> None:
    of_sdk = jsonschema_rs.Draft202012Validator(
        schema(model, wire_names=True), validate_formats=True
    ).is_valid

    def of_sandbox(body: dict[str, Any]) -> bool:
        if name == "Approval":
            return not approval_errors(body, None, additional=False)
        return not body_errors(USER_DATA, body)

    assert required(name, of_sdk) == required(name, of_sandbox)
    by_sdk: dict[str, list[Any]] = {}
    by_sandbox: dict[str, list[Any]] = {}
    for member, value, body in bodies(name):
        if of_sdk(body) and not of_sandbox(body):
            by_sdk.setdefault(member, []).append(value)
        # spec §2.1: the sandbox reads null as "not sent", and the SDK sends no null.
        if of_sandbox(body) and not of_sdk(body) and value is not None:
            by_sandbox.setdefault(member, []).append(value)
    assert by_sdk == ACCEPTED_BY_SDK_ONLY[name]
    assert by_sandbox == ACCEPTED_BY_SANDBOX_ONLY[name]
