"""Slots while a call waits for its retry and while it is settled, and what copies of a client share."""

import asyncio

import pytest

from loanasync import (
    Approved,
    InFlightError,
    OutcomeUnknownError,
    Refused,
    RetryPolicy,
    SystemFaultError,
    Timeout,
)
from loanasync.testing import (
    Clock,
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approved,
    computed,
    connection_lost,
    refused,
    system_error,
)
from support import ledger_clients
from support.canned_server import FAULT, approve, serving
from support.ledger_clients import FailingLedger, held_response
from support.memory_clients import request
from support.virtual_time import VirtualTime, turns

OTHER = "TSTXYZ00A00A000B"


class Paused(Clock):
    """A clock whose waits last until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Wait until `go` is set."""
        del seconds
        self.began.set()
        await self.go.wait()


def paused(*steps: ScriptedResponse) -> tuple[ScriptedTransport, Paused]:
    script, clock = ScriptedTransport(system_error(), *steps), Paused()
    script.clock = clock
    return script, clock


async def test_slot_is_free_while_a_call_waits_for_its_retry() -> None:
    script, clock = paused(refused(), approved())
    client = script.client(max_concurrency=1)
    first = asyncio.create_task(request(client))
    await clock.began.wait()
    assert isinstance(await request(client, OTHER), Refused)
    clock.go.set()
    decision = await first
    assert isinstance(decision, Approved)
    assert decision.meta.attempts == 2


@pytest.mark.parametrize("leaves", [True, False])
def test_retry_waits_for_a_slot_that_was_taken(*, leaves: bool) -> None:
    async def calls() -> None:
        step, arrived, leave = held_response(refused())
        script, clock = paused(step, approved())
        client = script.client(max_concurrency=1)
        first = asyncio.create_task(request(client, timeout=Timeout(total=10, attempt=10)))
        await clock.began.wait()
        other = asyncio.create_task(request(client, OTHER))
        await arrived.wait()
        clock.go.set()
        if leaves:
            asyncio.get_running_loop().call_later(5, leave.set)
        result = await first
        if leaves:
            assert isinstance(result, Approved)
        else:
            assert isinstance(result, SystemFaultError)
            assert (result.stopped_by, result.outcome, result.repeatable) == ("slot", "unknown", False)
            assert (result.attempts, len(script.sent)) == (1, 2)
            leave.set()
            assert isinstance(await request(client), OutcomeUnknownError)
        assert isinstance(await other, Refused)

    VirtualTime().run(calls())


def test_joined_call_waits_no_longer_than_its_own_time_for_a_slot() -> None:
    async def calls() -> float:
        step, arrived, leave = held_response(refused())
        client = ScriptedTransport(step, approved()).client(max_concurrency=1)
        begun = [asyncio.create_task(request(client, OTHER))]
        await arrived.wait()
        begun.append(asyncio.create_task(request(client)))
        await turns()
        start = asyncio.get_running_loop().time()
        assert isinstance(await request(client, timeout=Timeout(total=1)), InFlightError)
        waited = asyncio.get_running_loop().time() - start
        leave.set()
        await asyncio.gather(*begun)
        return waited

    assert VirtualTime().run(calls()) < 1.1


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
    await turns()
    assert shop.script.left == 0
    settled.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(calls[1].result(), Refused)


async def test_copies_of_a_client_share_its_quota() -> None:
    fault = FAULT.replace(b"\r\n\r\n", b"\r\nRetry-After: 0\r\n\r\n", 1)
    async with (
        serving(fault) as server,
        server.client(retry=RetryPolicy(base=0.001, cap=0.001, quota=5)) as client,
    ):
        copies = [client.with_options(timeout=Timeout(total=50 + number)) for number in range(20)]
        errors = await asyncio.gather(*(approve(copy) for copy in copies), return_exceptions=True)
        assert server.requests == 20 + 5
    for error in errors:
        assert isinstance(error, SystemFaultError)
        assert error.meta.retry_after == "0"
