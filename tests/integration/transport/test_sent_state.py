"""A request counts as sent from the first byte that was written, whatever error follows."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest

from loanasync import (
    ConnectError,
    ConnectionLostError,
    LoanClient,
    Refused,
    RejectedError,
    RetryPolicy,
    Timeout,
    TransportError,
)
from loanasync.ledger import MemoryLedger
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import approve
from support.direct_path import each_path
from support.faults.row import SESSIONS, http
from support.raw_server import PATIENCE, Certificate, Play, RawServer, authority, certificate, running, until
from support.separate import SeparateClient

PICTURES = {"front": "x" * (3 << 20)}  # larger than the system's socket buffers
REFUSAL = http("422 Unprocessable", b'{"approved": false}')


async def test_a_large_upload_arrives_whole() -> None:
    async with running(RawServer((Play.READ, http("200 OK", b"{}")))) as server:
        async with LoanClient(server.base_url, shop_id="s", auth_token="t") as client:
            await client.upload_documents(FISCAL_CODE, PICTURES)
        assert len(server.requests[0]) > 3 << 20


@pytest.mark.parametrize("end", [Play.FIN, Play.RST])
async def test_large_upload_on_a_lost_connection_is_unknown(end: Play) -> None:
    async with running(RawServer((Play.READ_HALF, end))) as server:
        async with LoanClient(server.base_url, shop_id="s", auth_token="t") as client:
            with pytest.raises(ConnectionLostError) as caught:
                await client.upload_documents(FISCAL_CODE, PICTURES)
        assert (caught.value.outcome, server.requests) == ("unknown", [])


async def test_response_before_the_end_of_a_large_upload_is_read() -> None:
    early = http("400 Bad Request", b'{"errors": {"front": ["too large"]}}')
    async with (
        running(RawServer((Play.READ_HALF, early, Play.SILENCE))) as server,
        LoanClient(server.base_url, shop_id="s", auth_token="t") as client,
    ):
        with pytest.raises(Exception, match="upload_documents failed with status 400"):
            await client.upload_documents(FISCAL_CODE, PICTURES)


UNSENT = 15 << 20  # characters; larger than the socket buffers of both sides


def tls_of(scheme: str) -> ssl.SSLContext | None:
    return certificate(Certificate.GOOD) if scheme == "https" else None


@contextlib.asynccontextmanager
async def client_of(base_url: str, session: str) -> AsyncIterator[LoanClient]:
    trust = ssl.create_default_context()
    authority().configure_trust(trust)
    options: dict[str, Any] = {"shop_id": "s", "auth_token": "t"}
    options["direct_connections"] = "through aiohttp" not in session
    if session.startswith("users"):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as users:
            yield LoanClient(base_url, session=users, **options)
    else:
        async with LoanClient(base_url, ssl=trust, **options) as client:
            yield client


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_unsent_part_of_an_upload_does_not_delay_the_next_call(scheme: str, session: str) -> None:
    early = http("400 Bad Request", b'{"errors": {"front": ["too large"]}}')
    server = RawServer(
        (Play.READ_HALF, early, Play.AFTER_THE_CALL), (Play.READ, REFUSAL), scheme=scheme, tls=tls_of(scheme)
    )
    async with running(server), client_of(server.base_url, session) as client:
        with pytest.raises(RejectedError):
            await client.upload_documents(FISCAL_CODE, {"front": "x" * UNSENT})
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await approve(client), Refused)
        server.call_over.set()


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("scheme", ["http", "https"])
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

    async with await asyncio.start_server(read_later, "127.0.0.1", 0, ssl=tls_of(scheme)) as server:
        port = server.sockets[0].getsockname()[1]
        async with client_of(f"{scheme}://127.0.0.1:{port}", session) as client:
            upload = asyncio.create_task(client.upload_documents(FISCAL_CODE, {"front": "x" * UNSENT}))
            async with asyncio.timeout(PATIENCE):
                await begun.wait()
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
        over.set()
        async with asyncio.timeout(PATIENCE):
            await all_read.wait()
    assert received < UNSENT


@each_path
async def test_timeout_while_waiting_for_the_users_pool_is_not_sent(*, is_direct: bool) -> None:
    timeout = Timeout(total=10, attempt=0.5, connect=0.2)
    held = RawServer((Play.READ, Play.SILENCE), (Play.READ, REFUSAL))
    async with (
        running(held) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        client = SeparateClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            session=session,
            direct_connections=is_direct,
            timeout=timeout,
        )
        first, second = await asyncio.gather(
            *(client.approve(FISCAL_CODE, approval_request()) for _ in range(2)), return_exceptions=True
        )
        assert isinstance(first, TransportError)
        assert isinstance(second, TransportError)
        assert (first.outcome, second.outcome) == ("unknown", "not_sent")
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Refused)


@each_path
async def test_session_closed_while_waiting_for_its_pool_is_not_sent(*, is_direct: bool) -> None:
    async with running(RawServer((Play.READ, Play.SILENCE))) as server:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
        client = SeparateClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            session=session,
            direct_connections=is_direct,
        )
        first = asyncio.create_task(approve(client))
        await until(lambda: len(server.requests) == 1)
        second = asyncio.create_task(approve(client))
        await until(lambda: bool(cast("Any", session.connector)._waiters))
        await session.close()
        for task, sent in ((first, "unknown"), (second, "not_sent")):
            with pytest.raises(TransportError) as caught:
                await task
            assert caught.value.outcome == sent


async def test_aclose_during_a_dns_lookup_raises_connect_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, found = asyncio.Event(), asyncio.Event()

    async def look_up(*_: object, **__: object) -> list[Any]:
        started.set()
        await found.wait()
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    client = LoanClient("https://loans.example.com", shop_id="s", auth_token="t")
    task = asyncio.create_task(approve(client))
    await started.wait()
    closing = asyncio.create_task(client.aclose())
    await asyncio.sleep(0)
    closing.cancel()  # the transport is then closed without waiting
    with pytest.raises(ConnectError, match="request not sent"):
        await task
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_retry_sends_the_same_body_again() -> None:
    fault = http("500 Internal Server Error", b"{}")
    async with running(RawServer((Play.READ, fault), (Play.READ, REFUSAL))) as server:
        async with LoanClient(
            server.base_url, shop_id="s", auth_token="t", retry=RetryPolicy(base=0.001)
        ) as client:
            assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Refused)
        first, second = server.requests
        assert first.partition(b"\r\n\r\n")[2] == second.partition(b"\r\n\r\n")[2]


@each_path
@pytest.mark.parametrize("turns", range(1, 10))
@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("ledger", [None, MemoryLedger], ids=["memory", "ledger"])
async def test_approve_cancelled_at_any_turn_sends_one_request(
    ledger: type[MemoryLedger] | None,
    turns: int,
    *,
    is_warm: bool,
    is_direct: bool,
) -> None:
    created, refused = (Play.READ, http("200 OK", b"{}")), (Play.READ, REFUSAL)
    server = RawServer(*[created] * is_warm, refused, refused)
    async with running(server), aiohttp.ClientSession() as session:
        client = LoanClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            session=session,
            direct_connections=is_direct,
            ledger=None if ledger is None else ledger(),
        )
        if is_warm:
            await client.create_request({"fiscalCode": FISCAL_CODE})
        task = asyncio.create_task(client.approve(FISCAL_CODE, approval_request()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        # On some versions of Python, the response arrives before the last of these iterations.
        with contextlib.suppress(asyncio.CancelledError):
            await task
        decision = await client.approve(FISCAL_CODE, approval_request())
        await client.aclose()
        assert isinstance(decision, Refused)
        assert len(server.requests) == 1 + is_warm
