"""Shoppers who disconnect while an approval is in flight, over real sockets: the decision is kept."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from shop_orders import Orders

from loanasync.checkout import Page, checkout
from loanasync.ledger import Entry, SqliteLedger, State
from loanasync.sandbox import Sandbox
from support.example_shops import FORM, SHOPS, shopper

# Behaviour of each framework when the browser disconnects.
CANCELS = {"aiohttp": False, "fastapi": False, "litestar": False, "quart": True, "django": True}


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


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when the handler of a click is cancelled."""
    event = asyncio.Event()

    async def watched(*values: Any, **options: Any) -> Page:
        try:
            return await checkout(*values, **options)
        except asyncio.CancelledError:
            event.set()
            raise

    monkeypatch.setattr("checkout.checkout", watched)
    return event


@pytest.mark.parametrize("name", SHOPS)
async def test_decision_of_a_shopper_who_left_is_stored_while_the_server_stops(
    name: str, sandbox: Sandbox, ledger: HeldLedger, cancelled: asyncio.Event, tmp_path: Path
) -> None:
    """The shopper disconnects after the service decided and before the decision is stored."""
    async with shopper(name, sandbox.client(ledger=ledger), tmp_path) as browser:
        request = browser.build_request("POST", "/pay", data=FORM)
        names = ("Host", "Cookie", "Content-Length", "Content-Type")
        lines = ["POST /pay HTTP/1.1", *(f"{each}: {request.headers[each]}" for each in names), "", ""]
        _, writer = await asyncio.open_connection(browser.base_url.host, browser.base_url.port)
        writer.write("\r\n".join(lines).encode() + request.content)
        await sandbox.journal.wait_for(2, timeout=60)
        writer.close()
        await writer.wait_closed()
        if CANCELS[name]:
            await cancelled.wait()
        assert [entry.state async for entry in ledger.scan()] == [State.INFLIGHT]
        asyncio.get_running_loop().call_later(0.2, ledger.released.set)
        order = await Orders(tmp_path / "orders.db").get(browser.cookies["order"])
    assert cancelled.is_set() == CANCELS[name]
    assert [entry.state async for entry in ledger.scan()] == [State.APPROVED]
    assert order is not None
    while await order.decision() is None:  # noqa: ASYNC110  (the database is another thread)
        await asyncio.sleep(0.02)
    assert ((await order.decision()) or {})["approved"] is True
    sandbox.journal.assert_once(operation="approve")
    assert sandbox.findings == []
