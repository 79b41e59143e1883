"""Shoppers who disconnect while an approval is in flight, over real sockets: the decision is kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest

from loanasync import Decision, LoanClient
from loanasync.ledger import SqliteLedger, State
from loanasync.sandbox import Sandbox
from support.example_shops import FORM, SHOPS, address_of, listen, serving

ON_DISCONNECT = {  # behaviour of each framework when the browser disconnects
    "aiohttp": "continues",
    "fastapi": "continues",
    "litestar": "continues",
    "quart": "is cancelled",
    "django": "is cancelled",
}


class WatchedClient(LoanClient):
    """A client that records whether its caller was cancelled. Its proxy holds back the first response."""

    def __init__(self, proxy: "Proxy", sandbox: Sandbox, ledger: SqliteLedger | None) -> None:
        super().__init__(
            proxy.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token, ledger=ledger
        )
        self._proxy = proxy
        self.finished = asyncio.Event()
        self.handler = "continues"

    async def approve(self, *args: Any, **options: Any) -> Decision:
        if not self.finished.is_set():
            self._proxy.is_open.clear()
        try:
            return await super().approve(*args, **options)
        except asyncio.CancelledError:
            self.handler = "is cancelled"
            raise
        finally:
            self.finished.set()


class Proxy:
    """A TCP proxy in front of the sandbox that can hold back responses."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._port = urlsplit(sandbox.base_url).port
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        responses, service = await asyncio.open_connection("127.0.0.1", self._port)
        backward = asyncio.create_task(self._backward(responses, writer))
        with suppress(ConnectionError):
            while sent := await reader.read(65536):
                service.write(sent)
        service.close()
        await backward
        writer.close()

    async def _backward(self, responses: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while received := await responses.read(65536):
            await self.is_open.wait()
            writer.write(received)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    async with SqliteLedger(tmp_path / "decisions.db") as opened:
        yield opened


@pytest.fixture
async def proxy(sandbox: Sandbox) -> AsyncIterator[Proxy]:
    async with Proxy(sandbox) as opened:
        yield opened


@asynccontextmanager
async def shopper_left(
    name: str, client: WatchedClient, sandbox: Sandbox
) -> AsyncIterator[httpx.AsyncClient]:
    """A shop whose shopper disconnected after the service decided and before its response arrived."""
    with listen() as sock:
        address = address_of(sock)
        async with serving(name, client, sock), httpx.AsyncClient(base_url=address) as browser:
            await browser.get("/")
            request = browser.build_request("POST", "/pay", data=FORM)
            names = ("Host", "Cookie", "Content-Length", "Content-Type")
            lines = ["POST /pay HTTP/1.1", *(f"{each}: {request.headers[each]}" for each in names), "", ""]
            _, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write("\r\n".join(lines).encode() + request.content)
            await sandbox.journal.wait_for(2, timeout=60)
            writer.close()
            await writer.wait_closed()
            if ON_DISCONNECT[name] == "is cancelled":
                await client.finished.wait()
            yield browser


@pytest.mark.parametrize("name", SHOPS)
async def test_returning_shopper_is_redirected_with_one_approval_sent(
    name: str, proxy: Proxy, sandbox: Sandbox, ledger: SqliteLedger
) -> None:
    client = WatchedClient(proxy, sandbox, ledger)
    async with shopper_left(name, client, sandbox) as browser:
        proxy.is_open.set()
        again = await browser.post("/pay", data=FORM)
        assert "/apply/" in again.headers["Location"]
    assert client.handler == ON_DISCONNECT[name]
    sandbox.journal.assert_once(operation="approve")
    assert sandbox.findings == []


@pytest.mark.parametrize("name", SHOPS)
async def test_stopping_server_waits_for_approval_in_flight(
    name: str, proxy: Proxy, sandbox: Sandbox, ledger: SqliteLedger
) -> None:
    async with shopper_left(name, WatchedClient(proxy, sandbox, ledger), sandbox):
        assert [entry.state async for entry in ledger.scan()] == [State.INFLIGHT]
        asyncio.get_running_loop().call_later(0.2, proxy.is_open.set)  # while the server stops
    assert [entry.state async for entry in ledger.scan()] == [State.APPROVED]


@pytest.mark.parametrize("name", SHOPS)
async def test_cancelled_handler_without_ledger_keeps_the_decision(
    name: str, proxy: Proxy, sandbox: Sandbox
) -> None:
    """The client reads the response in the background and remembers the decision."""
    async with shopper_left(name, WatchedClient(proxy, sandbox, None), sandbox) as browser:
        proxy.is_open.set()
        again = await browser.post("/pay", data=FORM)
        assert "/apply/" in again.headers["Location"]
    sandbox.journal.assert_once(operation="approve")
