"""Calls that are still in progress when the drain time of `aclose` is over end at once."""

import asyncio
from collections.abc import Awaitable

import pytest

from loanasync import ConnectError, ConnectionLostError, LoanClient, Timeout
from support.builders import FISCAL_CODE
from support.canned_server import approve
from support.direct_path import client_of, each_direct_session, each_session
from support.raw_server import PATIENCE, Play, RawServer, running, tls_of, until
from support.virtual_time import turns

DRAIN = 0.2  # seconds
PATIENT = Timeout(total=600, attempt=500, connect=400)  # seconds: only aclose() can end such a call in time
UPLOAD = {"front": "x" * (15 << 20)}  # more than the system buffers for a peer that does not read


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
