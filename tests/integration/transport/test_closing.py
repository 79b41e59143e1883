"""Calls that are still in progress when the drain time of `aclose` is over end at once."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from loanasync import (
    ConnectError,
    ConnectionLostError,
    LoanClient,
    RetryPolicy,
    SystemFaultError,
    Timeout,
)
from loanasync.ledger import MemoryLedger
from support.builders import FISCAL_CODE
from support.canned_server import approve
from support.direct_path import each_direct_session
from support.faults.row import SESSIONS, http
from support.raw_server import PATIENCE, Certificate, Play, RawServer, authority, certificate, running, until
from support.separate import SeparateClient

DRAIN = Timeout(total=0.2, attempt=0.2, connect=0.1)
PATIENT = Timeout(total=600, attempt=500, connect=400)  # seconds: only aclose() can end such a call in time
UPLOAD = 15 << 20  # characters, more than the system buffers for a peer that does not read
FAULT = http("500 Internal Server Error", b"{}", "Retry-After: 500")


@asynccontextmanager
async def client_of(server: RawServer, session: str, **options: Any) -> AsyncIterator[LoanClient]:
    trust = ssl.create_default_context()
    authority().configure_trust(trust)
    options = {"shop_id": "s", "auth_token": "t", "timeout": DRAIN, **options}
    options["direct_connections"] = "through aiohttp" not in session
    if session.startswith("users"):
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector) as users:
            yield SeparateClient(server.base_url, session=users, **options)
        return
    yield SeparateClient(server.base_url, ssl=trust, **options)


async def ended_by_aclose(client: LoanClient, call: Awaitable[object]) -> BaseException:
    """Close a client while a call is in progress; return what the call raises."""
    task = asyncio.ensure_future(call)
    for _ in range(2):  # the call and its flight begin
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await client.aclose()
        [error] = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(error, BaseException)
    return error


@pytest.mark.parametrize("scheme", ["http", "https"])
@each_direct_session  # aiohttp waits until the rest is written
async def test_aclose_during_upload_to_stalled_server_ends_the_call(session: str, scheme: str) -> None:
    tls = certificate(Certificate.GOOD) if scheme == "https" else None
    server = RawServer((Play.READ_HALF, Play.AFTER_THE_CALL), scheme=scheme, tls=tls)
    async with running(server), client_of(server, session) as client:
        upload = asyncio.create_task(
            client.upload_documents(FISCAL_CODE, {"front": "x" * UPLOAD}, timeout=PATIENT)
        )
        await until(lambda: server.accepted == 1)
        error = await ended_by_aclose(client, upload)
        assert isinstance(error, ConnectionLostError)
        assert error.outcome == "unknown"
        server.call_over.set()
        await server.wait_until_closed()
        assert not server.requests


@pytest.mark.parametrize("session", SESSIONS)
async def test_aclose_while_connecting_ends_the_call(session: str) -> None:
    server = RawServer()
    async with running(server, RawServer.overfill), client_of(server, session) as client:
        call = asyncio.create_task(approve(client, timeout=PATIENT))
        error = await ended_by_aclose(client, call)
        assert isinstance(error, ConnectError)
        assert (error.outcome, error.cause_type) == ("not_sent", "SessionClosed")


@pytest.mark.parametrize("ledger", [None, MemoryLedger], ids=["memory", "ledger"])
@pytest.mark.parametrize("session", SESSIONS)
async def test_aclose_while_waiting_for_a_retry_ends_the_call(
    session: str, ledger: Callable[[], MemoryLedger] | None
) -> None:
    server = RawServer((Play.READ, FAULT), (Play.READ, FAULT))
    options = {"retry": RetryPolicy(base=500, cap=600), "ledger": None if ledger is None else ledger()}
    async with running(server), client_of(server, session, **options) as client:
        call = asyncio.create_task(approve(client, timeout=PATIENT))
        await until(lambda: len(server.requests) == 1)
        error = await ended_by_aclose(client, call)
        assert isinstance(error, SystemFaultError)
        assert (error.outcome, error.stopped_by, error.attempts) == ("unknown", "closed", 1)
        assert len(server.requests) == 1


@pytest.mark.parametrize("session", SESSIONS)
async def test_aclose_while_waiting_for_responses_and_slots_ends_the_calls(session: str) -> None:
    server = RawServer((Play.READ, Play.SILENCE))
    async with running(server), client_of(server, session, max_concurrency=1) as client:
        first = asyncio.create_task(approve(client, timeout=PATIENT))
        await until(lambda: len(server.requests) == 1)
        second = asyncio.create_task(approve(client, timeout=PATIENT))
        await asyncio.sleep(0)
        error = await ended_by_aclose(client, first)
        assert isinstance(error, ConnectionLostError)
        assert (error.outcome, error.cause_type) == ("unknown", "SessionClosed")
        error = await ended_by_aclose(client, second)
        assert isinstance(error, ConnectError)
        assert (error.outcome, error.cause_type) == ("not_sent", "SessionClosed")
        await server.wait_until_closed()
