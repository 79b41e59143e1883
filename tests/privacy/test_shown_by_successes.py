"""What goes well shows nobody either: decisions, the sandbox's journal and pages, the demo, warnings."""

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
from support.privacy.scanner import Seen, leaks, watching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# The sandbox keeps to the specification: provinces of two letters, postal codes of five digits.
NARROW: dict[str, Any] = {"province": "RM", "postal_code": "00100"}
TAGS: tuple[str, ...] = (
    "approved",
    "refused",
    "500x1",
    "500x9",
    "already",
    "nouser",
    "noshop",
    "badcode",
    "conflict",
)
TAGS += ("forbidden", "invalid.city", "500after", "reset", "empty", "truncated", "html502", "unknown")


def tagged(tag: str) -> ApprovalRequest:
    request: ApprovalRequest = planted(
        ApprovalRequest, email=f"zzqemailaddress+{tag}@example.com", extra={}, **NARROW
    )
    return request


async def test_a_script_and_what_it_recorded_show_no_one() -> None:
    steps = [
        response(201, {**ECHO, "approved": True}),
        response(422, {**ECHO, "approved": False}),
        response(200, SAVED),
        response(200, ECHO),
        response(200, ECHO),
    ]
    with watching() as seen:
        script = ScriptedTransport(*steps)
        async with script.client(auth_token=TOKEN, limits=LIMITS, remember=False, **seen.providers) as client:
            approved = await client.approve(CODE, planted(ApprovalRequest))
            refused = await client.approve(CODE, planted(ApprovalRequest))
            saved = await client.complete(CODE, planted(UserData))
            opened = [await client.create_request(PAYLOAD), await client.upload_documents(CODE, PAYLOAD)]
            seen.values += [approved, refused, saved, *opened, *script.sent, *steps, client]
            seen.values += [each.headers for each in script.sent]
            with pytest.raises(AssertionError) as at_its_end:
                await client.approve(CODE, planted(ApprovalRequest))
            seen.values.append(str(at_its_end.value))
    # Reading an attribute is plain; printing its object is not.
    assert isinstance(approved, Approved)
    assert isinstance(refused, Refused)
    assert (approved.fiscal_code, approved.redirect_url) == (CODE, REDIRECT)
    assert approved.raw["lastname"] == refused.last_name == ECHO["lastname"]
    assert saved.extra == {"newField": "zzqextravalue"}
    assert isinstance(opened[0], Mapping)
    assert opened[0]["lastname"] == ECHO["lastname"]
    assert leaks(seen) == []


async def walk(client: LoanClient, seen: Seen, tag: str) -> None:
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: client.create_request(PAYLOAD),
        lambda: client.approve(CODE, tagged(tag)),
        lambda: client.approve(CODE, tagged(tag)),
        lambda: client.upload_documents(CODE, PAYLOAD),
        lambda: client.complete(CODE, planted(UserData)),
    )
    for call in calls:
        try:
            seen.add(await call())
        except LoanError as error:
            seen.add(error)


def complaints(sandbox: Sandbox) -> list[str]:
    """What a test's failed claims about the calls say."""
    journal = sandbox.journal
    wanted: list[dict[str, Any]] = [
        {"fiscal_code": CODE, "status": 299},
        {"operation": "approve", "body": {**ECHO, "lastname": "Zzqlastnamevalue", "city": CODE}},
        {"operation": "complete", "body": SAVED, "answer": SAVED},
    ]
    said = []
    for criteria in wanted:
        with pytest.raises(AssertionError) as none:
            journal.assert_once(**criteria)
        said.append(str(none.value))
        with pytest.raises(AssertionError) as late:
            journal.wait(timeout=0.01, **criteria)
        said.append(str(late.value))
    with pytest.raises(AssertionError) as some:
        journal.assert_never(fiscal_code=CODE)
    return [*said, str(some.value)]


async def pages(sandbox: Sandbox, seen: Seen) -> None:
    code = CODE.lower()
    paths = ["", "_sandbox/", "_sandbox/journal.jsonl", "_sandbox/findings.json", "_sandbox/health", "shop"]
    paths += [f"_sandbox/calls/{entry.number}" for entry in sandbox.journal]
    paths += [f"apply/{customer.page}" for _, customer in sandbox._engine.customers.items() if customer.page]
    paths += ["_sandbox/calls/9999", "apply/nobody", f"_sandbox/journal.jsonl?fiscal_code={code}"]
    async with aiohttp.ClientSession(sandbox.base_url) as session:
        for path in paths:
            async with session.get(f"/{path}") as answer:
                text = await answer.text()
                if path.startswith("apply/"):  # the customer's own page, where the order comes first
                    text = text.replace(escape(planted(ApprovalRequest).order_token), "")
                seen.pages += [text, str(answer.headers)]


@pytest.mark.parametrize("tag", TAGS)
async def test_a_walk_through_the_sandbox_shows_no_one(tag: str) -> None:
    asyncio.get_running_loop().set_debug(True)
    with watching() as seen:
        async with Sandbox(auth_token=TOKEN) as sandbox:
            rule = sandbox.on(fiscal_code=CODE, operation="complete", call=9).respond(500)
            async with sandbox.client(**seen.providers) as client, aiohttp.ClientSession() as session:
                await walk(client, seen, tag)
                # Misuse, which the sandbox names without repeating what it saw.
                url = f"{sandbox.base_url}/api/shops/{sandbox.shop_id}/requests/{CODE}"
                query = f"?token={TOKEN}&email=zzqemailaddress@example.com&code={CODE}"
                await session.post(url + query, data=CODE.encode(), headers={"X-Auth-Token": TOKEN})
                await session.get(f"{url}/{CODE}", headers={"X-Auth-Token": CODE})
                await session.post(url, json=[CODE], headers={"X-Auth-Token": TOKEN})
            await pages(sandbox, seen)
            journal = sandbox.journal
            assert journal.calls(fiscal_code=CODE)
            seen.journal += [journal.to_jsonl(), repr(journal), *complaints(sandbox)]
            seen.journal += [f"{each!r} {each}" for each in (*journal, *sandbox.findings, *journal[:2])]
            seen.values += [sandbox, rule, sandbox.rules, sandbox.snapshot(), sandbox._engine, client]
    assert leaks(seen) == []


async def test_a_person_is_shown_on_a_page_to_whoever_asks_for_it() -> None:
    async with Sandbox(auth_token=TOKEN) as sandbox, sandbox.client() as client:
        await client.create_request(PAYLOAD)
        url = f"{sandbox.base_url}/_sandbox/?personal=shown"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert CODE in await answer.text()


def test_the_demo_prints_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_ANNA", CODE)
    monkeypatch.setattr(demo, "_BRUNO", CODE[::-1])
    monkeypatch.setattr(demo, "UserData", lambda **_: planted(UserData))
    monkeypatch.setattr(demo, "_request", lambda _, tag, amount: attrs.evolve(tagged(tag), amount=amount))
    printed = io.StringIO()
    with watching() as seen:
        recorded = asyncio.run(demo.demo(Console(file=printed, width=200)))
        exported = "".join(span.to_json() for span in recorded.spans) + recorded.metrics.to_json()
        assert "loanasync.approve" in exported
        seen.output += [printed.getvalue(), exported]
    assert "send the customer to http://127.0.0.1:" in printed.getvalue()
    assert leaks(seen) == []
