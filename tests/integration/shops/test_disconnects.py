"""Shoppers who disconnect while an approval is in flight, over real sockets: the decision is kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loanasync import Decision, LoanClient
from loanasync.ledger import Entry, SqliteLedger, State
from loanasync.sandbox import Sandbox
from support.example_shops import FORM, SHOPS, shopper

# Behaviour of each framework when the browser disconnects.
CANCELS = {"aiohttp": False, "fastapi": False, "litestar": False, "quart": True, "django": True}


class WatchedClient(LoanClient):
    """A client that records whether its caller was cancelled."""

    def __init__(self, sandbox: Sandbox, ledger: SqliteLedger) -> None:
        token = sandbox.auth_token
        super().__init__(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=token, ledger=ledger)
        self.was_cancelled = asyncio.Event()

    async def approve(self, *args: Any, **options: Any) -> Decision:
        try:
            return await super().approve(*args, **options)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


class HeldLedger(SqliteLedger):
    """A ledger that stores no decision until it is released."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.released = asyncio.Event()

    async def settle(self, key: str, **options: Any) -> Entry:
        await self.released.wait()
        return await super().settle(key, **options)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[HeldLedger]:
    async with HeldLedger(tmp_path / "decisions.db") as opened:
        yield opened


@asynccontextmanager
async def shopper_left(
    name: str, sandbox: Sandbox, ledger: HeldLedger, folder: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, WatchedClient]]:
    """A shop whose shopper disconnected after the service decided and before the decision was stored."""
    client = WatchedClient(sandbox, ledger)
    async with shopper(name, client, folder) as browser:
        request = browser.build_request("POST", "/pay", data=FORM)
        names = ("Host", "Cookie", "Content-Length", "Content-Type")
        lines = ["POST /pay HTTP/1.1", *(f"{each}: {request.headers[each]}" for each in names), "", ""]
        _, writer = await asyncio.open_connection(browser.base_url.host, browser.base_url.port)
        writer.write("\r\n".join(lines).encode() + request.content)
        await sandbox.journal.wait_for(2, timeout=60)
        writer.close()
        await writer.wait_closed()
        if CANCELS[name]:
            await client.was_cancelled.wait()
        yield browser, client


@pytest.mark.parametrize("name", SHOPS)
async def test_returning_shopper_is_redirected_with_one_approval_sent(
    name: str, sandbox: Sandbox, ledger: HeldLedger, tmp_path: Path
) -> None:
    async with shopper_left(name, sandbox, ledger, tmp_path) as (browser, client):
        ledger.released.set()
        again = await browser.post("/pay", data=FORM)
        assert "/apply/" in again.headers["Location"]
    assert client.was_cancelled.is_set() == CANCELS[name]
    sandbox.journal.assert_once(operation="approve")
    assert sandbox.findings == []


@pytest.mark.parametrize("name", SHOPS)
async def test_stopping_server_waits_for_approval_in_flight(
    name: str, sandbox: Sandbox, ledger: HeldLedger, tmp_path: Path
) -> None:
    async with shopper_left(name, sandbox, ledger, tmp_path):
        assert [entry.state async for entry in ledger.scan()] == [State.INFLIGHT]
        asyncio.get_running_loop().call_later(0.2, ledger.released.set)  # while the server stops
    assert [entry.state async for entry in ledger.scan()] == [State.APPROVED]
