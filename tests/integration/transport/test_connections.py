"""Connections of the direct path: reuse, and bodies that are too large."""

import asyncio
import gzip
import tracemalloc
from itertools import count

import pytest

from loanasync import Refused, UnexpectedResponseError
from loanasync._transport.connection import MAX_BODY_FOR_REUSE
from support.builders import FISCAL_CODE
from support.canned_server import REFUSAL, approve, response_bytes, serving
from support.direct_path import needs_direct_path
from support.virtual_time import StoppedClock, turns

MAX_BODY_SIZE = 1 << 20


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
async def test_connection_is_reused_only_within_its_idle_limit(announced: str, limit: float) -> None:
    """The timer has not closed it yet, because the test controls the clock of the event loop."""
    clock = StoppedClock()
    body = b'{"approved":false,"fiscalCode":"TSTXYZ00A00A000A"}'
    async with serving(response_bytes(422, body, *filter(None, [announced]))) as server:
        client = server.client()
        await approve(client)
        if limit:
            clock.passed += limit - 0.01
            await approve(client)
        assert server.connections == 1
        clock.passed += limit
        await approve(client)
        assert server.connections == 2
        await client.aclose()


@needs_direct_path
async def test_connection_of_a_call_that_was_cancelled_unsent_is_no_fresher() -> None:
    async with serving(REFUSAL, REFUSAL, None, REFUSAL) as server:
        clock, calls = StoppedClock(), count(1)

        def token() -> str:
            """Return the token. The fifth call cancels the fourth one, which is queued."""
            if next(calls) == 5:
                queued.cancel()
            return "token"

        async with server.client(auth_token=token) as client:
            await asyncio.gather(approve(client), approve(client))  # opens two connections
            clock.passed = 0.5
            held = asyncio.create_task(approve(client))  # while it is in progress, requests are queued
            await server.wait_for_requests(3)
            queued = asyncio.create_task(client.create_request({}))
            await approve(client)
            assert queued.cancelled()
            assert (server.requests, server.connections) == (4, 3)
            clock.passed = 1.1
            await asyncio.gather(approve(client), approve(client))
            server.respond_to_all(REFUSAL)
            await held
        assert server.connections == 4


@needs_direct_path
async def test_surplus_connections_expire_and_are_closed() -> None:
    """Each call takes the connection that was used last, so the other one is not used again."""
    clock = StoppedClock()
    async with serving(REFUSAL) as server, server.client() as client:
        await asyncio.gather(approve(client), approve(client))
        for clock.passed in (0.6, 0.9, 1.2):
            await approve(client)
        await asyncio.gather(approve(client), approve(client))
        assert server.connections == 3
        await turns()
        assert len(server.open) == 2


@needs_direct_path
@pytest.mark.parametrize(("size", "connections"), [(MAX_BODY_FOR_REUSE // 2, 1), (MAX_BODY_FOR_REUSE, 2)])
async def test_connection_is_not_reused_after_a_large_request(size: int, connections: int) -> None:
    """A part of it may be unsent when the response arrives."""
    async with serving(response_bytes(201, b"{}")) as server, server.client() as client:
        for length in (size, 1):
            await client.upload_documents(FISCAL_CODE, {"front": "x" * length})
        assert server.connections == connections


UNFINISHED = b"HTTP/1.1 201 Made\r\nContent-Length: 9000000\r\n\r\n" + b" " * (MAX_BODY_SIZE + 1)
CHUNKS = (MAX_BODY_SIZE // 10) * b"a\r\n          \r\n" + b"5\r\n     \r\n"


@pytest.mark.parametrize(
    ("large", "direct"),
    [
        (UNFINISHED, True),
        (UNFINISHED, False),
        # Its data is just below the limit; only the direct path counts the framing too.
        pytest.param(
            b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, True, marks=needs_direct_path
        ),
        (response_bytes(201, gzip.compress(b" " * 60_000_000), "Content-Encoding: gzip"), True),
    ],
    ids=["length", "length, through aiohttp", "chunks", "gzip"],
)
async def test_too_large_body_is_not_read_to_its_end(large: bytes, *, direct: bool) -> None:
    async with serving(large, REFUSAL) as server, server.client(direct_connections=direct) as client:
        tracemalloc.start()
        try:
            with pytest.raises(UnexpectedResponseError, match="too large") as caught:
                await approve(client)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 20 * MAX_BODY_SIZE
        error = caught.value
        assert (error.status, error.outcome) == (201, "unknown")
        assert error.response is not None
        assert len(error.response.body) <= MAX_BODY_SIZE
        assert isinstance(await approve(client), Refused)


async def test_too_large_500_is_not_retried() -> None:
    """The rest of the body may contain a decision."""
    fault = response_bytes(500, b" " * (MAX_BODY_SIZE + 1), "Retry-After: 0")
    async with serving(fault, REFUSAL) as server, server.client() as client:
        with pytest.raises(UnexpectedResponseError, match="too large"):
            await approve(client)
        assert server.requests == 1


async def test_decision_of_the_maximum_size_is_read() -> None:
    body = b'{"approved":false,"x":"' + b"x" * (MAX_BODY_SIZE - 25) + b'"}'
    assert len(body) == MAX_BODY_SIZE
    async with serving(response_bytes(422, body)) as server, server.client() as client:
        assert isinstance(await approve(client), Refused)
