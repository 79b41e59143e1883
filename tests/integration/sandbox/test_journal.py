"""The journal: filters, assertions and their messages, waiting, export as JSON lines."""

import asyncio
import json
import threading
from pathlib import Path

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from support.raw_shop import BODY, CODE, Raw

PERSONAL = (CODE, "Prova", "Anna", "anna@example.com", "3330000000", "Via Prova", "00100", "sandbox-token")


async def test_journal_calls_filters_by_attributes(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="a+500x1@example.com")
    await raw.approve(email="a+500x1@example.com")
    journal = raw.sandbox.journal
    assert [entry.number for entry in journal.calls(operation="approve")] == [2, 3]
    assert [entry.number for entry in journal.calls(status=500)] == [2]
    assert [entry.number for entry in journal.calls(fiscal_code=CODE, evaluated=True)] == [3]
    assert [entry.number for entry in journal.calls(body={"amount": 45_000})] == [2, 3]
    assert journal.calls(body={"amount": 45_001}) == []
    assert journal.calls(body={"zeroInterestRate": True}) == []
    assert journal[0].operation == "create_request"
    assert [entry.number for entry in journal[1:]] == [2, 3]
    assert repr(journal) == "<Journal of 3 calls>"
    assert repr(journal[1]) == "<JournalEntry #2 approve -> 500, 500before>"
    assert repr(journal[2]) == "<JournalEntry #3 approve -> 201, evaluated>"


async def test_entry_has_real_attributes_and_masked_repr(raw: Raw, tmp_path: Path) -> None:
    await raw.create()
    await raw.approve(email="anna+refused@example.com")
    entry = raw.sandbox.journal.assert_once(operation="approve")
    assert entry.fiscal_code == CODE
    assert entry.request is not None
    assert entry.request["lastname"] == "Prova"
    raw.sandbox.journal.write_jsonl(tmp_path / "journal.jsonl")
    text = (tmp_path / "journal.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["operation"] for line in lines] == ["create_request", "approve"]
    assert lines[1]["request"]["amount"] == 45_000
    assert lines[1]["request"]["email"] == "***+refused@***"
    assert lines[1]["response"]["approved"] is False
    for output in (text, repr(entry), str(list(raw.sandbox.journal))):
        assert not [each for each in PERSONAL if each in output]


async def test_assert_once_fails_for_no_call_and_for_two_calls(raw: Raw) -> None:
    await raw.create()
    await raw.approve(amount=50_000)
    journal = raw.sandbox.journal
    assert journal.assert_once(operation="approve").status == 201
    with pytest.raises(AssertionError) as caught:
        journal.assert_once(
            operation="approve", status=201, body={"amount": 45_000, "lastname": "Prova", "orderToken": "x"}
        )
    text = str(caught.value)
    assert "no call with operation='approve', status=201, body.amount=45000, body.lastname=***" in text
    assert (
        "#2 approve -> 201, evaluated>: body.amount is 50000, expected 45000; body.orderToken is missing"
        in text
    )
    assert "Prova" not in text
    await raw.approve()
    with pytest.raises(
        AssertionError, match="2 calls with operation='approve', expected one:\n  <JournalEntry #2"
    ):
        journal.assert_once(operation="approve")


async def test_near_misses_are_sorted_and_masked(raw: Raw) -> None:
    await raw.create()
    await raw.approve(amount=1)
    await raw.approve()
    with pytest.raises(AssertionError) as caught:
        raw.sandbox.journal.assert_once(operation="approve", fiscal_code="X", status=201, evaluated=True)
    nearest = str(caught.value).partition("The closest calls:\n")[2].splitlines()
    assert [line.split()[1] for line in nearest] == ["#3", "#2", "#1"]
    assert nearest[0].endswith("fiscal_code differs")
    with pytest.raises(AssertionError, match="The journal has no calls"):
        Sandbox().journal.assert_once()


async def test_assert_never_fails_after_a_matching_call(raw: Raw) -> None:
    await raw.create()
    journal = raw.sandbox.journal
    journal.assert_never(operation="approve")
    await raw.approve()
    with pytest.raises(
        AssertionError, match="1 calls with operation='approve', expected none:\n  <JournalEntry #2"
    ):
        journal.assert_never(operation="approve")
    with pytest.raises(AssertionError, match="expected none"):
        journal.assert_never(operation="approve", within=60)
    journal[1].at -= 61
    journal.assert_never(operation="approve", within=60)


async def test_wait_for_counts_earlier_calls(raw: Raw) -> None:
    journal = raw.sandbox.journal
    waiting = asyncio.ensure_future(journal.wait_for(2, operation="create_request"))
    await raw.create()
    assert not waiting.done()
    await raw.create()
    assert [entry.number for entry in await waiting] == [1, 2]
    assert len(await journal.wait_for(2, operation="create_request")) == 2


async def test_wait_timeout_lists_the_closest_calls(raw: Raw) -> None:
    await raw.create()
    with pytest.raises(AssertionError, match="0 calls with operation='approve' within"):
        await raw.sandbox.journal.wait_for(operation="approve", timeout=0.05)
    with pytest.raises(AssertionError, match="operation is 'create_request', expected 'approve'"):
        raw.sandbox.journal.wait(operation="approve", timeout=0.05)
    with pytest.raises(AssertionError, match="The journal has no other calls"):
        raw.sandbox.journal.wait(2, operation="create_request", timeout=0.05)
    assert raw.sandbox.journal._waiters == [], "no wait is pending"


async def test_wait_for_can_be_cancelled(raw: Raw) -> None:
    waiting = asyncio.ensure_future(raw.sandbox.journal.wait_for())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await raw.create()


def test_wait_works_in_another_thread_with_and_without_loop() -> None:
    with Sandbox.in_thread() as sandbox:

        async def shop() -> None:
            async with aiohttp.ClientSession() as session:
                raw = Raw(sandbox, session)
                await raw.create()
                await raw("POST", f"/{CODE}", BODY)

        caller = threading.Thread(target=lambda: asyncio.run(shop()))
        caller.start()
        assert sandbox.journal.wait(operation="approve", timeout=10)[0].status == 201
        assert asyncio.run(sandbox.journal.wait_for(2, timeout=10))
        caller.join()


async def test_assertions_on_a_truncated_journal_raise() -> None:
    async with Sandbox(journal=2) as sandbox, aiohttp.ClientSession() as session:
        raw = Raw(sandbox, session)
        for _ in range(3):
            await raw.create()
        assert [entry.number for entry in sandbox.journal] == [2, 3]
        for method in (sandbox.journal.assert_once, sandbox.journal.assert_never):
            with pytest.raises(RuntimeError, match="only the last 2 of 3 calls"):
                method(operation="approve")
        sandbox.reset()
        sandbox.journal.assert_never()
        await raw.create()
        assert sandbox.journal.assert_once().number == 4


async def test_journal_switched_off_raises() -> None:
    async with Sandbox(journal=0) as sandbox:
        async with aiohttp.ClientSession() as session:
            assert (await Raw(sandbox, session).create())[0] == 201
        journal = sandbox.journal
        assert (len(journal), journal.total, repr(journal)) == (0, 1, "<Journal of 0 calls, off>")
        for method in (journal.assert_once, journal.assert_never, journal.wait):
            with pytest.raises(RuntimeError, match="the journal is switched off"):
                method()
        with pytest.raises(RuntimeError, match="the journal is switched off"):
            await journal.wait_for()


def test_misspelt_criterion_raises() -> None:
    for method in (Sandbox().journal.calls, Sandbox().journal.assert_never):
        with pytest.raises(TypeError, match="unknown criterion 'operatoin', did you mean 'operation'"):
            method(operatoin="approve")


async def test_unknown_path_is_recorded_and_lists_known_paths(raw: Raw) -> None:
    url = f"{raw.sandbox.base_url}/api/shop/{CODE}"
    async with raw.session.post(url, json=BODY) as response:
        assert response.status == 404
        assert "POST /api/shops/{shopId}/requests" in (await response.json())["errors"]["path"][0]
    async with raw.session.delete(
        f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests/{CODE}"
    ) as response:
        assert (response.status, response.headers["Allow"]) == (405, "PATCH,POST")
    assert [repr(entry) for entry in raw.sandbox.journal] == [
        "<JournalEntry #1 POST (unknown) -> 404>",
        "<JournalEntry #2 DELETE (unknown) -> 405>",
    ]
    async with raw.session.get(f"{raw.sandbox.base_url}/favicon.ico") as response:
        assert response.status == 404
    assert len(raw.sandbox.journal) == 2, "requests of browsers for icons are not calls of the shop"
