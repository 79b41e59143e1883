"""The page for the staff of the example shop, docs/examples/staff.py."""

import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import staff
from settle_orders import open_entry
from shop_orders import Order, Orders

from loanasync import LoanClient, OutcomeUnknownError
from loanasync.checkout import Ask, Page, settle
from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.example_shops import CODE, OTHER_CUSTOMER, browsing, shopper, tagged

PASSWORD = "a password of the shop"
OUTCOMES = {
    "approved": (
        "approved. Send the customer the link that the service gave you with its statement.",
        "approved",
    ),
    "refused": ("refused.", "refused"),
    "not_evaluated": ("free again.", "free"),
}


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    async with SqliteLedger(tmp_path / "decisions.db") as opened:
        yield opened


@pytest.fixture
async def orders(sandbox: Sandbox, ledger: SqliteLedger, tmp_path: Path) -> Orders:
    """The orders of the shop, of which A-1 and A-2 have unknown outcomes."""
    async with shopper("fastapi", sandbox.client(ledger=ledger), tmp_path) as shop:
        await shop.post("/pay", data=tagged("resetafter"))
        await shop.post("/new")
        await shop.post("/pay", data=OTHER_CUSTOMER | {"email": "anna+resetafter@example.com"})
    return Orders(tmp_path / "orders.db")


@pytest.fixture
async def page(sandbox: Sandbox, ledger: SqliteLedger, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    login = staff.password_login(PASSWORD)
    async with browsing(staff.app(sandbox.client(ledger=ledger), tmp_path / "orders.db", login)) as browser:
        browser.auth = ("carla", PASSWORD)
        browser.headers["Sec-Fetch-Site"] = "same-origin"
        yield browser


async def form(orders: Orders, outcome: str, number: str = "A-1") -> dict[str, str]:
    """Return the form of an order, as the page shows it now."""
    [order] = await orders.where("id = ?", number.removeprefix("A-"))
    entry = json.loads((await order.loan())[1])["entry"]
    return {"number": number, "entry": entry, "outcome": outcome, "ticket": "ticket 7"}


def end_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time to one at which all holds have ended."""
    later = time.time() + 600
    monkeypatch.setattr("loanasync.checkout.time.time", lambda: later)


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_outcome_that_the_staff_state_is_that_of_the_order(
    page: httpx.AsyncClient,
    orders: Orders,
    outcome: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "shop")
    shown = await page.get("/")
    assert [f"Order A-{each}<" in shown.text for each in (1, 2, 3)] == [True, True, False]
    assert CODE in shown.text
    assert shown.headers["Cache-Control"] == "no-store"
    text, state = OUTCOMES[outcome]
    if outcome == "not_evaluated":
        end_holds(monkeypatch)
    sent = await form(orders, outcome)
    assert shown.text.count(f'name="entry" value="{sent["entry"]}"') == 1
    stated = await page.post("/", data=sent)
    assert f"Order A-1: {text}" in stated.text
    assert ("Order A-1<" in stated.text, "Order A-2<" in stated.text) == (False, True)
    states = [(await each.loan())[0] for each in await orders.where("1 = 1")]
    assert sorted(states) == sorted([state, "held"])
    again = await page.post("/", data=sent)
    assert (again.status_code, "Order A-1 is not held any more." in again.text) == (409, True)
    [record] = [each.getMessage() for each in caplog.records if each.name == "shop"]
    assert record == f"'carla' has stated for order A-1: {outcome}, 'ticket 7'"
    assert (CODE in caplog.text, CODE in str(stated.url)) == (False, False)


async def test_page_says_why_an_outcome_is_not_written(
    page: httpx.AsyncClient, orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shop")
    sent = await form(orders, "refused")
    [order] = await orders.where("id = 2")
    await order.change(await order.loan(), ("held", "{}"))
    damaged = await page.get("/")
    assert "customer unknown. Order.loan must return the columns" in damaged.text
    for changes, status, text in (
        ({"number": "A-2"}, 409, "Order A-2: Order.loan must return the columns"),
        ({"ticket": CODE}, 409, "Order A-1: "),  # notes have no personal data
        ({"ticket": ""}, 422, "ticket"),
        ({"outcome": "paid"}, 422, "outcome"),
    ):
        refused = await page.post("/", data=sent | changes)
        assert (refused.status_code, text in refused.text) == (status, True)
    assert CODE not in caplog.text
    waiting = await page.post("/", data=sent | {"outcome": "not_evaluated"})  # the hold has not ended
    assert "It is free in a few minutes" in waiting.text
    assert len(await orders.where("loan_state = 'held'")) == 2


async def test_form_of_an_earlier_customer_states_nothing_about_the_next_one(
    page: httpx.AsyncClient,
    orders: Orders,
    sandbox: Sandbox,
    ledger: SqliteLedger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stale, next_code = await form(orders, "approved"), "TSTXYZ00A00A000C"
    end_holds(monkeypatch)
    freed = await page.post("/", data=stale | {"outcome": "not_evaluated"})
    assert "Order A-1: free again." in freed.text
    [order] = await orders.where("id = 1")
    async with shopper("fastapi", sandbox.client(ledger=ledger), tmp_path) as shop:
        shop.cookies.clear()
        shop.cookies["order"] = order.cookie
        await shop.post("/pay", data=tagged("resetafter") | {"fiscal_code": next_code})
    assert await order.customer() == next_code
    refused = await page.post("/", data=stale)
    text = "Order A-1: nothing was written, because the order has changed; read it again"
    assert (refused.status_code, text in refused.text) == (409, True)
    async with sandbox.client(ledger=ledger) as client:
        known = [await client.known(code, order_id="A-1") for code in (CODE, next_code)]
    assert [each.state for each in known] == ["released", "unknown"]
    stated = await page.post("/", data=await form(orders, "approved"))
    assert "Order A-1: approved." in stated.text


async def test_order_that_is_freed_while_the_page_is_made_has_no_form(
    page: httpx.AsyncClient, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member of the staff, or cron, frees it between `settle` and the reading of its customer."""

    async def settle_and_free(client: LoanClient, order: Order) -> Page | None:
        found = await settle(client, order)
        await order.change(await order.loan(), ("free", ""))
        return found

    sent = await form(orders, "approved")
    monkeypatch.setattr("settle_orders.settle", settle_and_free)
    shown = await page.get("/")
    assert (shown.status_code, shown.text.count("customer unknown"), "<form" in shown.text) == (200, 2, False)
    monkeypatch.undo()
    [order] = await orders.where("id = 1")
    assert (await page.post("/", data=sent)).status_code == 409
    assert await order.loan() == ("free", "")


async def test_only_an_unknown_outcome_of_the_held_order_can_be_stated(orders: Orders) -> None:
    [order] = await orders.where("id = 1")
    entry = (await form(orders, "approved"))["entry"]
    error, of_other = (OutcomeUnknownError("approve", each, "unknown", "") for each in (entry, "c0ffee"))
    assert await open_entry(order, Ask(error=error)) == (entry, CODE)
    for page in (Ask(error=of_other), Ask(error=error, advice="fix_setup")):
        assert await open_entry(order, page) == ("", "")
    state, loan = await order.loan()
    await order.change((state, loan), ("approved", loan))
    assert await open_entry(order, Ask(error=error)) == ("", "")


SAME, OTHER = {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "cross-site"}


@pytest.mark.parametrize(
    ("password", "headers", "status"),
    [
        (None, SAME, 401),
        ("wrong", SAME, 401),
        (PASSWORD, OTHER, 403),
        (PASSWORD, {"Sec-Fetch-Site": "same-site"}, 403),
        (PASSWORD, OTHER | {"Origin": "http://{host}"}, 403),
        (PASSWORD, {}, 403),
        (PASSWORD, {"Origin": "null"}, 403),
        (PASSWORD, {"Origin": "http://other.example"}, 403),
        (PASSWORD, {"Origin": "http://{host}"}, 200),
        (PASSWORD, {"Origin": "https://{host}"}, 200),
        (PASSWORD, SAME, 200),
        ("own login", {}, 403),
        ("own login", OTHER, 403),
        ("own login", SAME, 200),
    ],
)
async def test_only_the_staff_read_and_state(
    page: httpx.AsyncClient,
    orders: Orders,
    sandbox: Sandbox,
    ledger: SqliteLedger,
    tmp_path: Path,
    password: str | None,
    headers: dict[str, str],
    status: int,
) -> None:
    """Browsers send no Sec-Fetch-Site over plain HTTP."""
    own = staff.app(sandbox.client(ledger=ledger), tmp_path / "orders.db", lambda: "dario")
    async with browsing(own) as other:
        page = other if password == "own login" else page
        page.auth = None if password in (None, "own login") else ("carla", password)
        page.headers.pop("Sec-Fetch-Site", None)
        host = page.base_url.netloc.decode()
        page.headers.update({name: value.format(host=host) for name, value in headers.items()})
        stated = await page.post("/", data=await form(orders, "approved"))
        assert (stated.status_code, CODE in stated.text) == (status, False)
        assert (await page.get("/")).status_code == (401 if status == 401 else 200)
    assert len(await orders.where("loan_state = 'held'")) == (1 if status == 200 else 2)


def test_page_needs_a_password_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAFF_PASSWORD", raising=False)
    with pytest.raises(ValueError, match="set STAFF_PASSWORD"):
        staff.app()
