"""Admin calls over HTTP: journal, findings, resets, faults and events."""

import asyncio
import json
import re
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from loanasync.sandbox import Sandbox
from support.raw_shop import CODE, Raw
from support.sandbox_pages import INSPECTOR, approved, get, post, section


async def findings(raw: Raw) -> Any:
    return json.loads((await get(raw, "/_sandbox/findings.json"))[1])


async def test_findings_json_has_rule_call_and_sentence(raw: Raw) -> None:
    await approved(raw)
    await raw.approve()
    [found] = await findings(raw)
    assert (found["rule"], found["call"]) == ("post-after-201", 3)
    assert "Keep the first response" in found["message"]


async def test_openapi_json_has_the_url_of_the_server(raw: Raw) -> None:
    document = json.loads((await get(raw, "/_sandbox/openapi.json"))[1])
    assert document["openapi"].startswith("3.")
    assert document["servers"][0]["url"].startswith(raw.sandbox.base_url)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", [1, 2, 3, 4]),
        ("operation=approve", [2, 3]),
        ("operation=", [4]),
        ("status=201", [1, 2]),
        ("status=201&operation=approve", [2]),
        ("status=none", []),
        ("evaluated=true", [2]),
        ("evaluated=false", [1, 3, 4]),
        ("number=3", [3]),
        ("method=POST&fault=", [1, 2, 3, 4]),
        (f"fiscal_code={CODE}", [1, 2, 3]),
        ("route=(unknown)", [4]),
    ],
)
async def test_journal_is_filtered_by_the_query(raw: Raw, query: str, numbers: list[int]) -> None:
    await approved(raw)
    await raw.approve()
    await raw("POST", "/x/y/z", {})
    status, text = await get(raw, f"/_sandbox/journal.jsonl?{query}")
    assert status == 200
    assert [json.loads(line)["number"] for line in text.splitlines()] == numbers


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("oparation=approve", "unknown filter 'oparation', did you mean 'operation'?"),
        ("body=x", "unknown filter 'body', did you mean"),
        ("operation=aprove", "unknown operation 'aprove', did you mean 'approve'?"),
        ("status=ok", "status 'ok' must be a whole number"),
        ("number=", "number '' must be a whole number"),
        ("evaluated=yes", "evaluated 'yes' must be true or false"),
    ],
)
async def test_invalid_journal_filter_is_400(raw: Raw, query: str, message: str) -> None:
    status, text = await get(raw, f"/_sandbox/journal.jsonl?{query}")
    assert (status, text[: len(message)]) == (400, message)


async def test_reset_removes_everything(raw: Raw) -> None:
    await approved(raw)
    await raw.approve()
    await post(raw, "/_sandbox/faults", rule="500")
    status, page = await post(raw, "/_sandbox/reset")
    assert (status, "0 customers, 3 calls so far." in page) == (200, True)
    assert section(page, "requests").count("<tr>") == 0
    assert await findings(raw) == []
    assert (await get(raw, "/_sandbox/journal.jsonl"))[1] == ""
    assert (await raw.create())[0] == 201


async def test_customer_is_reset_by_handle(raw: Raw) -> None:
    other = "TSTXYZ00A00A000B"
    await approved(raw)
    await raw("POST", "", {"fiscalCode": other})
    handles = re.findall(r'name="customer" value="([0-9a-f]+)"', (await get(raw, INSPECTOR))[1])
    assert len(set(handles)) == 2
    await post(raw, "/_sandbox/reset", customer=handles[1])
    unmasked = (await get(raw, f"{INSPECTOR}?personal=shown"))[1]
    assert CODE not in section(unmasked, "requests")
    assert other in section(unmasked, "requests")
    assert "2 calls" not in unmasked, "the journal stays"
    for wrong in (CODE, "", "nobody", handles[1]):
        status, page = await post(raw, "/_sandbox/reset", customer=wrong)
        assert (status, "1 customer," in page) == (404, True)
        assert "no customer has this handle" in page


async def test_fault_is_added_counted_and_removed(raw: Raw) -> None:
    status, page = await post(raw, "/_sandbox/faults", rule=" approve=500 ")
    assert (status, '<td class="odd">500</td><td>approve</td>' in page) == (200, True)
    await raw.create()
    assert (await raw.approve())[0] == 500
    faults = section((await get(raw, INSPECTOR))[1], "faults")
    assert 'data-label="matched">1</td></tr>' in faults, "number of matched calls"
    status, page = await post(raw, "/_sandbox/faults/clear")
    assert (status, "<table>" in section(page, "faults")) == (200, False)
    assert (await raw.approve())[0] == 201


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("refus", "did you mean +refused?"),
        ("aprove=500", "unknown operation 'aprove', did you mean 'approve'?"),
        ("500:often", "rate 'often' in '500:often' must be a number between 0 and 1"),
        ("500:2", "rate 2.0 must be between 0 and 1"),
        ("500:nan", "must be between 0 and 1"),
        ("500:1:later", "phase 'later' must be 'before' or 'after'"),
        ("approve=:0.5", "the rule has no response"),
        ("", "the rule has no response"),
    ],
)
async def test_invalid_fault_is_400_with_a_suggestion(raw: Raw, rule: str, message: str) -> None:
    status, text = await post(raw, "/_sandbox/faults", {"Accept": "*/*"}, rule=rule)
    assert (status, message in text, "<html" in text) == (400, True, False), "a program reads plain text"
    accept = {"Accept": "text/html,*/*;q=0.8"}
    status, page = await post(raw, "/_sandbox/faults?personal=shown", accept, rule=rule)
    assert (status, page.count('id="wrong"')) == (400, 1)
    assert f'value="{rule}"' in page, "the text stays in the field"
    assert "Hide personal data" in page, "the choice is kept"
    assert "<table>" not in section(page, "faults"), "no rule was added"
    await raw.create()
    assert (await raw.approve())[0] == 201


class Events:
    """Server-sent events read byte by byte from a socket."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def __aenter__(self) -> Self:
        address = urlsplit(self._sandbox.base_url)
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        self._writer.write(f"GET /_sandbox/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        self.head = await self.until(b"\r\n\r\n")
        assert "retry: 500" in await self.until(b"\n\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def until(self, end: bytes) -> str:
        return (await asyncio.wait_for(self._reader.readuntil(end), 5)).decode()

    async def rest(self) -> str:
        return (await asyncio.wait_for(self._reader.read(), 5)).decode()


async def test_each_change_sends_an_event(raw: Raw) -> None:
    async with Events(raw.sandbox) as events:
        assert "Content-Type: text/event-stream" in events.head
        page = await approved(raw)
        while "data: 2" not in await events.until(b"\n\n"):  # two calls may be one event
            pass
        for path, name, value in ((page, "action", "accept"), ("/_sandbox/faults", "rule", "500")):
            await post(raw, path, None, **{name: value})
            assert "data: 2" in await events.until(b"\n\n")
        kept = raw.sandbox.snapshot()
        for change in (
            lambda: raw.sandbox.reset(CODE),
            lambda: raw.sandbox.restore(kept),
            raw.sandbox.reset,
        ):
            await asyncio.to_thread(change)
            assert "data: 2" in await events.until(b"\n\n")


async def test_event_stream_ends_with_the_sandbox() -> None:
    async with Sandbox() as sandbox, Events(sandbox) as events:
        await sandbox.stop()
        assert (await events.rest()).endswith("0\r\n\r\n"), "a regular end, not a lost connection"
        assert not sandbox._engine.listeners


async def test_disconnected_listener_is_removed(raw: Raw) -> None:
    async with Events(raw.sandbox):
        assert len(raw.sandbox._engine.listeners) == 1
    while raw.sandbox._engine.listeners:  # the next write detects the disconnect
        await raw.create()


async def test_program_gets_204_without_redirect(raw: Raw) -> None:
    for path, form in (("faults", {"rule": "500"}), ("faults/clear", {}), ("reset", {})):
        async with raw.session.post(f"{raw.sandbox.base_url}/_sandbox/{path}", data=form) as response:
            assert (response.status, await response.text()) == (204, "")


async def test_foreign_host_name_is_403(raw: Raw) -> None:
    await raw.create()
    for path in ("/_sandbox/?personal=shown", "/_sandbox/journal.jsonl"):
        headers = {"Host": "rebound.example:80"}
        async with raw.session.get(raw.sandbox.base_url + path, headers=headers) as response:
            assert (response.status, await response.text()) == (
                403,
                "open this page at the URL that the sandbox printed",
            )
    foreign = {"Host": "rebound.example:80"}
    async with (
        Sandbox(allow_remote=True) as sandbox,
        raw.session.get(f"{sandbox.base_url}/_sandbox/", headers=foreign) as response,
    ):
        assert response.status == 200


async def test_health_is_ok_while_serving(raw: Raw) -> None:
    status, text = await get(raw, "/_sandbox/health")
    assert (status, json.loads(text)) == (200, {"status": "ok"})
