"""The page that a shopper sees when the clicks of an order end differently, and shoppers who disconnect."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from shop_orders import Orders

from loanasync import LedgerMismatchError
from loanasync.checkout import Page, checkout
from loanasync.ledger import Entry, LedgerPolicy, SqliteLedger, State, create_ledger
from loanasync.sandbox import Sandbox
from support.example_shops import FORM, OTHER_CUSTOMER, SHOPS, shopper, tagged

NOT_AVAILABLE = "We are sorry: payment in instalments is not available now. Please choose"
WAIT = "Your request is still being decided"
UNKNOWN = "We have not received the decision on your request yet. Please do not send it again."
OTHER_ORDER = "You have already requested a loan for another order."
OTHER_DATA = "You have already applied with other data"


@asynccontextmanager
async def worker(
    sandbox: Sandbox, folder: Path, shop: str = "fastapi", **policy: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A worker of a shop; all workers share the ledger and the orders in a folder."""
    ledger = SqliteLedger(folder / "decisions.db")
    client = sandbox.client(ledger=ledger, ledger_policy=LedgerPolicy(**policy))
    async with ledger, shopper(shop, client, folder) as browser:
        yield browser


def shows(page: httpx.Response, status: int, heading: str) -> bool:
    """Return True if a page shows a text, and another way to pay only if no loan may be approved."""
    found = "".join(re.findall("<h1>(.*)</h1>", page.text))
    assert (page.status_code, found[: len(heading)]) == (status, heading)
    assert ("<button>Check again</button>" in page.text) == (heading == WAIT)
    is_safe = heading in (NOT_AVAILABLE, OTHER_ORDER) or "try again" in found
    return is_safe == any(each in page.text for each in ("pay by card", "another payment method"))


@pytest.mark.parametrize(
    ("tag", "status", "heading", "again"),
    [
        ("forbidden", 503, NOT_AVAILABLE, True),
        ("noshop", 503, NOT_AVAILABLE, True),
        ("resetafter", 202, UNKNOWN, False),
        ("garbage", 202, UNKNOWN, False),
        ("conflict", 202, UNKNOWN, False),
        ("500after", 202, "Your request has already been decided.", False),
    ],
)
async def test_error_is_shown_and_logged_and_an_approval_is_sent_once(
    sandbox: Sandbox,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    tag: str,
    status: int,
    heading: str,
    again: bool,
) -> None:
    async with worker(sandbox, tmp_path) as browser:
        assert shows(await browser.post("/pay", data=tagged(tag)), status, heading)
        [order] = await Orders(tmp_path / "orders.db").where("cookie = ?", browser.cookies["order"])
        [record] = [each for each in caplog.records if each.name == "shop"]
        [logged] = re.findall(r"^entry (\w{64}): approve", record.getMessage())
        state, loan = await order.loan()
        assert state == "free" if again else json.loads(loan)["entry"] == logged
        assert browser.cookies["order"] not in caplog.text
        sent = len(sandbox.journal.calls(operation="approve"))
        assert shows(await browser.post("/pay", data=tagged(tag)), status, heading)
        assert len(sandbox.journal.calls(operation="approve")) == sent + again
        other = await browser.post("/pay", data=OTHER_CUSTOMER)
        assert other.status_code == 303 if again else shows(other, 409, OTHER_DATA)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no database": lambda file: file.write_bytes(b"garbage" * 400),
    "wrong header": lambda file: file.write_bytes(b"\xff" * 100 + file.read_bytes()[100:]),
    "empty": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_ledger_never_sells_an_evaluated_order_twice(
    sandbox: Sandbox, tmp_path: Path, damage: str
) -> None:
    """The service may have approved the loan of the first order. Quart does not enter the client."""
    async with worker(sandbox, tmp_path) as browser:
        await browser.post("/pay", data=tagged("resetafter"))
        cookies = browser.cookies
    DAMAGES[damage](tmp_path / "decisions.db")
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        with pytest.raises(LedgerMismatchError):
            await sandbox.client(ledger=ledger).__aenter__()
    async with worker(sandbox, tmp_path, "quart") as browser:
        assert shows(await browser.post("/pay", data=OTHER_CUSTOMER), 503, NOT_AVAILABLE)
        browser.cookies = cookies
        assert shows(await browser.post("/pay", data=tagged("resetafter")), 202, UNKNOWN)
    sandbox.journal.assert_once(operation="approve")


async def test_unavailable_ledger_never_sells_an_evaluated_order_twice(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    file, hidden = tmp_path / "decisions.db", tmp_path / "hidden"
    async with worker(sandbox, tmp_path) as browser:
        for _ in range(3):
            assert shows(await browser.post("/pay", data=tagged("resetafter")), 202, UNKNOWN)
            assert shows(await browser.get("/"), 202, UNKNOWN)
            file.rename(hidden)
            file, hidden = hidden, file
    sandbox.journal.assert_once(operation="approve")


async def test_click_that_only_waited_does_not_hold_the_order(sandbox: Sandbox, tmp_path: Path) -> None:
    """The first click is not evaluated, so the shopper may correct the fiscal code."""
    denied = tagged("slow1000.forbidden")
    async with (
        SqliteLedger(tmp_path / "decisions.db") as ledger,
        worker(sandbox, tmp_path) as browser,
        worker(sandbox, tmp_path, wait=0) as other,
    ):
        await create_ledger(ledger, base_url=sandbox.base_url)
        other.cookies = browser.cookies
        first = asyncio.create_task(browser.post("/pay", data=denied))
        while not [entry async for entry in ledger.scan()]:  # noqa: ASYNC110  (another thread writes it)
            await asyncio.sleep(0.02)
        page = await other.post("/pay", data=denied)
        assert shows(page, 202, WAIT)
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
        assert dict(hidden) == denied
        for changes in (OTHER_CUSTOMER, {"instalments": "24"}):
            assert shows(await other.post("/pay", data=denied | changes), 409, OTHER_DATA)
        assert shows(await first, 503, NOT_AVAILABLE)
        assert (await other.post("/pay", data=OTHER_CUSTOMER)).status_code == 303


@pytest.mark.parametrize("tag", ["approved", "refused"])
async def test_decided_order_shows_its_decision_whatever_is_typed(
    sandbox: Sandbox, tmp_path: Path, tag: str
) -> None:
    async with worker(sandbox, tmp_path) as browser:
        first = await browser.post("/pay", data=tagged(tag))
        for mistyped in (OTHER_CUSTOMER, {"city": ""}, {"city": "Rom"}, {"email": FORM["email"]}):
            again = await browser.post("/pay", data=tagged(tag) | mistyped)
            assert again.headers["Location"] == first.headers["Location"]
        shown = await browser.get("/", follow_redirects=True)
        refusal = "This decision is final. You can pay by card"
        assert {"approved": "Your loan is approved", "refused": refusal}[tag] in shown.text
        assert ("<h1>Loan refused</h1>" in shown.text) == (tag == "refused")
    sandbox.journal.assert_once(operation="approve")


@pytest.mark.parametrize("tag", ["approved", "refused", "resetafter"])
async def test_second_order_of_a_customer_is_explained(sandbox: Sandbox, tmp_path: Path, tag: str) -> None:
    """The sandbox evaluates each customer once."""
    async with worker(sandbox, tmp_path) as browser:
        await browser.post("/pay", data=tagged(tag))
        cookie = browser.cookies["order"]
        for changes in ({}, {"instalments": "24"}):
            browser.cookies.clear()  # another browser
            other = await browser.post("/pay", data=tagged(tag) | changes)
            page = (202, UNKNOWN) if tag == "resetafter" else (409, OTHER_ORDER)
            assert shows(other, *page)
            assert "Location" not in other.headers
        assert browser.cookies["order"] not in (cookie, None)
        assert (await browser.get("/order", follow_redirects=True)).url.path == "/"  # nothing is stored


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
        [order] = await Orders(tmp_path / "orders.db").where("cookie = ?", browser.cookies["order"])
    assert cancelled.is_set() == CANCELS[name]
    assert [entry.state async for entry in ledger.scan()] == [State.APPROVED]
    while (await order.loan())[0] == "held":  # noqa: ASYNC110  (the database is another thread)
        await asyncio.sleep(0.02)
    assert (await order.loan())[0] == "approved"
    sandbox.journal.assert_once(operation="approve")
    assert sandbox.findings == []
