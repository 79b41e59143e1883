"""Responses in the inspector and the exported journal: readable messages, masked personal values."""

import html
import json
from typing import Any

import pytest

from loanasync.sandbox.journal import JournalEntry
from support.raw_shop import BODY, CODE, Raw
from support.sandbox_pages import get


async def last_call(raw: Raw) -> tuple[str, dict[str, Any]]:
    """Return the inspector's page of the last call, and its response in the exported journal."""
    number = raw.sandbox.journal[-1].number
    page = html.unescape((await get(raw, f"/_sandbox/calls/{number}"))[1])
    line = (await get(raw, f"/_sandbox/journal.jsonl?number={number}"))[1]
    return page.partition('id="response"')[2].partition("</section>")[0], json.loads(line)["response"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"city": ""}, "This value should not be blank."),
        ({"amount": 1}, "This value should be between 5000 and 1500000"),
        ({"instalments": 2}, "The number of installments must be between 3 and 60"),
        ({"email": "a+nouser@example.com"}, "User not found"),
        ({"email": "a+conflict@example.com"}, "The request cannot be completed"),
        ({"email": "a+forbidden@example.com"}, "Access denied"),
        ({"email": "a+500x1@example.com"}, "System error"),
        ({"email": "a+refus@example.com"}, "did you mean +refused?"),
    ],
)
async def test_service_message_is_readable(raw: Raw, changes: dict[str, Any], message: str) -> None:
    await raw.create()
    _, response = await raw.approve(**changes)
    page, exported = await last_call(raw)
    assert message in page
    assert exported == response


async def test_message_of_an_unknown_path_is_readable(raw: Raw) -> None:
    await raw("GET", "", {})
    page, exported = await last_call(raw)
    assert "the service has: POST" in page
    assert "the service has: POST" in str(exported)


async def test_message_of_a_rule_is_masked(raw: Raw) -> None:
    raw.sandbox.on("create_request").respond(400, {"errors": {"domain": ["not for Anna Prova"]}})
    await raw.create()
    page, exported = await last_call(raw)
    assert "Prova" not in page
    assert exported == {"errors": "***"}


@pytest.mark.parametrize("sent", ["Anna Prova", ["Anna Prova"], {"Anna Prova": ["x"]}])
async def test_returned_field_with_the_name_of_a_message_is_masked(raw: Raw, sent: object) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}/documents", {})
    assert (await raw("PATCH", f"/{CODE}", {"errors": sent, "error": sent}))[0] == 200
    page, exported = await last_call(raw)
    assert "Prova" not in page
    assert exported == {"errors": "***", "error": "***"}


@pytest.mark.parametrize(
    "name", ["Anna Prova", "Prova.pdf", CODE, CODE.lower(), "anna@example.com", "333000"]
)
async def test_member_named_like_a_person_is_masked(raw: Raw, name: str) -> None:
    """A member of documents can be named like a file or a fiscal code."""
    body = {"fiscalCode": CODE, "documentFront2": "x", name: "x"}
    for path in ("", f"/{CODE}/documents"):
        await raw("POST", path, body)
        number = raw.sandbox.journal[-1].number
        line = (await get(raw, f"/_sandbox/journal.jsonl?number={number}"))[1]
        assert list(json.loads(line)["request"]) == ["fiscalCode", "documentFront2", "***"]
        assert name not in line
        assert name not in (await get(raw, f"/_sandbox/calls/{number}"))[1]


def entry(response: dict[str, Any]) -> JournalEntry:
    request = {**BODY, "salary": 123_456, "documents": [{"holder": "Rossi"}]}
    return JournalEntry(
        number=1,
        at=0,
        method="POST",
        route="/",
        operation="approve",
        fiscal_code=CODE,
        status=400,
        elapsed=0,
        evaluated=False,
        fault="",
        request=request,
        response=response,
    )


@pytest.mark.parametrize(
    ("message", "masked"),
    [
        (f"{CODE.lower()} is wrong", "*** is wrong"),
        ("no street Via Prova in ROMA", "no street *** in ***"),
        ("anna@example.com, 3330000000 and 00100", "***, *** and ***"),
        ("Rossi earns 123456", "*** earns ***"),
        ("between 3 and 60, 12 at most, for 45000", "between 3 and 60, 12 at most, for 45000"),
        ("Annamaria and aRoma", "Annamaria and aRoma"),
    ],
)
def test_personal_value_in_a_message_is_masked(message: str, masked: str) -> None:
    assert entry({"errors": message}).masked()["response"] == {"errors": masked}
    assert entry({"errors": {"city": [message, 7]}}).masked()["response"] == {
        "errors": {"city": [masked, "***"]}
    }
