"""Connections of the direct path: reuse, timeouts and bodies."""

import asyncio
import gzip
import tracemalloc
from typing import Any

import pytest

from loanasync import (
    LoanClient,
    ReadTimeoutError,
    Refused,
    Timeout,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync._transport import connection as direct_connection
from loanasync._transport.aiohttp_internals import MAX_BODY_SIZE
from support.canned_server import APPROVAL, REFUSAL, approve, response_bytes, serving
from support.direct_path import is_direct, needs_direct_path
from support.raw_server import PATIENCE, until


def scheduler_of(client: LoanClient) -> Any:
    resources: Any = client._pipeline._per_loop.current()
    return resources.transport._scheduler


async def time_out(client: LoanClient, attempt: float, order: list[float]) -> None:
    with pytest.raises(ReadTimeoutError):
        await approve(client, timeout=Timeout(attempt=attempt, connect=0.9 * attempt))
    order.append(attempt)


@needs_direct_path
@pytest.mark.parametrize("patience", [(1.5, 0.5, 1.0), (0.5, 1.0, 1.5)], ids=["shorter", "longer"])
async def test_calls_in_any_order_end_at_their_own_deadlines(patience: tuple[float, ...]) -> None:
    order: list[float] = []
    async with serving(None) as server, server.client() as client:
        async with asyncio.TaskGroup() as calls:
            for number, attempt in enumerate(patience, start=1):
                calls.create_task(time_out(client, attempt, order))
                await server.wait_for_requests(number)
        assert order == sorted(patience)
        assert not scheduler_of(client).connections


async def test_a_call_in_time_does_not_wait_for_the_timer_of_another() -> None:
    async with serving(None, REFUSAL) as server, server.client() as client:
        slow = asyncio.create_task(time_out(client, PATIENCE, []))
        await server.wait_for_requests(1)
        assert isinstance(await approve(client), Refused)
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        server.respond_to_all(REFUSAL)


@needs_direct_path
async def test_idle_connection_is_closed_by_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(REFUSAL) as server, server.client() as client:
        await approve(client)
        assert (len(server.open), len(scheduler_of(client).connections)) == (1, 1)
        monkeypatch.setattr(direct_connection, "_MAX_IDLE", 0.01)
        await approve(client)
        await until(lambda: not server.open)
        assert not scheduler_of(client).connections
        assert isinstance(await approve(client), Refused)
        assert server.requests == 3


@needs_direct_path
@pytest.mark.parametrize(
    ("announced", "limit"),
    [
        ("", 1.0),
        ("Keep-Alive: timeout=5, max=100", 1.0),
        ("Keep-Alive: max=100, Timeout=1", 0.5),
        ("Keep-Alive: timeout=0", 0.0),
        ("Keep-Alive: timeout=" + 5000 * "9", 1.0),
        ("Keep-Alive: timeout=soon", 1.0),
    ],
)
async def test_connection_is_reused_only_within_its_idle_limit(
    announced: str, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer has not closed it yet, because the test controls the clock of the event loop."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    refusal = response_bytes(
        422, b'{"approved":false,"fiscalCode":"TSTXYZ00A00A000A"}', *filter(None, [announced])
    )
    async with serving(refusal) as server, server.client() as client:
        await approve(client)
        [first] = scheduler_of(client).connections
        if limit:
            now += limit - 0.01
            await approve(client)
            assert {first} == scheduler_of(client).connections
        now += limit
        await approve(client)
        assert first not in scheduler_of(client).connections
        assert server.requests == (3 if limit else 2)


@needs_direct_path
async def test_connection_of_an_unsent_request_is_not_fresh_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(REFUSAL) as server, server.client() as client:
        await approve(client)
        [connection] = scheduler_of(client).connections
        expires_at = connection.expires_at
        loop = asyncio.get_running_loop()
        now = loop.time() + 0.5
        monkeypatch.setattr(loop, "time", lambda: now)
        scheduler_of(client).in_progress += 1  # so that the request is queued
        call = asyncio.create_task(client.create_request({}))
        await until(lambda: connection._result is not None)
        call.cancel()
        await asyncio.wait({call})
        scheduler_of(client).in_progress -= 1
        assert (connection.expires_at, server.requests) == (expires_at, 1)


@needs_direct_path
async def test_timer_does_not_keep_the_event_loop_running() -> None:
    async with serving(REFUSAL) as server:
        client = server.client()
        await approve(client)
        scheduler = scheduler_of(client)
        assert not scheduler.limits._handle.cancelled()
        await client.aclose()
        assert scheduler.limits._handle.cancelled()
        await until(lambda: not server.open)


@pytest.mark.parametrize("more", [REFUSAL, b"HTTP/1.1 103 Early Hints\r\n\r\n"], ids=["response", "hints"])
async def test_data_after_a_response_is_not_read_by_the_next_call(more: bytes) -> None:
    async with serving(REFUSAL + more, APPROVAL) as server, server.client() as client:
        assert isinstance(await approve(client), Refused)
        first = set(server.open)
        assert (await approve(client)).approved
        assert first.isdisjoint(server.open)


async def test_call_after_a_closed_connection_is_sent_on_another() -> None:
    async with serving(REFUSAL) as server, server.client() as client:
        server.closes_after_response = True
        for number in range(1, 6):
            assert isinstance(await approve(client), Refused)
            assert server.requests == number


async def test_interim_responses_are_skipped() -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3
    async with serving(hints + REFUSAL) as server, server.client() as client:
        assert isinstance(await approve(client), Refused)
        assert isinstance(await approve(client), Refused)
        assert server.most_open == 1 or not is_direct("own")


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_a_body_is_complete_after_its_head(status: int) -> None:
    bare = f"HTTP/1.1 {status} Nothing\r\n\r\n".encode()
    async with serving(bare, REFUSAL) as server, server.client() as client:
        with pytest.raises(UnexpectedStatusError, match=str(status)):
            await approve(client, timeout=Timeout(attempt=PATIENCE))
        assert isinstance(await approve(client), Refused)
        assert server.requests == 2


CHUNKS = (MAX_BODY_SIZE // 10) * b"a\r\n          \r\n" + b"5\r\n     \r\n"


@pytest.mark.parametrize(
    "large",
    [
        response_bytes(201, b" " * (MAX_BODY_SIZE + 1)),
        # Its data is just below the limit; only the direct path counts the framing too.
        pytest.param(
            b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, marks=needs_direct_path
        ),
    ],
    ids=["length", "chunks"],
)
async def test_too_large_body_is_not_read_to_its_end(large: bytes) -> None:
    async with serving(large, REFUSAL) as server, server.client() as client:
        with pytest.raises(UnexpectedResponseError, match="too large") as caught:
            await approve(client)
        assert (caught.value.status, caught.value.outcome) == (201, "unknown")
        assert isinstance(await approve(client), Refused)


async def test_too_large_500_is_retried_after_its_retry_after() -> None:
    fault = response_bytes(500, b" " * (MAX_BODY_SIZE + 1), "Retry-After: 0")
    async with serving(fault, REFUSAL) as server, server.client() as client:
        assert (await approve(client)).meta.attempts == 2


async def test_decision_of_the_maximum_size_is_read() -> None:
    body = b'{"approved":false,"x":"' + b"x" * (MAX_BODY_SIZE - 25) + b'"}'
    assert len(body) == MAX_BODY_SIZE
    async with serving(response_bytes(422, body)) as server, server.client() as client:
        assert isinstance(await approve(client), Refused)
        assert isinstance(await approve(client), Refused)
        assert server.most_open == 1


async def test_compressed_body_is_decoded_up_to_the_maximum_size() -> None:
    packed = response_bytes(201, gzip.compress(b" " * 60_000_000), "Content-Encoding: gzip")
    async with serving(packed, REFUSAL) as server, server.client() as client:
        tracemalloc.start()
        try:
            with pytest.raises(UnexpectedResponseError, match="too large"):
                await approve(client)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 20 * MAX_BODY_SIZE
        assert isinstance(await approve(client), Refused)


@needs_direct_path
async def test_too_large_body_that_arrives_at_once_is_cut() -> None:
    async with serving(None) as server, server.client() as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        [connection] = scheduler_of(client).connections
        connection.data_received(response_bytes(201, b" " * (MAX_BODY_SIZE + 1)))
        with pytest.raises(UnexpectedResponseError, match="too large") as caught:
            await call
        assert caught.value.response is not None
        assert len(caught.value.response.body) == MAX_BODY_SIZE
        await until(lambda: not server.open)


@needs_direct_path
@pytest.mark.parametrize("first", [0, 41], ids=["with the body", "before the body"])
async def test_head_with_bare_line_feeds_ends_before_its_body(first: int) -> None:
    """As many bytes as the body has follow an empty line inside the body."""
    received = b'HTTP/1.1 422 Refused\nContent-Length: 22\n\n{\r\n\r\n"approved":false}12345'
    async with serving(None) as server, server.client() as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        [connection] = scheduler_of(client).connections
        for piece in (received[:first], received[first:]):
            connection.data_received(piece)
        assert isinstance(await call, Refused)
        await until(lambda: not server.open)
