"""Concurrent requests on the direct path are queued and written together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from unittest import mock

import pytest

from loanasync import ConnectError, ConnectionLostError, LoanClient, Refused
from loanasync._transport.connection import DirectConnection, Scheduler
from support.canned_server import APPROVAL, REFUSAL, Canned, approve, serving
from support.direct_path import needs_direct_path

pytestmark = needs_direct_path
Queued = tuple[asyncio.Task[Any], DirectConnection]


def connections_of(client: LoanClient) -> list[DirectConnection]:
    resources: Any = client._pipeline._per_loop.current()
    return list(resources.transport._scheduler.connections)


@asynccontextmanager
async def busy(*responses: bytes | None) -> AsyncIterator[tuple[Canned, LoanClient]]:
    """Run a client with a call in progress that gets no response, and one idle connection."""
    async with serving(REFUSAL, REFUSAL, None, *responses) as server, server.client() as client:
        await asyncio.gather(approve(client), approve(client))
        held = asyncio.create_task(approve(client))
        await server.wait_for_requests(3)
        try:
            yield server, client
        finally:
            server.respond_to_all(REFUSAL)
            await held


async def queued(client: LoanClient, call: Coroutine[Any, Any, object]) -> Queued:
    """Start a call; return its task and its connection when its request is queued."""
    task = asyncio.create_task(call)
    while True:
        await asyncio.sleep(0)
        for connection in connections_of(client):
            if connection._unsent_bytes is not None:
                return task, connection


def test_system_exit_in_one_send_keeps_the_others_queued() -> None:
    loop = mock.Mock(time=mock.Mock(side_effect=count(1.0)))
    scheduler = Scheduler(loop)
    bad, good = (mock.Mock(send=mock.Mock(side_effect=does)) for does in (SystemExit, [600]))
    scheduler.add(bad)
    scheduler.add(good)
    loop.call_soon.assert_called_once()
    (callback, blocked_from), _ = loop.call_soon.call_args
    with pytest.raises(SystemExit):
        callback(blocked_from)
    (callback, again), _ = loop.call_soon.call_args
    assert again == blocked_from, "the requests were queued at the same time"
    callback(again)
    assert loop.call_soon.call_count == 2
    good.send.assert_called_once_with()


async def test_queued_call_that_is_cancelled_keeps_its_connection_usable() -> None:
    async with busy(REFUSAL) as (server, client):
        call, connection = await queued(client, client.create_request({}))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert connection in connections_of(client)
        assert isinstance(await approve(client), Refused)
        assert (server.requests, server.most_open) == (4, 2)


@pytest.mark.parametrize(
    "happens",
    [
        lambda connection: connection._transport.abort(),
        lambda connection: connection.connection_lost(None),
        lambda connection: connection.connection_lost(OSError(104, "reset")),
        lambda connection: connection.data_received(APPROVAL),
    ],
    ids=["closing", "ended", "reset", "unsolicited"],
)
async def test_queued_call_on_a_closed_connection_uses_another(
    happens: Callable[[DirectConnection], None],
) -> None:
    async with busy(REFUSAL) as (server, client):
        call, connection = await queued(client, approve(client))
        happens(connection)
        assert isinstance(await call, Refused)
        assert connection not in connections_of(client)
        assert server.requests == 4


async def test_queued_call_on_a_closed_new_connection_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = DirectConnection.exchange

    def queue_and_abort(self: DirectConnection, *args: Any) -> Any:
        result = exchange(self, *args)
        self._transport.abort()
        return result

    async with busy(REFUSAL) as (server, client):
        # Both the idle connection and the new one end.
        monkeypatch.setattr(DirectConnection, "exchange", queue_and_abort)
        with pytest.raises(ConnectError) as caught:
            await approve(client)
        assert caught.value.outcome == "not_sent"
        assert (server.requests, server.most_open) == (3, 2)


async def test_write_error_of_one_call_does_not_affect_the_others() -> None:
    async with busy(REFUSAL) as (server, client):
        bad, connection = await queued(client, approve(client))
        good = asyncio.create_task(approve(client))
        broken = mock.patch.object(connection._transport, "write", side_effect=RuntimeError("broken"))
        with broken, pytest.raises(ConnectionLostError, match="RuntimeError") as caught:
            await bad
        assert caught.value.outcome == "unknown"
        assert isinstance(await good, Refused)
        assert server.requests == 4


async def test_request_interrupted_after_its_write_is_not_written_again() -> None:
    async with busy(REFUSAL) as (server, client):
        call, connection = await queued(client, approve(client))
        original = connection._transport.write

        def write_and_interrupt(data: bytes) -> None:
            original(data)
            raise KeyboardInterrupt

        with mock.patch.object(connection._transport, "write", side_effect=write_and_interrupt) as write:
            with pytest.raises(KeyboardInterrupt):
                connection.send()
            connection.send()
            write.assert_called_once()
        assert isinstance(await call, Refused)
        assert server.requests == 4
