"""Output of successful calls, of the sandbox and of the demo contains no personal data."""

import asyncio
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
import attrs
import pytest
from markupsafe import escape
from rich.console import Console

from loanasync import ApprovalRequest, Approved, LoanClient, LoanError, Refused, UserData
from loanasync.cli import demo
from loanasync.sandbox import Sandbox
from loanasync.testing import ScriptedTransport, response
from support.privacy.plants import CODE, ECHO, LIMITS, PAYLOAD, REDIRECT, SAVED, TOKEN, planted
from support.privacy.scanner import Captured, searched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# The sandbox requires provinces of two letters and postal codes of five digits (spec §8).
VALID: dict[str, Any] = {"province": "RM", "postal_code": "00100"}
TAGS = (
    *("approved", "refused", "500x1", "500x9", "already", "nouser", "noshop", "badcode", "conflict"),
    *("forbidden", "invalid.city", "500after", "reset", "empty", "truncated", "html502", "unknown"),
)


def tagged(tag: str) -> ApprovalRequest:
    request: ApprovalRequest = planted(
        ApprovalRequest, email=f"zzqemailaddress+{tag}@example.com", extra={}, **VALID
    )
    return request


async def test_scripted_transport_shows_no_personal_data() -> None:
    steps = [
        response(201, {**ECHO, "approved": True}),
        response(422, {**ECHO, "approved": False}),
        response(200, SAVED),
        response(200, ECHO),
        response(200, ECHO),
    ]
    with searched() as captured:
        script = ScriptedTransport(*steps)
        async with script.client(auth_token=TOKEN, limits=LIMITS, **captured.providers) as client:
            approved = await client.approve(CODE, planted(ApprovalRequest), order_id="first")
            refused = await client.approve(CODE, planted(ApprovalRequest), order_id="second")
            saved = await client.complete(CODE, planted(UserData))
            opened = [await client.create_request(PAYLOAD), await client.upload_documents(CODE, PAYLOAD)]
            captured.values += [approved, refused, saved, *opened, *script.sent, *steps, client]
            captured.values += [each.headers for each in script.sent]
            with pytest.raises(AssertionError) as exhausted:
                await client.approve(CODE, planted(ApprovalRequest), order_id="third")
            captured.values.append(str(exhausted.value))
    # Attributes return the real value. Only printed objects are masked.
    assert isinstance(approved, Approved)
    assert isinstance(refused, Refused)
    assert (approved.fiscal_code, approved.redirect_url) == (CODE, REDIRECT)
    assert approved.raw["lastname"] == refused.last_name == ECHO["lastname"]
    assert saved.extra == {"newField": "zzqextravalue"}
    assert isinstance(opened[0], Mapping)
    assert opened[0]["lastname"] == ECHO["lastname"]


async def walk(client: LoanClient, captured: Captured, tag: str) -> None:
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: client.create_request(PAYLOAD),
        lambda: client.approve(CODE, tagged(tag)),
        lambda: client.approve(CODE, tagged(tag)),
        lambda: client.upload_documents(CODE, PAYLOAD),
        lambda: client.complete(CODE, planted(UserData)),
    )
    for call in calls:
        try:
            captured.add(await call())
        except LoanError as error:
            captured.add(error)


def failed_assertions(sandbox: Sandbox) -> list[str]:
    """Return the messages of failed assertions about calls."""
    journal = sandbox.journal
    wanted: list[dict[str, Any]] = [
        {"fiscal_code": CODE, "status": 299},
        {"operation": "approve", "body": {**ECHO, "lastname": "Zzqlastnamevalue", "city": CODE}},
        {"operation": "complete", "body": SAVED, "response": SAVED},
    ]
    messages = []
    for criteria in wanted:
        with pytest.raises(AssertionError) as none:
            journal.assert_once(**criteria)
        messages.append(str(none.value))
        with pytest.raises(AssertionError) as late:
            journal.wait(timeout=0.01, **criteria)
        messages.append(str(late.value))
    with pytest.raises(AssertionError) as some:
        journal.assert_never(fiscal_code=CODE)
    return [*messages, str(some.value)]


async def pages(sandbox: Sandbox, captured: Captured) -> None:
    code = CODE.lower()
    paths = ["", "_sandbox/", "_sandbox/journal.jsonl", "_sandbox/findings.json", "_sandbox/health"]
    paths += [f"_sandbox/calls/{entry.number}" for entry in sandbox.journal]
    own = [customer.order.page for _, customer in sandbox._engine.customers.items()]
    paths += [f"apply/{page}" for page in own if page]
    paths += ["_sandbox/calls/9999", "apply/nobody", f"_sandbox/journal.jsonl?{code}"]
    async with aiohttp.ClientSession(sandbox.base_url) as session:
        for path in paths:
            async with session.get(f"/{path}") as page:
                text = await page.text()
                if path.startswith("apply/"):  # the customer's page shows the order token
                    text = text.replace(escape(planted(ApprovalRequest).order_token), "")
                captured.pages += [text, str(page.headers)]


@pytest.mark.parametrize("tag", TAGS)
async def test_sandbox_calls_show_no_personal_data(tag: str) -> None:
    asyncio.get_running_loop().set_debug(True)
    with searched() as captured:
        async with Sandbox(auth_token=TOKEN) as sandbox:
            sandbox.fault("complete=500:0", CODE)
            async with sandbox.client(**captured.providers) as client, aiohttp.ClientSession() as session:
                await walk(client, captured, tag)
                # Misuse that the sandbox reports.
                url = f"{sandbox.base_url}/api/shops/{sandbox.shop_id}/requests/{CODE}"
                query = f"?token={TOKEN}&email=zzqemailaddress@example.com&code={CODE}"
                await session.post(url + query, data=CODE.encode(), headers={"X-Auth-Token": TOKEN})
                await session.get(f"{url}/{CODE}", headers={"X-Auth-Token": CODE})
                await session.post(url, json=[CODE], headers={"X-Auth-Token": TOKEN})
            await pages(sandbox, captured)
            journal = sandbox.journal
            assert journal.calls(fiscal_code=CODE)
            captured.journal += [journal.to_jsonl(), repr(journal), *failed_assertions(sandbox)]
            captured.journal += [f"{each!r} {each}" for each in (*journal, *sandbox.findings, *journal[:2])]
            captured.values += [sandbox, *sandbox._engine.faults, sandbox._engine, client]
            captured.values += [customer for _, customer in sandbox._engine.customers.items()]


def test_demo_prints_no_personal_data(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter((CODE, CODE[::-1]))
    monkeypatch.setattr(demo, "fiscal_code", lambda: next(codes))
    monkeypatch.setattr(demo, "user_data", lambda: planted(UserData))

    def request(tag: str = "approved", amount: int = 45_000) -> ApprovalRequest:
        return attrs.evolve(tagged(tag), amount=amount)

    monkeypatch.setattr(demo, "approval_request", request)
    printed = io.StringIO()
    with searched() as captured:
        asyncio.run(demo.run_demo(Console(file=printed, width=200)))
        captured.output.append(printed.getvalue())
    assert "loanasync.approve" in printed.getvalue()
    assert "send the customer to http://127.0.0.1:" in printed.getvalue()
