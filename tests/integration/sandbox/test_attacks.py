"""Hostile and careless use of the sandbox: it responds clearly, loses no state and shows no personal data."""

import asyncio
import contextlib
import gzip
import json
import logging
import urllib.request
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox, serve
from support.raw_shop import BODY, CODE, Raw
from support.sandbox_pages import get

NAMES = ("Mario", "Bianchi", "mario@bianchi.example", "RSSMRA85T10A562S")


def url(raw: Raw, path: str = "") -> str:
    return f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests{path}"


async def test_rule_500_with_body_is_sent_unchanged(raw: Raw) -> None:
    mine = {"errors": {"system": ["mine"]}}
    raw.sandbox.on().respond(500, mine, headers={"Retry-After": "7"})
    async with raw.session.post(url(raw), json={}, headers={"X-Auth-Token": "sandbox-token"}) as response:
        assert (response.status, response.headers["Retry-After"], await response.json()) == (500, "7", mine)


async def test_rule_counts_its_own_faults(raw: Raw) -> None:
    await raw.create()
    assert [(await raw.approve(amount=1))[0] for _ in range(2)] == [400, 400]
    raw.sandbox.on(operation="approve").respond("500x2")
    assert [(await raw.approve(amount=1))[0] for _ in range(3)] == [500, 500, 400]
    raw.sandbox.on(operation="approve").respond("500x1")
    assert [(await raw.approve(amount=1))[0] for _ in range(2)] == [500, 400]
    raw.sandbox._engine.rules.clear()
    tagged = [(await raw.approve(email="a+500x2@example.com"))[0] for _ in range(3)]
    assert tagged == [500, 500, 201]


async def test_rule_for_the_second_call_applies_there(raw: Raw) -> None:
    raw.sandbox.on(operation="create_request", call=2).respond("500x1")
    assert [(await raw.create())[0] for _ in range(3)] == [201, 500, 201]


async def test_calls_without_a_fiscal_code_are_counted(raw: Raw) -> None:
    raw.sandbox.on(operation="create_request").respond("500x1")
    assert [(await raw("POST", "", {}))[0] for _ in range(3)] == [500, 400, 400]


async def test_rule_for_the_approval_keeps_the_tag_for_the_completion(raw: Raw) -> None:
    raw.sandbox.on(operation="approve").respond("slow1")
    await raw.create()
    await raw.approve(email="a+invalid.documentcity@example.com")
    await raw("POST", f"/{CODE}/documents", {})
    assert list((await raw("PATCH", f"/{CODE}", {}))[1]["errors"]) == ["documentCity"]


async def test_rules_with_the_same_rate_draw_independently() -> None:
    sandbox = Sandbox()
    for _ in range(2):
        sandbox.on(rate=0.5).respond(503)
    chosen = [sandbox._engine.rules.choose("approve", f"{each}", 1) for each in range(400)]
    assert 250 < sum(each is not None for each in chosen) < 350


@pytest.mark.parametrize("tag", ["500x0", "500x00", "x" * 201, ".".join(["500x99"] * 40)])
async def test_nonsensical_tag_is_400(raw: Raw, tag: str) -> None:
    await raw.create()
    assert (await raw.approve(email=f"a+{tag}@example.com"))[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        {
            "documents": [{"owner": "Mario Bianchi"}],
            "loanFinality": "for Mario",
            "paymentDayOfMonth": "Mario",
        },
        {"errors": "Mario", "error": "Mario", "amount": "Bianchi", "zeroInterestRate": "Mario"},
        {"email": "mario+bianchi@x.example"},
        {"email": "a+invalid.bianchi@x.example"},
    ],
)
async def test_personal_value_in_a_wrong_field_is_masked(raw: Raw, body: dict[str, Any]) -> None:
    await raw.create()
    raw.sandbox.on(operation="complete").respond(400, {"errors": {"domain": ["Mario Bianchi"]}})
    await raw("POST", f"/{CODE}", {**BODY, **body})
    await raw("POST", f"/{CODE}/documents", body)
    await raw("PATCH", f"/{CODE}", body)
    journal = raw.sandbox.journal
    texts = [journal.to_jsonl(), str(list(journal)), (await get(raw, "/_sandbox/"))[1]]
    texts += [(await get(raw, f"/_sandbox/calls/{number}"))[1] for number in range(1, 5)]
    for wanted in ({"body": body}, {"body": {"loanFinality": "Bianchi"}}):
        with pytest.raises(AssertionError) as caught:
            journal.assert_once(operation="create_request", **wanted)
        texts.append(str(caught.value))
    for text in texts:
        assert not [name for name in NAMES if name in text]


def test_rule_repr_has_no_personal_data() -> None:
    rule = Sandbox().on(fiscal_code="RSSMRA85T10A562S").respond(503, {"email": "mario@bianchi.example"})
    assert not [name for name in NAMES if name in repr(rule) + repr(rule.outcome)]


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /api/shops/s/requests/RSSMRA85T10A562S HTTP/1.1\r\nX-Auth-Token: SECRET\x00Mario\r\n\r\n",
        b"POST /api/shops/s/requests/RSSMRA85T10A562S?a b HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_malformed_request_is_not_logged(
    raw: Raw, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    port = int(raw.sandbox.base_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert "a request could not be handled: " in caplog.text
    assert not [name for name in (*NAMES, "SECRET") if name in caplog.text]


async def test_token_in_the_url_is_found_when_encoded() -> None:
    async with Sandbox(auth_token="test%1", shop_id="test%1-shop") as sandbox:
        linter = sandbox._engine.linter
        assert list(linter.check_url("/api/shops/test%1-shop/requests", "page=1")) == []
        assert list(linter.check_url("/api/shops/test%1-shop/requests", "key=test%251")) == ["token-in-url"]
        assert list(linter.check_url("/", "authorization=Bearer%20test%251")) == ["token-in-url"]
        assert list(linter.check_url("/api/test%1/requests", "")) == ["token-in-url"]
        assert list(linter.check_url("/", "customerIdentity=1&customerIdentityTypes=1")) == []


async def test_disconnected_shop_has_received_nothing(raw: Raw) -> None:
    await raw.create()
    with pytest.raises(TimeoutError):
        await raw.approve(email="a+slow60000@example.com", timeout=0.1)
    await raw.sandbox.journal.wait_for(operation="approve")
    await raw.approve()
    assert [finding.rule for finding in raw.sandbox.findings] == ["repeat-after-lost-response"]


@pytest.mark.parametrize(("status", "found"), [(502, 1), (503, 1), (500, 0)])
async def test_only_a_500_may_be_repeated(raw: Raw, status: int, found: int) -> None:
    raw.sandbox.on(operation="approve", call=1).respond(status, {})
    await raw.create()
    await raw.approve()
    await raw.approve()
    assert [finding.rule for finding in raw.sandbox.findings] == ["repeat-after-lost-response"] * found


@pytest.mark.parametrize("alone", [True, False])
async def test_call_that_waits_during_a_reset_changes_nothing(raw: Raw, *, alone: bool) -> None:
    await raw.create()
    waiting = asyncio.ensure_future(raw.approve(email="a+slow300@example.com"))
    customer = raw.sandbox._engine.customers.of(CODE)
    while not customer.calls.get("approve"):  # noqa: ASYNC110  (a waiting call sends no event)
        await asyncio.sleep(0)
    raw.sandbox.reset(*[CODE] * alone)
    assert (await waiting)[0] == 500
    assert (raw.sandbox.snapshot(), raw.sandbox.findings) == ({}, [])
    assert raw.sandbox.journal.calls(operation="approve") == []


async def test_uncreated_customers_do_not_evict_created_ones() -> None:
    async with Sandbox(customers=1) as sandbox, aiohttp.ClientSession() as session:
        raw = Raw(sandbox, session)
        await raw.create()
        await raw.approve()
        for number in range(1100):
            sandbox._engine.customers.of(f"UNKNOWN0{number:08d}")
        await raw("POST", "/TSTXYZ00A00A000Z/documents", {})
        assert (await raw.approve())[1]["errors"]["domain"] == ["User already evaluated for approval"]
        assert list(sandbox.snapshot()) == [CODE]
        assert len(sandbox._engine.customers._uncreated) == 1000
        two = {**sandbox.snapshot(), "TSTXYZ00A00A000B": "{}"}
        sandbox.restore(two)
        assert list(sandbox.snapshot()) == ["TSTXYZ00A00A000B"]


async def test_documents_are_not_kept_in_the_journal(raw: Raw) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}/documents", {"front": "x" * 100_000})
    assert raw.sandbox.journal[-1].request == {"front": "(too large to keep)"}


@pytest.mark.parametrize("depth", [60, 63, 64, 980, 5000])
async def test_too_deeply_nested_body_is_400(raw: Raw, depth: int) -> None:
    await raw.create()
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    body = json.dumps(BODY).encode()[:-1] + b',"extra":' + deep + b"}"
    assert (await raw("POST", f"/{CODE}", body))[0] == (201 if depth < 64 else 400)
    assert raw.sandbox.snapshot()
    assert (await get(raw, "/_sandbox/calls/2?personal=shown"))[0] == 200


async def test_many_brackets_side_by_side_are_accepted(raw: Raw) -> None:
    await raw.create()
    assert (await raw.approve(extra=[[]] * 100))[0] == 201


async def test_broken_request_is_400(raw: Raw) -> None:
    token = {"X-Auth-Token": "sandbox-token"}
    broken = {"data": gzip.compress(b"{}")[:-4] + b"xxxx", "headers": {**token, "Content-Encoding": "gzip"}}
    with contextlib.suppress(
        aiohttp.ServerDisconnectedError
    ):  # the next request in such a stream cannot be found
        async with raw.session.post(url(raw), **broken) as response:  # type: ignore[arg-type]
            assert response.status == 400
    assert (await get(raw, "/_sandbox/"))[0] == 200
    inspector = f"{raw.sandbox.base_url}/_sandbox/"
    for headers, status in (
        ({"Host": "127.0.0.1:abc"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Content-Type": "application/x-www-form-urlencoded; charset=nothing"}, 400),
        ({"Content-Type": "multipart/form-data"}, 400),
    ):
        async with raw.session.post(f"{inspector}faults", data=b"rule=500", headers=headers) as response:
            assert response.status == status, headers


def test_journal_entry_is_one_line_of_json() -> None:
    with Sandbox.in_thread() as sandbox:

        async def send() -> None:
            async with aiohttp.ClientSession() as session:
                await Raw(sandbox, session)("POST", "", {"fiscalCode": CODE, "a\u2028b\ud800": 1})

        asyncio.run(send())
        text = sandbox.journal.to_jsonl()
    assert len(text.splitlines()) == 1
    assert text.isascii()


async def test_disconnect_during_drip_is_not_an_error(raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    await raw.create()
    with pytest.raises(TimeoutError):
        await raw.approve(email="a+drip@example.com", timeout=0.15)
    await raw.sandbox.stop()
    assert "could not be handled" not in caplog.text


async def test_events_do_not_support_head(raw: Raw) -> None:
    async with raw.session.head(f"{raw.sandbox.base_url}/_sandbox/events") as response:
        assert response.status == 405


async def test_new_rule_notifies_listeners(raw: Raw) -> None:
    notified = asyncio.Event()
    raw.sandbox._engine.listeners.add(notified.set)
    raw.sandbox.on().respond(500)
    assert notified.is_set()


async def test_slow_browser_does_not_block_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Future[int] = Future()

    def slow_browser(address: str) -> None:
        with urllib.request.urlopen(address) as page:  # noqa: S310  (a local URL)
            seen.set_result(page.status)

    monkeypatch.setattr("webbrowser.open", slow_browser)
    serving = asyncio.ensure_future(serve(Sandbox(), open_page=True))
    assert await asyncio.wait_for(asyncio.wrap_future(seen), 30) == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_reset_customer_is_not_saved_again(tmp_path: Path) -> None:
    async with Sandbox(state=tmp_path / "shop.sqlite") as sandbox:
        customers = sandbox._engine.customers
        customer = customers.create(CODE)
        assert len(customers._uncreated) == 0
        customers.save(CODE, customer)
        sandbox.reset(CODE)
        customers.save(CODE, customer)
    async with Sandbox(state=tmp_path / "shop.sqlite") as sandbox:
        assert sandbox.snapshot() == {}


async def test_new_creation_needs_documents_again(raw: Raw) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}/documents", {})
    await raw.create()
    assert list((await raw("PATCH", f"/{CODE}", {}))[1]["errors"]) == ["documents"]
