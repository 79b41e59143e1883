"""Cancelled callers: a request is sent once, and its response is read after the callers were cancelled."""

import asyncio
from itertools import count
from typing import Any

import pytest

from loanasync import (
    Approved,
    LoanClient,
    OutcomeUnknownError,
    Refused,
    RetryPolicy,
    Timeout,
)
from loanasync.testing import ScriptedResponse, approved, computed, refused, system_error
from support.canned_server import APPROVAL, FAULT, REFUSAL, serving
from support.direct_path import needs_direct_path
from support.ledger_clients import held_response
from support.memory_clients import SESSIONS, Shop, cancelled, held_server, request
from support.raw_server import until

OTHER = "TSTXYZ00A00A000B"
AT_ONCE = RetryPolicy(base=0.001, cap=0.001)
each_session = pytest.mark.parametrize("session", SESSIONS)


class Pause:
    """Replaces the wait for a retry by a wait for the event `go`."""

    def __init__(self, shop: Shop) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()
        shop.client._pipeline.sleep = self._sleep

    async def _sleep(self, _: float) -> None:
        self.began.set()
        await self.go.wait()


@pytest.mark.parametrize("leaver", [0, 1], ids=["first", "second"])
async def test_memory_cancelling_one_of_two_callers_keeps_the_other(leaver: int) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step)
    calls = [asyncio.create_task(shop.approve()) for _ in range(2)]
    await arrived.wait()
    await cancelled(calls[leaver])
    go.set()
    assert isinstance(await calls[1 - leaver], Approved)
    assert isinstance(await shop.approve(), Approved)
    assert shop.sent == 1


@pytest.mark.parametrize("response", [APPROVAL, REFUSAL], ids=["approved", "refused"])
@each_session
async def test_memory_response_after_the_last_caller_left_is_remembered(
    session: str, response: bytes
) -> None:
    async with held_server(session) as (server, client):
        for _ in range(2):
            call = asyncio.create_task(request(client))
            await server.wait_for_requests(1)
            await cancelled(call)
        joined = asyncio.create_task(request(client))
        await asyncio.sleep(0)
        server.respond_to_all(response)
        kind = Approved if response is APPROVAL else Refused
        assert isinstance(await joined, kind)
        assert isinstance(await request(client), kind)
        assert server.requests == 1


@each_session
async def test_memory_response_without_a_waiting_caller_is_remembered(session: str) -> None:
    async with held_server(session) as (server, client):
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        await cancelled(call)
        server.respond_to_all(APPROVAL)
        await until(lambda: not client._flights._in_flight)
        assert isinstance(await request(client), Approved)
        assert server.requests == 1


@needs_direct_path
async def test_memory_response_in_the_turn_of_the_cancellation_is_kept() -> None:
    """A response that arrives between the cancellation and the caller's last step is not dropped."""
    async with held_server("own") as (server, client):
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        lane: Any = client._pipeline._per_loop.current()
        [connection] = lane.transport._scheduler.connections
        call.cancel()
        connection.data_received(APPROVAL)
        await asyncio.wait({call})
        assert call.cancelled()
        async with asyncio.timeout(20):
            assert isinstance(await request(client), Approved)
        assert server.requests == 1


@each_session
async def test_memory_500_after_the_last_caller_left_is_not_retried(session: str) -> None:
    async with held_server(session, retry=AT_ONCE) as (server, client):
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        await cancelled(call)
        server.script = lambda _: APPROVAL
        server.respond_to_all(FAULT)
        await until(lambda: not client._flights._in_flight)
        assert isinstance(await request(client), OutcomeUnknownError)
        assert server.requests == 1
        assert isinstance(await request(client, repeat_unknown=True), Approved)


@each_session
async def test_memory_late_500_is_retried_by_a_waiting_caller(session: str) -> None:
    async with held_server(session, retry=AT_ONCE) as (server, client):
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        waiting = asyncio.create_task(request(client))
        await asyncio.sleep(0)
        await cancelled(call)
        server.script = lambda _: APPROVAL
        server.respond_to_all(FAULT)
        decision = await waiting
        assert isinstance(decision, Approved)
        assert (decision.meta.attempts, server.requests) == (2, 2)


@each_session
async def test_memory_late_response_that_never_arrives_is_unknown(session: str) -> None:
    quick = Timeout(total=60, attempt=0.3, connect=0.2)
    async with held_server(session, timeout=quick) as (server, client):
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        await cancelled(call)
        await until(lambda: not client._flights._in_flight)
        await until(lambda: not server.open)
        again = await request(client)
        assert isinstance(again, OutcomeUnknownError)
        assert (again.note, server.requests) == ("ReadTimeoutError", 1)


async def test_memory_call_cancelled_while_connecting_is_sent_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookup_started, lookup_allowed = asyncio.Event(), asyncio.Event()
    look_up = asyncio.get_running_loop().getaddrinfo

    async def slow(*arguments: Any, **options: Any) -> Any:
        lookup_started.set()
        await lookup_allowed.wait()
        return await look_up(*arguments, **options)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", slow)
    async with serving(APPROVAL) as server:
        address = server.base_url.replace("127.0.0.1", "localhost")
        async with LoanClient(address, shop_id="s", auth_token="t") as client:
            first = asyncio.create_task(request(client))
            await lookup_started.wait()
            others = [asyncio.create_task(request(client)) for _ in range(3)]
            await asyncio.sleep(0)
            await cancelled(first)
            lookup_allowed.set()
            assert {type(each) for each in await asyncio.gather(*others)} == {Approved}
            assert server.requests == 1


async def test_memory_call_cancelled_in_the_queue_sends_nothing() -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, refused(), max_concurrency=1)
    first = asyncio.create_task(shop.approve())
    await arrived.wait()
    queued = asyncio.create_task(shop.approve(OTHER))
    await asyncio.sleep(0)
    await cancelled(queued)
    go.set()
    assert isinstance(await first, Approved)
    assert shop.sent == 1
    assert isinstance(await shop.approve(OTHER), Refused)


async def test_memory_late_response_keeps_its_slot_until_it_arrives() -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, refused(), max_concurrency=1)
    first = asyncio.create_task(shop.approve())
    await arrived.wait()
    await cancelled(first)
    other = asyncio.create_task(shop.approve(OTHER))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (shop.sent, other.done()) == (1, False)
    go.set()
    assert isinstance(await other, Refused)
    assert isinstance(await shop.approve(), Approved)


async def test_memory_call_cancelled_in_a_retry_wait_is_unknown() -> None:
    shop = Shop(system_error(), approved())
    pause = Pause(shop)
    call = asyncio.create_task(shop.approve())
    await pause.began.wait()
    await cancelled(call)
    pause.go.set()
    again = await shop.approve()
    assert isinstance(again, OutcomeUnknownError)
    assert (again.note, shop.sent) == ("CancelledError", 1)
    assert isinstance(await shop.approve(repeat_unknown=True), Approved)


async def test_memory_retry_wait_continues_with_the_next_caller() -> None:
    shop = Shop(system_error(), approved())
    pause = Pause(shop)
    first = asyncio.create_task(shop.approve())
    await pause.began.wait()
    others = [asyncio.create_task(shop.approve()) for _ in range(3)]
    await asyncio.sleep(0)
    await cancelled(first)
    pause.go.set()
    decisions = await asyncio.gather(*others)
    assert {type(each) for each in decisions} == {Approved}
    assert shop.sent == 2


async def test_memory_retry_wait_without_callers_is_unknown() -> None:
    """The first caller leaves the retry to the second, which was cancelled in the same turn."""
    shop = Shop(system_error(), approved())
    pause = Pause(shop)
    calls = [asyncio.create_task(shop.approve()) for _ in range(3)]
    await pause.began.wait()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    pause.go.set()
    assert isinstance(await shop.approve(), OutcomeUnknownError)
    assert shop.sent == 1


@pytest.mark.parametrize("faults", [0, 1])
@each_session
async def test_memory_call_cancelled_in_any_turn_is_never_repeated(session: str, faults: int) -> None:
    for turns in count():
        async with held_server(session, *[FAULT] * faults, APPROVAL, retry=AT_ONCE) as (server, client):
            call = asyncio.create_task(request(client))
            for _ in range(turns):
                await asyncio.sleep(0)
            if call.done():
                break
            await cancelled(call)
            again = await request(client)
            assert isinstance(again, Approved) == (server.requests == 1 + faults), (turns, again)
            assert isinstance(again, Approved | OutcomeUnknownError if faults else Approved), turns


async def test_memory_time_limit_of_the_caller_is_a_cancellation() -> None:
    async with held_server("own") as (server, client):
        call = asyncio.create_task(asyncio.wait_for(request(client), 30))
        await server.wait_for_requests(1)
        call.cancel()
        await asyncio.wait({call})
        server.respond_to_all(REFUSAL)
        assert isinstance(await request(client), Refused)
        assert server.requests == 1


async def test_memory_failed_step_leaves_no_call_in_flight() -> None:
    def broken(_: object) -> ScriptedResponse:
        raise LookupError("no such step")

    shop = Shop(computed(broken), approved())
    with pytest.raises(LookupError):
        await shop.approve()
    assert not shop.client._flights._in_flight
    assert isinstance(await shop.approve(), OutcomeUnknownError)  # it may have been sent
    assert shop.sent == 1
