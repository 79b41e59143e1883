"""Calls that become ready together are sent together, and until then nothing of them has left."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any
from unittest import mock

import pytest

from loanasync import ConnectError, ConnectionLostError, LoanClient, Refused
from loanasync._transport.fast import connection as wiring
from loanasync._transport.fast.connection import DirectConnection, Scheduler
from support.canned_server import APPROVAL, REFUSAL, Canned, approve, serving

Asked = tuple[asyncio.Task[Any], DirectConnection]


def wires(client: LoanClient) -> list[DirectConnection]:
    lane: Any = client._pipeline._per_loop.current()
    return list(lane.transport._scheduler.connections)


@asynccontextmanager
async def busy(*answers: bytes | None) -> AsyncIterator[tuple[Canned, LoanClient]]:
    """A client with a call under way that is not answered, and a connection that waits for the next."""
    async with serving(REFUSAL, REFUSAL, None, *answers) as server, server.client() as client:
        await asyncio.gather(approve(client), approve(client))
        held = asyncio.create_task(approve(client))
        await server.asked_times(3)
        try:
            yield server, client
        finally:
            held.cancel()
            with suppress(asyncio.CancelledError):
                await held


async def asked(client: LoanClient) -> Asked:
    """A call that waits for its turn to be sent, and its connection."""
    call = asyncio.create_task(approve(client))
    await asyncio.sleep(0)
    [wire] = [wire for wire in wires(client) if wire._unsent_bytes is not None]
    return call, wire


async def test_concurrent_requests_are_written_together() -> None:
    order: list[str] = []

    def noting(name: str) -> Any:
        known = getattr(DirectConnection, name)

        def noted(self: DirectConnection, *given: Any) -> Any:
            order.append(name)
            return known(self, *given)

        return mock.patch.object(DirectConnection, name, noted)

    async with serving(REFUSAL) as server, server.client() as client:
        await asyncio.gather(*(approve(client) for _ in range(4)))
        with noting("exchange"), noting("send"):
            await asyncio.gather(*(approve(client) for _ in range(4)))
        assert order == ["exchange", "send", *["exchange"] * 3, *["send"] * 3]
        assert (server.requests, server.most_open) == (8, 4)


async def test_bytes_written_per_loop_iteration_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(REFUSAL) as server, server.client() as client:
        await asyncio.gather(*(approve(client) for _ in range(9)))
        loop, turns, turn = asyncio.get_running_loop(), Counter[int](), 0
        size = 0

        def tick() -> None:
            nonlocal turn
            turn += 1
            ticking = loop.call_soon(tick)
            if server.requests == 19:
                ticking.cancel()

        def noted(
            wire: DirectConnection, send: Callable[[DirectConnection], int] = DirectConnection.send
        ) -> int:
            nonlocal size
            turns[turn] += 1
            size = send(wire)
            return size

        monkeypatch.setattr(DirectConnection, "send", noted)
        await approve(client)
        turns.clear()
        monkeypatch.setattr(wiring, "_BYTES_PER_TURN", 2 * size + 1)
        loop.call_soon(tick)
        await asyncio.gather(*(approve(client) for _ in range(9)))
        assert max(turns.values()) == 3
        assert sorted(turns.values()) == [1, 2, 3, 3]
        assert server.requests == 19


def test_system_exit_in_one_send_keeps_the_others_queued() -> None:
    loop = mock.Mock(time=mock.Mock(side_effect=count(1.0)))
    scheduler = Scheduler(loop)
    scheduler.in_progress = 2
    bad, good = (mock.Mock(send=mock.Mock(side_effect=does)) for does in (SystemExit, [600]))
    scheduler.send(bad)
    scheduler.send(good)
    loop.call_soon.assert_called_once()
    (turn, by), _ = loop.call_soon.call_args
    with pytest.raises(SystemExit):
        turn(by)
    (turn, still), _ = loop.call_soon.call_args
    assert still == by, "they were asked before whatever made the first turn late"
    turn(still)
    assert loop.call_soon.call_count == 2
    good.send.assert_called_once_with()


async def test_single_call_is_written_at_once() -> None:
    async with serving(REFUSAL, None, REFUSAL) as server, server.client() as client:
        for _ in range(2):  # however the call before has ended
            await approve(client)
            call = asyncio.create_task(approve(client))
            await asyncio.sleep(0)
            assert not [wire for wire in wires(client) if wire._unsent_bytes is not None]
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call


async def test_queued_call_that_is_cancelled_keeps_its_connection_usable() -> None:
    async with busy(REFUSAL) as (server, client):
        call, wire = await asked(client)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert wire in wires(client)
        assert isinstance(await approve(client), Refused)
        assert (server.requests, server.most_open) == (4, 2)


@pytest.mark.parametrize(
    "happens",
    [
        lambda wire: wire._transport.abort(),
        lambda wire: wire.connection_lost(None),
        lambda wire: wire.connection_lost(OSError(104, "reset")),
        lambda wire: wire.data_received(APPROVAL),
    ],
    ids=["closing", "ended", "reset", "unasked"],
)
async def test_queued_call_on_a_closed_connection_uses_another(
    happens: Callable[[DirectConnection], None],
) -> None:
    async with busy(REFUSAL) as (server, client):
        call, wire = await asked(client)
        happens(wire)
        assert isinstance(await call, Refused)
        assert wire not in wires(client)
        assert server.requests == 4


async def test_queued_call_on_a_closed_new_connection_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = DirectConnection.exchange

    def asked_and_ended(self: DirectConnection, *given: Any) -> Any:
        answer = exchange(self, *given)
        self._transport.abort()
        return answer

    async with busy(REFUSAL) as (server, client):
        # Both the idle connection and the new one end.
        monkeypatch.setattr(DirectConnection, "exchange", asked_and_ended)
        with pytest.raises(ConnectError) as caught:
            await approve(client)
        assert caught.value.outcome == "not_sent"
        assert (server.requests, server.most_open) == (3, 2)


async def test_write_error_of_one_call_does_not_affect_the_others() -> None:
    async with busy(REFUSAL) as (server, client):
        bad, wire = await asked(client)
        good = asyncio.create_task(approve(client))
        broken = mock.patch.object(wire._transport, "write", side_effect=RuntimeError("broken"))
        with broken, pytest.raises(ConnectionLostError, match="RuntimeError") as caught:
            await bad
        assert caught.value.outcome == "unknown"
        assert isinstance(await good, Refused)
        assert server.requests == 4


async def test_request_interrupted_after_its_write_is_not_written_again() -> None:
    async with busy(REFUSAL) as (server, client):
        call, wire = await asked(client)
        known = wire._transport.write

        def writes_and_ends(data: bytes) -> None:
            known(data)
            raise KeyboardInterrupt

        with mock.patch.object(wire._transport, "write", side_effect=writes_and_ends) as write:
            with pytest.raises(KeyboardInterrupt):
                wire.send()
            wire.send()
            write.assert_called_once()
        assert isinstance(await call, Refused)
        assert server.requests == 4
