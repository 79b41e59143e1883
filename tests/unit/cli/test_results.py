"""The record of a row whose decision only the ledger has."""

import json

import pytest

from loanasync.cli.approve_many.results import members_of_entry
from loanasync.ledger import Entry, State

NUMBERS = {"amount": 45_000, "instalments": 12}
DECIDED = {
    "status": "approved",
    "outcome": "approved",
    "repeatable": False,
    "at": "1970-01-01T00:00:00.000+00:00",
}


@pytest.mark.parametrize("spelling", ["instalments", "installments"])
@pytest.mark.parametrize(
    ("response", "members"),
    [
        (
            {"netAmount": 43_650, "redirectUrl": "https://a.b"},
            {"net_amount": 43_650, "redirect_url": "https://a.b"},
        ),
        ({}, {"message": "approved without a redirect: ask the service where to send the customer"}),
    ],
)
def test_record_has_the_values_of_the_stored_response(
    spelling: str, response: dict[str, object], members: dict[str, object]
) -> None:
    body = {"approved": True, "amount": 45_000, spelling: 12, "firstname": "Anna", **response}
    entry = Entry(
        key="k", state=State.APPROVED, token="t", payload="p", claimed=0.0, changed=0.0, expires=0.0,
        status=201, body=json.dumps(body).encode(),
    )  # fmt: skip
    assert members_of_entry(entry) == {**DECIDED, **NUMBERS, **members}
