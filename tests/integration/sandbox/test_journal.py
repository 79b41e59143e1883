"""The journal: criteria, assertions and their messages, waiting, JSON lines."""

import asyncio
import json
import threading
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from support.memory_clients import cancelled
from support.raw_shop import BODY, CODE, Raw

PERSONAL = (CODE, "Prova", "Anna", "anna@example.com", "3330000000", "Via Prova", "00100", "sandbox-token")


@pytest.mark.parametrize(
    ("criteria", "numbers"),
    [
        ({"operation": "approve", "findings": ()}, [2, 3]),
        ({"status": 500}, [2]),
        ({"fiscal_code": CODE.lower(), "method": "post", "evaluated": True}, [3]),
        ({"body": {"amount": 45_000}}, [2, 3]),
        ({"body": {"amount": 45_001}}, []),
        ({"body": {"zeroInterestRate": True}}, []),
        ({"fault": "500before"}, [2]),
        ({"findings": "approve-before-create"}, [4]),
        ({"findings": ["approve-before-create"]}, [4]),
    ],
)
async def test_calls_are_filtered_by_criteria(raw: Raw, criteria: dict[str, Any], numbers: list[int]) -> None:
    await raw.create()
    for _ in range(2):
        await raw.approve(email="a+500x1@example.com")
    await raw("POST", "/TSTXYZ00A00A000B", {})
    journal = raw.sandbox.journal
    assert [entry.number for entry in journal.calls(**criteria)] == numbers
    assert [entry.number for entry in journal[1:]] == [2, 3, 4]
    assert repr(journal) == "<Journal of 4 calls>"
    assert repr(journal[1]) == "<JournalEntry #2 approve -> 500, 500before>"
    assert repr(journal[2]) == "<JournalEntry #3 approve -> 201, evaluated>"


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({"operatoin": "approve"}, "unknown criterion 'operatoin', did you mean 'operation'"),
        ({"operation": "aprove"}, "did you mean 'approve'"),
        ({"fault": "500"}, "unknown fault '500', did you mean '500after'"),
        ({"findings": "post-after-402"}, "unknown findings 'post-after-402', did you mean 'post-after-4"),
        ({"status": "201"}, "status must be int or None, not str"),
        ({"status": True}, "not bool"),
        ({"evaluated": 1}, "evaluated must be bool"),
        ({"body": "refused"}, "body must be dict, not str"),
    ],
)
async def test_criterion_that_no_call_can_match_raises(criteria: dict[str, Any], message: str) -> None:
    journal = Sandbox().journal
    for method in (journal.calls, journal.assert_never, journal.wait):
        with pytest.raises((TypeError, ValueError), match=message):
            method(**criteria)


async def test_entry_has_real_attributes_and_masked_output(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="anna+refused@example.com")
    journal = raw.sandbox.journal
    entry = journal.assert_once(operation="approve")
    assert entry.fiscal_code == CODE
    assert entry.request is not None
    assert entry.request["lastname"] == "Prova"
    text = journal.to_jsonl()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["operation"] for line in lines] == ["create_request", "approve"]
    assert (lines[1]["request"]["amount"], lines[1]["request"]["email"]) == (45_000, "***+refused@***")
    assert lines[1]["response"]["approved"] is False
    for output in (text, repr(entry), str(list(journal))):
        assert not [each for each in PERSONAL if each in output]


async def test_exported_call_is_one_line_of_ascii(raw: Raw) -> None:
    await raw("POST", "", {"fiscalCode": CODE, "a\u2028b\ud800": 1})
    text = raw.sandbox.journal.to_jsonl()
    assert (len(text.splitlines()), text.isascii()) == (1, True)


async def test_assert_once_names_the_closest_calls(raw: Raw) -> None:
    journal = raw.sandbox.journal
    with pytest.raises(AssertionError, match="expected one, no calls"):
        journal.assert_once()
    await raw.create()
    await raw.approve(amount=50_000)
    assert journal.assert_once(operation="approve").status == 201
    with pytest.raises(AssertionError) as caught:
        journal.assert_once(
            operation="approve", status=201, body={"amount": 45_000, "lastname": "X", "orderToken": "x"}
        )
    text, _, closest = str(caught.value).partition("The closest calls, and what differs:\n")
    assert "0 calls with operation='approve', status=201, body.amount=45000, body.lastname=***" in text
    first, second = closest.splitlines()
    assert first.endswith("#2 approve -> 201, evaluated>: body.amount, body.lastname, body.orderToken")
    assert second.endswith(
        "#1 create_request -> 201>: operation, body.amount, body.lastname, body.orderToken"
    )
    assert "Prova" not in str(caught.value)
    await raw.approve()
    with pytest.raises(AssertionError, match="2 calls with operation='approve', expected one:\n  <Jour"):
        journal.assert_once(operation="approve")


async def test_assert_never_fails_after_a_matching_call(raw: Raw) -> None:
    await raw.create()
    journal = raw.sandbox.journal
    journal.assert_never(operation="approve")
    await raw.approve()
    with pytest.raises(AssertionError, match="1 calls with operation='approve', expected none:\n  <Jour"):
        journal.assert_never(operation="approve")


async def test_wait_for_counts_earlier_calls_and_can_be_cancelled(raw: Raw) -> None:
    journal = raw.sandbox.journal
    waiting = asyncio.ensure_future(journal.wait_for(2, operation="create_request"))
    await raw.create()
    await raw.create()
    assert [entry.number for entry in await waiting] == [1, 2]
    assert len(await journal.wait_for(2, operation="create_request")) == 2
    waiting = asyncio.ensure_future(journal.wait_for(3))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_call_is_in_the_journal_before_its_response_is_sent(raw: Raw) -> None:
    await raw.create()
    waiting = asyncio.ensure_future(raw.approve(email="a+hangafter@example.com"))
    [entry] = await raw.sandbox.journal.wait_for(operation="approve")
    assert (entry.status, entry.evaluated, waiting.done()) == (None, True, False)
    await cancelled(waiting)


async def test_wait_timeout_lists_the_closest_calls(raw: Raw) -> None:
    await raw.create()
    journal = raw.sandbox.journal
    with pytest.raises(
        AssertionError, match=r"(?s)0 calls with operation='approve', expected 1 in time.*: operation"
    ):
        await journal.wait_for(operation="approve", timeout=0)
    with pytest.raises(AssertionError, match="expected 2 in time:\n  <Jour"):
        journal.wait(2, operation="create_request", timeout=0)


@pytest.mark.parametrize("count", [0, "2", True, 1.5])
async def test_wait_with_a_wrong_count_is_an_error(raw: Raw, count: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number of 1 or more"):
        raw.sandbox.journal.wait(count)
    with pytest.raises(ValueError, match="must be a whole number of 1 or more"):
        await raw.sandbox.journal.wait_for(count)


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


async def test_unknown_path_is_recorded_and_lists_known_paths(raw: Raw) -> None:
    root = raw.sandbox.base_url
    async with raw.session.post(f"{root}/api/shop/{CODE}", json=BODY) as response:
        assert response.status == 404
        assert "POST /api/shops/{shopId}/requests" in (await response.json())["errors"]["path"][0]
    async with raw.session.delete(f"{root}/api/shops/sandbox-shop/requests/{CODE}") as response:
        assert response.status == 404
    async with raw.session.get(f"{root}/favicon.ico") as response:
        assert response.status == 404
    assert [repr(entry) for entry in raw.sandbox.journal] == [
        "<JournalEntry #1 POST (unknown) -> 404>",
        "<JournalEntry #2 DELETE (unknown) -> 404>",
    ], "requests of browsers for icons are not calls of the shop"


async def test_documents_are_not_kept(raw: Raw) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}/documents", {"front": "x" * 100_000})
    assert raw.sandbox.journal[-1].request == {"front": "(too large to keep)"}
