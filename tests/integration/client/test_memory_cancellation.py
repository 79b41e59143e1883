"""Cancelled callers: a request is sent once, and its response is read after the callers were cancelled."""

import asyncio
from itertools import count
from typing import Any

import pytest

from loanasync import (
    Approved,
    LoanClient,
    OutcomeUnknownError,
    RetryPolicy,
    Timeout,
)
from loanasync.testing import ScriptedResponse, approved, computed
from support.canned_server import APPROVAL, FAULT, serving
from support.direct_path import needs_direct_path
from support.memory_clients import SESSIONS, Shop, cancelled, held_server, request
from support.raw_server import until

AT_ONCE = RetryPolicy(base=0.001, cap=0.001)
each_session = pytest.mark.parametrize("session", SESSIONS)


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


async def test_memory_failed_step_leaves_no_call_in_flight() -> None:
    def broken(_: object) -> ScriptedResponse:
        raise LookupError("no such step")

    shop = Shop(computed(broken), approved())
    with pytest.raises(LookupError):
        await shop.approve()
    assert not shop.client._flights._in_flight
    assert isinstance(await shop.approve(), OutcomeUnknownError)  # it may have been sent
    assert shop.sent == 1
