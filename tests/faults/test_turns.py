"""Calls that become ready together are sent together, and until then nothing of them has left."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from canned import REFUSAL, Canned, approve, serving

from loanasync import ConnectError, ConnectionLostError, LoanClient, ReadTimeoutError, Refused
from loanasync import _wire as wiring
from loanasync._wire import Watch, Wire

Asked = tuple[asyncio.Task[Any], Wire]


def wires(client: LoanClient) -> list[Wire]:
    lane: Any = client._pipeline._lanes.here()
    return list(lane.transport._watch.wires)


@asynccontextmanager
async def busy(*answers: bytes | None) -> AsyncIterator[tuple[Canned, LoanClient]]:
    """A client with a call under way that is not answered, and a connection that waits for the next."""
    async with serving(REFUSAL, REFUSAL, None, *answers) as server, server.client() as client:
        await asyncio.gather(approve(client), approve(client))
        held = asyncio.create_task(approve(client))
        await server.asked_times(3)
        yield server, client
        held.cancel()
        with suppress(asyncio.CancelledError):
            await held


async def asked(client: LoanClient) -> Asked:
    """A call that waits for its turn to be sent, and its connection."""
    call = asyncio.create_task(approve(client))
    await asyncio.sleep(0)
    [wire] = [wire for wire in wires(client) if wire._unsent is not None]
    return call, wire


async def test_calls_under_way_together_are_sent_when_all_that_was_ready_is_done() -> None:
    order: list[str] = []

    def noting(name: str) -> Any:
        known = getattr(Wire, name)

        def noted(self: Wire, *given: Any) -> Any:
            order.append(name)
            return known(self, *given)

        return mock.patch.object(Wire, name, noted)

    async with serving(REFUSAL) as server, server.client() as client:
        await asyncio.gather(*(approve(client) for _ in range(4)))
        with noting("ask"), noting("send"):
            await asyncio.gather(*(approve(client) for _ in range(4)))
        assert order == ["ask", "send", *["ask"] * 3, *["send"] * 3]
        assert (server.requests, server.most_open) == (8, 4)


async def test_no_step_of_the_loop_sends_more_than_takes_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "_AT_ONCE", 3)
    async with serving(REFUSAL) as server, server.client() as client:
        await asyncio.gather(*(approve(client) for _ in range(9)))
        loop, turns, turn = asyncio.get_running_loop(), Counter[int](), 0

        def count() -> None:
            nonlocal turn
            turn += 1
            ticking = loop.call_soon(count)
            if server.requests == 18:
                ticking.cancel()

        def noted(wire: Wire, send: Callable[[Wire], None] = Wire.send) -> None:
            turns[turn] += 1
            send(wire)

        monkeypatch.setattr(Wire, "send", noted)
        loop.call_soon(count)
        await asyncio.gather(*(approve(client) for _ in range(9)))
        assert max(turns.values()) == 3
        assert sorted(turns.values()) == [1, 2, 3, 3]
        assert server.requests == 18


def test_what_ends_the_program_while_one_is_sent_leaves_the_others_their_turn() -> None:
    soon: list[Callable[[], None]] = []
    watch = Watch(cast("asyncio.AbstractEventLoop", SimpleNamespace(call_soon=soon.append)))
    watch.asked = 2
    bad, good = mock.Mock(send=mock.Mock(side_effect=SystemExit)), mock.Mock()
    watch.send(bad)
    watch.send(good)
    (turn,) = soon
    with pytest.raises(SystemExit):
        turn()
    soon[-1]()
    assert len(soon) == 2
    good.send.assert_called_once_with()


async def test_a_call_that_is_alone_is_sent_at_once() -> None:
    async with serving(REFUSAL, None, REFUSAL) as server, server.client() as client:
        for _ in range(2):  # however the call before has ended
            await approve(client)
            call = asyncio.create_task(approve(client))
            await asyncio.sleep(0)
            assert not [wire for wire in wires(client) if wire._unsent is not None]
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call


async def test_a_call_given_up_before_its_turn_is_not_sent_and_leaves_its_connection_to_the_next() -> None:
    async with busy(REFUSAL) as (server, client):
        call, wire = await asked(client)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert wire in wires(client)
        assert isinstance(await approve(client), Refused)
        assert (server.requests, server.most_open) == (4, 2)


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (lambda wire: wire._transport.abort(), ConnectError),
        (lambda wire: wire.connection_lost(None), ConnectError),
        (lambda wire: wire.connection_lost(OSError(104, "reset")), ConnectError),
        (lambda wire: wire.data_received(REFUSAL), ConnectError),
        (Wire.expire, ReadTimeoutError),
    ],
    ids=["closing", "ended", "reset", "unasked", "late"],
)
async def test_what_happens_before_the_turn_happens_to_a_call_that_has_not_left(
    happens: Callable[[Wire], None], error: type[ConnectError | ReadTimeoutError]
) -> None:
    async with busy(REFUSAL) as (server, client):
        call, wire = await asked(client)
        happens(wire)
        with pytest.raises(error) as caught:
            await call
        assert caught.value.request_sent == "no"
        assert wire not in wires(client)
        assert server.requests == 3
        assert isinstance(await approve(client), Refused)
        assert server.requests == 4


async def test_one_that_cannot_be_sent_hinders_no_other() -> None:
    async with busy(REFUSAL) as (server, client):
        bad, wire = await asked(client)
        good = asyncio.create_task(approve(client))
        broken = mock.patch.object(wire._transport, "write", side_effect=RuntimeError("broken"))
        with broken, pytest.raises(ConnectionLostError, match="RuntimeError") as caught:
            await bad
        assert caught.value.request_sent == "maybe"
        assert isinstance(await good, Refused)
        assert server.requests == 4
