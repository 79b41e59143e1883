"""Admin calls over HTTP: invalid ones get a 404 or 400 with instructions and change nothing."""

import io
import json
from typing import Any

import pytest

from support.raw_shop import CODE, TOKEN, Raw
from support.sandbox_pages import approved, get, post

UNKNOWN = "no customer has this handle"


async def send(raw: Raw, path: str, **sent: Any) -> tuple[int, str]:
    """Send a POST without an Accept header, as programs do."""
    async with raw.session.post(raw.sandbox.base_url + path, **sent) as response:
        return response.status, await response.text()


async def handle_of(raw: Raw, number: int) -> str:
    lines = (await get(raw, f"/_sandbox/journal.jsonl?number={number}"))[1]
    return str(json.loads(lines)["customer"])


@pytest.mark.parametrize("handle", ["", "nobody", CODE])
async def test_reset_of_an_unknown_customer_is_404(raw: Raw, handle: str) -> None:
    await raw.create()
    await raw("POST", "", {})  # a call without a fiscal code
    before = raw.sandbox.snapshot()
    status, text = await send(raw, "/_sandbox/reset", data={"customer": handle})
    assert (status, text[: len(UNKNOWN)]) == (404, UNKNOWN)
    assert "/_sandbox/journal.jsonl" in text
    status, page = await post(raw, "/_sandbox/reset?personal=shown", customer=handle)
    assert (status, UNKNOWN in page, "Hide personal data" in page) == (404, True, True)
    assert raw.sandbox.snapshot() == before
    assert len(raw.sandbox.journal) == 2


async def test_reset_removes_one_customer_once(raw: Raw) -> None:
    await raw.create()
    handle = await handle_of(raw, 1)
    assert await send(raw, "/_sandbox/reset", data={"customer": handle}) == (204, "")
    assert (await send(raw, "/_sandbox/reset", data={"customer": handle}))[0] == 404
    assert len(raw.sandbox.journal) == 1


async def test_reset_removes_an_uncreated_customer(raw: Raw) -> None:
    await raw.approve()
    handle = await handle_of(raw, 1)
    assert await send(raw, "/_sandbox/reset", data={"customer": handle}) == (204, "")
    await raw.create()
    await raw.approve()
    assert len(raw.sandbox.findings) == 1


@pytest.mark.parametrize(
    ("path", "sent", "message"),
    [
        ("reset", {"data": {"custmer": "a"}}, "unknown field 'custmer', did you mean 'customer'?"),
        ("reset", {"data": {"fiscal_code": CODE}}, "unknown field 'fiscal_code', did you mean 'customer'?"),
        ("reset", {"json": {"customer": "a"}}, "send a form with the field 'customer', not application/json"),
        ("reset", {"data": b"customer=a"}, "send a form with the field 'customer', not application/octet"),
        ("reset", {"params": {"customer": "a"}}, "unknown query parameter 'customer': send a form"),
        ("reset", {"data": [("customer", "a"), ("customer", "b")]}, "field 'customer' is given twice"),
        ("reset", {"data": {"customer": io.BytesIO(b"a")}}, "field 'customer' is a file: send text"),
        ("faults", {"json": {"rule": "500"}}, "send a form with the field 'rule', not application/json"),
        ("faults", {"data": {"rule": "500", "operation": "approve"}}, "unknown field 'operation', did you"),
        ("faults", {"data": [("rule", "500"), ("rule", "503")]}, "field 'rule' is given twice"),
        ("faults", {"params": {"rule": "500"}}, "unknown query parameter 'rule': send a form"),
        ("faults/clear", {"data": {"rule": "#1"}}, "this POST applies to everything and has no field 'rule'"),
        ("faults/clear", {"json": {"rule": "#1"}}, "send no fields, not application/json"),
        (
            "faults/clear",
            {"params": {"rule": "#1"}},
            "unknown query parameter 'rule': send no fields",
        ),
    ],
)
async def test_admin_call_with_an_unknown_field_changes_nothing(
    raw: Raw, path: str, sent: dict[str, Any], message: str
) -> None:
    await raw.create()
    rule = raw.sandbox.on("complete").respond(503)
    status, text = await send(raw, f"/_sandbox/{path}", **sent)
    assert (status, text[: len(message)]) == (400, message)
    assert (list(raw.sandbox.snapshot()), raw.sandbox.rules) == ([CODE], [rule])


async def test_empty_post_applies_to_everything(raw: Raw) -> None:
    json_type = {"headers": {"Content-Type": "application/json"}}
    empty: list[dict[str, Any]] = [{}, {"data": {}}, json_type]
    for sent in empty:
        raw.sandbox.on("complete").respond(503)
        assert await send(raw, "/_sandbox/faults/clear", **sent) == (204, "")
        assert raw.sandbox.rules == []
        await raw.create()
        assert await send(raw, "/_sandbox/reset", **sent) == (204, "")
        assert raw.sandbox.snapshot() == {}


async def test_second_decision_of_an_application_is_409(raw: Raw) -> None:
    page = await approved(raw)
    for _ in range(2):  # the same decision again is not an error and changes nothing
        assert await send(raw, page, data={"action": "accept"}) == (204, "")
    status, text = await send(raw, page, data={"action": "cancel"})
    assert (status, text) == (409, "the application is already accepted: the first decision is final")
    assert "Application accepted." in (await get(raw, page))[1]


async def test_journal_filter_given_twice_is_400(raw: Raw) -> None:
    status, text = await get(raw, "/_sandbox/journal.jsonl?status=201&status=400")
    assert (status, text) == (400, "filter 'status' is given twice: send one request for each value")


async def test_findings_with_a_query_are_400(raw: Raw) -> None:
    status, text = await get(raw, "/_sandbox/findings.json?rule=post-after-201")
    assert (status, text) == (400, "unknown query parameter 'rule': findings cannot be filtered")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/_sandbox/fault", 404),
        ("POST", "/_sandbox/fault", 404),
        ("DELETE", "/_sandbox/faults", 405),
        ("GET", "/_sandbox/reset", 405),
        ("POST", "/_sandbox/journal.jsonl", 405),
    ],
)
async def test_unknown_admin_call_lists_the_known_ones(raw: Raw, method: str, path: str, status: int) -> None:
    async with raw.session.request(method, raw.sandbox.base_url + path) as response:
        assert response.status == status
        assert "POST /_sandbox/faults/clear" in await response.text()


async def test_admin_calls_need_no_token(raw: Raw) -> None:
    assert (await send(raw, "/_sandbox/reset", headers={"X-Auth-Token": TOKEN}))[0] == 204
