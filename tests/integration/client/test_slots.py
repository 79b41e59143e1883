"""Slots during the wait for a retry, and the limits of Retry-After."""

import asyncio
import random

import pytest

from loanasync import Approved, OutcomeUnknownError, Refused, RetryPolicy, SystemFaultError, Timeout
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approved,
    computed,
    connection_lost,
    refused,
    system_error,
)
from support import ledger_clients
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import FAULT, approve, serving
from support.ledger_clients import FailingLedger, held_response
from support.memory_clients import Shop

OTHER = "TSTXYZ00A00A000B"


def paused(shop: Shop) -> tuple[asyncio.Event, asyncio.Event]:
    """Return an event that is set when a retry wait begins, and one that ends the wait."""
    began, go = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        began.set()
        await go.wait()

    shop.client._pipeline.sleep = sleep
    return began, go


async def test_slot_is_free_while_a_call_waits_for_its_retry() -> None:
    shop = Shop(system_error(), refused(), approved(), max_concurrency=1)
    began, go = paused(shop)
    first = asyncio.create_task(shop.approve())
    await began.wait()
    assert isinstance(await shop.approve(OTHER), Refused)
    assert not first.done()
    go.set()
    decision = await first
    assert isinstance(decision, Approved)
    assert decision.meta.attempts == 2


async def test_retry_waits_for_a_slot_that_was_taken() -> None:
    step, arrived, leave = held_response(refused())
    shop = Shop(system_error(), step, approved(), max_concurrency=1)
    began, go = paused(shop)
    first = asyncio.create_task(shop.approve())
    await began.wait()
    other = asyncio.create_task(shop.approve(OTHER))
    await arrived.wait()
    go.set()
    await asyncio.sleep(0)
    assert (shop.sent, first.done()) == (2, False)
    leave.set()
    assert isinstance(await first, Approved)
    assert isinstance(await other, Refused)


async def test_retry_without_a_free_slot_raises_system_fault() -> None:
    step, arrived, leave = held_response(refused())
    shop = Shop(system_error(), step, approved(), max_concurrency=1)
    began, go = paused(shop)
    first = asyncio.create_task(shop.approve(timeout=Timeout(total=1, attempt=1)))
    await began.wait()
    other = asyncio.create_task(shop.approve(OTHER))
    await arrived.wait()
    go.set()
    error = await first
    assert isinstance(error, SystemFaultError)
    assert (error.stopped_by, error.outcome, error.repeatable) == ("slot", "unknown", False)
    assert (error.attempts, shop.sent) == (1, 2)
    leave.set()
    assert isinstance(await other, Refused)
    assert isinstance(await shop.approve(), OutcomeUnknownError)
    assert shop.script.left == 1


def defect(_: SentRequest) -> ScriptedResponse:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "step", [approved(), connection_lost(), computed(defect)], ids=["decided", "lost", "defect"]
)
async def test_slot_is_free_while_an_approval_is_settled(step: ScriptedResponse) -> None:
    settled = asyncio.Event()
    ledger = FailingLedger(settle=settled.wait)
    shop = ledger_clients.Shop(step, refused(), ledger=ledger, options={"max_concurrency": 1})
    calls = [asyncio.create_task(shop.result()), asyncio.create_task(shop.result(code=OTHER))]
    for _ in range(100):  # turns of the event loop, in which no time limit passes
        await asyncio.sleep(0)
    assert shop.script.left == 0
    settled.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(calls[1].result(), Refused)


@pytest.mark.parametrize(("jitter", "waited"), [(0.0, 5.0), (1.0, 5.2)])
async def test_retry_after_of_a_minute_is_clamped(
    jitter: float, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: least + (most - least) * jitter)
    shop = Shop(system_error(retry_after=60), approved())
    decision = await shop.client.approve(
        FISCAL_CODE, approval_request(), timeout=Timeout(total=10, attempt=5, connect=1)
    )
    assert isinstance(decision, Approved)
    assert shop.script.clock.slept == pytest.approx([waited])


async def test_retry_after_of_the_last_500_is_in_the_error() -> None:
    fault = FAULT.replace(
        b"\r\n\r\n", b"\r\nRetry-After: 60\r\nX-Request-Id: 0f8fad5b-d9cb-469f-a165-70867728950e\r\n\r\n", 1
    )
    async with serving(fault) as server, server.client(retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(SystemFaultError) as caught:
            await approve(client)
    assert (caught.value.meta.retry_after, caught.value.meta.request_id) == (
        "60",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
    )
