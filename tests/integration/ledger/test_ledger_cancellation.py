"""Cancelled calls with a ledger: nothing is sent after the cancellation, and nothing is repeated."""

import asyncio
import itertools
from typing import Any

import pytest

from loanasync import Approved, LoanClient, RetryPolicy
from loanasync.ledger import MemoryLedger, State
from support.canned_server import APPROVAL, serving
from support.memory_clients import SESSIONS, cancelled, held_server, request
from support.raw_server import until

AT_ONCE = RetryPolicy(base=0.001, cap=0.001)
each_session = pytest.mark.parametrize("session", SESSIONS)


class Slow(MemoryLedger):
    """A ledger whose claim takes a few iterations of the event loop, as on a disk or a server."""

    async def claim(self, key: str, **options: object) -> object:  # type: ignore[override]
        for _ in range(3):
            await asyncio.sleep(0)
        entry = await super().claim(key, **options)  # type: ignore[arg-type]
        for _ in range(3):
            await asyncio.sleep(0)
        return entry


@each_session
async def test_approve_cancelled_at_any_step_sends_nothing_afterwards(session: str) -> None:
    """Cancel one loop iteration later each time until the request is sent; with warm and cold connections."""
    for turns in itertools.count(1):
        ledger = Slow()
        async with held_server(session, ledger=ledger) as (server, client):
            call = asyncio.create_task(request(client))
            for _ in range(turns):
                await asyncio.sleep(0)
            flights = client._flights._in_flight
            await cancelled(call)
            was_sent = any(flight.is_reading for flight in flights.values())
            if was_sent:
                await server.wait_for_requests(1)
                server.respond_to_all(APPROVAL)
            await until(lambda flights=flights: not flights)  # type: ignore[misc]
            for _ in range(20):
                await asyncio.sleep(0)
            assert server.requests == was_sent
            states = [entry.state async for entry in ledger.scan()]
            assert states == [State.APPROVED] if was_sent else states in ([], [State.RELEASED])
            if was_sent:
                return


async def test_call_cancelled_while_connecting_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    has_arrived, found = asyncio.Event(), asyncio.Event()
    look_up = asyncio.get_running_loop().getaddrinfo

    async def slow(*arguments: Any, **options: Any) -> Any:
        has_arrived.set()
        await found.wait()
        return await look_up(*arguments, **options)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", slow)
    ledger = MemoryLedger()
    async with serving(APPROVAL) as server:
        address = server.base_url.replace("127.0.0.1", "localhost")
        async with LoanClient(address, shop_id="s", auth_token="t", ledger=ledger) as client:
            call = asyncio.create_task(request(client))
            await has_arrived.wait()
            [entry] = [each async for each in ledger.scan()]
            assert entry.state is State.INFLIGHT
            await cancelled(call)
            await client._flights.aclose()
            [entry] = [each async for each in ledger.scan()]
            assert (entry.state, server.requests) == (State.RELEASED, 0)
            found.set()
            assert isinstance(await request(client), Approved)
            assert server.requests == 1
