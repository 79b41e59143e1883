"""Texts that the service sends: none of them is shown, unless the specification lists it."""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from loanasync import LoanError, RetryPolicy
from loanasync.ledger import MemoryLedger
from loanasync.testing import approval_request, response, scripted_client, user_data
from support.builders import FISCAL_CODE
from support.privacy.scanner import OUTPUT_KINDS, Captured, capturing

TEXT = "Qwyjibo"  # occurs in every text of the service below, and nowhere else
ONCE = RetryPolicy(attempts=1)
OPERATIONS = ("create_request", "approve", "upload_documents", "complete")
# Each message of spec §7, with a text of the service behind it.
LISTED = (
    *("Invalid date format", "This value should not be blank."),
    *("This value should be between 5000 and 1500000", "User not found"),
    *("User already evaluated for approval", "This sales point cannot apply for a loan"),
    *("Invalid fiscalCode.", "System error", "Access denied"),
)
LONGER = [f"{text}{between}{TEXT}" for text in LISTED for between in (" ", "\n", ": ", " " * 5_000)]


def bodies(status: int) -> Iterator[bytes]:
    """Yield all bodies for the statuses of error messages, and fewer for the others."""
    texts = [TEXT, *(LONGER if status in (400, 500) else LONGER[::4])]
    for members in (
        {"errors": {"lastname": texts, "domain": texts, "system": texts, TEXT: texts}},
        {"errors": {TEXT: ["This value should not be blank."], "city": {TEXT: TEXT}}},
        {"errors": {"domain": ["User not found"], f"domain {TEXT}": ["User not found"]}},
        *({"errors": {"domain": [text]}} for text in texts),
        *({"errors": text} for text in texts),
        *({"error": text} for text in texts),
        {"approved": TEXT, "fiscalCode": TEXT, TEXT: TEXT, "errors": {"city": texts}},
        {"approved": True, "amount": TEXT, "email": [TEXT], "documentCode": [TEXT], TEXT: TEXT},
        {"approved": False, "fiscalCode": f"{TEXT}5"},
    ):
        yield json.dumps(members).encode()
    yield f"<p>{TEXT}</p>".encode()
    yield f'{{"approved": tr{TEXT}'.encode()
    yield json.dumps([TEXT]).encode()


HEADERS = {
    **dict.fromkeys(("X-Request-Id", "Date", "Retry-After", "Server", TEXT), TEXT),
    "Location": f"https://loans.example.com/{TEXT}",
}


async def call(operation: str, status: int, body: bytes, captured: Captured) -> None:
    client = scripted_client(
        response(status, body, HEADERS), ledger=MemoryLedger(), retry=ONCE, **captured.providers
    )
    payload: dict[str, Any] = {"fiscalCode": FISCAL_CODE}
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "create_request": lambda: client.create_request(payload),
        "approve": lambda: client.approve(FISCAL_CODE, approval_request()),
        "upload_documents": lambda: client.upload_documents(FISCAL_CODE, payload),
        "complete": lambda: client.complete(FISCAL_CODE, user_data()),
    }
    try:
        captured.add(await calls[operation]())
    except LoanError as error:
        captured.add(error)


@pytest.mark.parametrize("status", [200, 201, 302, 400, 403, 404, 409, 422, 429, 500, 502])
async def test_unlisted_text_of_the_service_is_not_shown(status: int) -> None:
    with capturing() as captured:
        for operation in OPERATIONS:
            for body in bodies(status):
                await call(operation, status, body, captured)
    assert captured.errors
    for kind in OUTPUT_KINDS:
        shown = [text for text in kind.texts(captured) if TEXT.casefold() in text.casefold()]
        assert shown == [], kind.name


@pytest.mark.parametrize("text", LISTED)
async def test_listed_text_of_the_service_is_shown(text: str) -> None:
    name = "system" if text == "System error" else "domain" if text in LISTED[3:7] else "city"
    body: dict[str, Any] = {"error": text} if text == "Access denied" else {"errors": {name: [text]}}
    with capturing() as captured:
        await call("approve", 400, json.dumps(body).encode(), captured)
    [error] = captured.errors
    assert text in str(error)
    assert repr(text) in repr(error.args)


async def test_unlisted_text_of_the_service_is_an_attribute() -> None:
    body = {"errors": {"city": [TEXT], TEXT: ["no"]}}
    with capturing() as captured:
        await call("create_request", 400, json.dumps(body).encode(), captured)
    [error] = captured.errors
    [city, other] = error.problems  # type: ignore[attr-defined]
    assert (city.message, city.text("it"), other.field, other.wire_name) == (TEXT,) * 4
    assert (str(city), str(other)) == ("city: ***", "***: ***")
