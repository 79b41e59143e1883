"""A shopper who goes away while the loan is asked for, over real sockets: the answer is kept for them."""

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
from support.example_shops import FORM, SHOPS, address_of, listening, serving

ON_DISCONNECT = {  # what each framework does with a handler whose client is gone
    "aiohttp": "goes on",
    "fastapi": "goes on",
    "litestar": "goes on",
    "quart": "is cancelled",
    "django": "is cancelled",
}


class Watched(LoanClient):
    """A client that tells how its caller left; the answers to its approvals are held back."""

    def __init__(self, way: "Way", sandbox: Sandbox, ledger: SqliteLedger | None) -> None:
        super().__init__(way.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token, ledger=ledger)
        self._way = way
        self.left = asyncio.Event()
        self.handler = "goes on"

    async def approve(self, *args: Any, **options: Any) -> Decision:
        if not self.left.is_set():
            self._way.is_open.clear()
        try:
            return await super().approve(*args, **options)
        except asyncio.CancelledError:
            self.handler = "is cancelled"
            raise
        finally:
            self.left.set()


class Way:
    """The way to the sandbox, on which answers can be held back."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._port = urlsplit(sandbox.base_url).port
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, service = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(self._back(answers, writer))
        with suppress(ConnectionError):
            while sent := await reader.read(65536):
                service.write(sent)
        service.close()
        await back
        writer.close()

    async def _back(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answer := await answers.read(65536):
            await self.is_open.wait()
            writer.write(answer)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    async with SqliteLedger(tmp_path / "decisions.db") as made:
        yield made


@pytest.fixture
async def way(sandbox: Sandbox) -> AsyncIterator[Way]:
    async with Way(sandbox) as made:
        yield made


@asynccontextmanager
async def left_alone(name: str, client: Watched, sandbox: Sandbox) -> AsyncIterator[httpx.AsyncClient]:
    """A shop whose shopper clicked on pay and went: the service has decided, its answer is under way."""
    with listening() as sock:
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
                await client.left.wait()
            yield browser


@pytest.mark.parametrize("name", SHOPS)
async def test_who_comes_back_is_sent_on_and_nothing_is_asked_twice(
    name: str, way: Way, sandbox: Sandbox, ledger: SqliteLedger
) -> None:
    client = Watched(way, sandbox, ledger)
    async with left_alone(name, client, sandbox) as browser:
        way.is_open.set()
        again = await browser.post("/pay", data=FORM)
        assert "/apply/" in again.headers["Location"]
    assert client.handler == ON_DISCONNECT[name]
    sandbox.journal.assert_once(operation="approve")
    assert sandbox.findings == []


@pytest.mark.parametrize("name", SHOPS)
async def test_a_server_that_stops_waits_for_what_is_being_asked(
    name: str, way: Way, sandbox: Sandbox, ledger: SqliteLedger
) -> None:
    async with left_alone(name, Watched(way, sandbox, ledger), sandbox):
        assert [entry.state async for entry in ledger.scan()] == [State.INFLIGHT]
        asyncio.get_running_loop().call_later(0.2, way.is_open.set)  # while the server stops
    assert [entry.state async for entry in ledger.scan()] == [State.APPROVED]


@pytest.mark.parametrize("name", SHOPS)
async def test_without_ledger_a_cancelled_handler_loses_no_decision(
    name: str, way: Way, sandbox: Sandbox
) -> None:
    """The client reads the response in the background and remembers the decision."""
    async with left_alone(name, Watched(way, sandbox, None), sandbox) as browser:
        way.is_open.set()
        again = await browser.post("/pay", data=FORM)
        assert "/apply/" in again.headers["Location"]
    sandbox.journal.assert_once(operation="approve")
