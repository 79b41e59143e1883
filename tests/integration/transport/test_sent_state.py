"""Uploads larger than the buffers of the system, waits for a connection, and calls that `aclose` ends."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import aiohttp
import pytest

from loanasync import (
    ConnectError,
    ConnectionLostError,
    LoanClient,
    Refused,
    RejectedError,
    Timeout,
    TransportError,
)
from support.builders import FISCAL_CODE
from support.canned_server import approve
from support.direct_path import client_of, each_direct_session, each_path, each_session
from support.faults.row import http
from support.raw_server import PATIENCE, Play, RawServer, running, tls_of, until
from support.virtual_time import turns

REFUSAL = http("422 Unprocessable", b'{"approved": false}')
UPLOAD = {"front": "x" * (15 << 20)}  # larger than the socket buffers of both sides
each_scheme = pytest.mark.parametrize("scheme", ["http", "https"])


@each_scheme
@each_session
async def test_large_upload_arrives_whole(scheme: str, session: str) -> None:
    server = RawServer((Play.READ, http("200 OK", b"{}")), scheme=scheme, tls=tls_of(scheme))
    async with running(server), client_of(server.base_url, session) as client:
        await client.upload_documents(FISCAL_CODE, UPLOAD)
    assert len(server.requests[0]) > 15 << 20


@pytest.mark.parametrize("end", [Play.FIN, Play.RST])
async def test_large_upload_on_a_lost_connection_is_unknown(end: Play) -> None:
    async with running(RawServer((Play.READ_HALF, end))) as server, client_of(server.base_url) as client:
        with pytest.raises(ConnectionLostError) as caught:
            await client.upload_documents(FISCAL_CODE, UPLOAD)
    assert (caught.value.outcome, server.requests) == ("unknown", [])


@each_scheme
@each_session
async def test_unsent_part_of_an_upload_does_not_delay_the_next_call(scheme: str, session: str) -> None:
    early = http("400 Bad Request", b'{"errors": {"front": ["too large"]}}')
    server = RawServer(
        (Play.READ_HALF, early, Play.AFTER_THE_CALL), (Play.READ, REFUSAL), scheme=scheme, tls=tls_of(scheme)
    )
    async with running(server), client_of(server.base_url, session) as client:
        with pytest.raises(RejectedError):
            await client.upload_documents(FISCAL_CODE, UPLOAD)
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await approve(client), Refused)
        server.call_over.set()


@each_scheme
@each_session
async def test_rest_of_a_cancelled_request_is_not_written(scheme: str, session: str) -> None:
    begun, over, all_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
    received = 0

    async def read_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readexactly(100)
        begun.set()
        await over.wait()
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                received += len(part)
        writer.close()
        all_read.set()

    async with (
        asyncio.timeout(PATIENCE),
        await asyncio.start_server(read_later, "127.0.0.1", 0, ssl=tls_of(scheme)) as server,
    ):
        port = server.sockets[0].getsockname()[1]
        async with client_of(f"{scheme}://127.0.0.1:{port}", session) as client:
            upload = asyncio.create_task(client.upload_documents(FISCAL_CODE, UPLOAD))
            await begun.wait()
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
        over.set()
        await all_read.wait()
    assert received < 15 << 20


@each_path
async def test_session_closed_while_waiting_for_its_pool_is_not_sent(*, is_direct: bool) -> None:
    connector: Any = aiohttp.TCPConnector(limit=1)
    async with (
        running(RawServer((Play.READ, Play.SILENCE))) as server,
        aiohttp.ClientSession(connector=connector) as session,
        client_of(server.base_url, session, direct_connections=is_direct) as client,
    ):
        first = asyncio.create_task(approve(client))
        await until(lambda: len(server.requests) == 1)
        second = asyncio.create_task(approve(client))
        await until(lambda: bool(connector._waiters))
        await session.close()
        for task, sent in ((first, "unknown"), (second, "not_sent")):
            with pytest.raises(TransportError) as caught:
                await task
            assert caught.value.outcome == sent


# `aclose` whose drain time is over ends calls in progress at once.

DRAIN = 0.2  # seconds
PATIENT = Timeout(total=600, attempt=500, connect=400)  # seconds: only aclose() can end such a call in time


async def ended_by_aclose(client: LoanClient, *calls: Awaitable[object]) -> list[tuple[type, str, str]]:
    """Close a client while calls are in progress; return class, outcome and cause of their errors."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await turns(2)  # the calls and their flights begin
    async with asyncio.timeout(PATIENCE):
        await client.aclose(DRAIN)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    return [
        (type(error), error.outcome, error.cause_type)
        for error in errors
        if isinstance(error, ConnectError | ConnectionLostError)
    ]


LOST = (ConnectionLostError, "unknown", "SessionClosed")
UNSENT = (ConnectError, "not_sent", "SessionClosed")


@pytest.mark.parametrize("scheme", ["http", "https"])
@each_direct_session  # aiohttp waits until the rest is written
async def test_aclose_during_upload_to_stalled_server_ends_the_call(session: str, scheme: str) -> None:
    server = RawServer((Play.READ_HALF, Play.AFTER_THE_CALL), scheme=scheme, tls=tls_of(scheme))
    async with running(server), client_of(server.base_url, session) as client:
        upload = asyncio.create_task(client.upload_documents(FISCAL_CODE, UPLOAD, timeout=PATIENT))
        await until(lambda: server.accepted == 1)
        assert await ended_by_aclose(client, upload) == [LOST]
        server.call_over.set()
        await server.wait_until_closed()
        assert not server.requests


@each_session
async def test_aclose_while_connecting_ends_the_call(session: str) -> None:
    server = RawServer()
    async with running(server, RawServer.overfill), client_of(server.base_url, session) as client:
        assert await ended_by_aclose(client, approve(client, timeout=PATIENT)) == [UNSENT]


@each_session
async def test_aclose_while_waiting_for_responses_and_slots_ends_the_calls(session: str) -> None:
    server = RawServer((Play.READ, Play.SILENCE))
    async with running(server), client_of(server.base_url, session, max_concurrency=1) as client:
        first = asyncio.create_task(approve(client, timeout=PATIENT))
        await until(lambda: len(server.requests) == 1)
        assert await ended_by_aclose(client, first, approve(client, timeout=PATIENT)) == [LOST, UNSENT]
        await server.wait_until_closed()
