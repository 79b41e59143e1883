"""The page for the staff of the example shop, docs/examples/staff.py."""

import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import staff
from shop_orders import Orders

from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.example_shops import CODE, OTHER_CUSTOMER, browsing, shopper, tagged

PASSWORD = "a password of the shop"
OUTCOMES = {
    "approved": ("approved. Send the customer the link of the service.", "approved"),
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
        yield browser


def form(outcome: str, number: str = "A-1", ticket: str = "ticket 7") -> dict[str, str]:
    return {"number": number, "outcome": outcome, "ticket": ticket}


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
    if outcome == "not_evaluated":  # a click may still be between its hold and its approval
        later = time.time() + 600
        monkeypatch.setattr("loanasync.checkout.time.time", lambda: later)
    stated = await page.post("/", data=form(outcome))
    assert f"Order A-1: {text}" in stated.text
    assert ("Order A-1<" in stated.text, "Order A-2<" in stated.text) == (False, True)
    states = [(await each.loan())[0] for each in await orders.where("1 = 1")]
    assert sorted(states) == sorted([state, "held"])
    again = await page.post("/", data=form(outcome))
    assert (again.status_code, "Order A-1 is not held any more." in again.text) == (409, True)
    [record] = [each.getMessage() for each in caplog.records if each.name == "shop"]
    assert record == f"'carla' has stated for order A-1: {outcome}, 'ticket 7'"
    assert (CODE in caplog.text, CODE in str(stated.url)) == (False, False)


async def test_page_says_why_an_outcome_is_not_written(
    page: httpx.AsyncClient, orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shop")
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
        refused = await page.post("/", data=form("refused") | changes)
        assert (refused.status_code, text in refused.text) == (status, True)
    assert CODE not in caplog.text
    waiting = await page.post("/", data=form("not_evaluated"))  # the hold of the click has not ended
    assert "It is free in a few minutes" in waiting.text
    assert len(await orders.where("loan_state = 'held'")) == 2


@pytest.mark.parametrize(
    ("password", "headers", "status"),
    [
        (None, {}, 401),
        ("wrong", {}, 401),
        (PASSWORD, {"Sec-Fetch-Site": "cross-site"}, 403),
        (PASSWORD, {"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_only_the_staff_read_and_state(
    page: httpx.AsyncClient, orders: Orders, password: str | None, headers: dict[str, str], status: int
) -> None:
    page.auth = None if password is None else ("carla", password)
    stated = await page.post("/", data=form("approved"), headers=headers)
    assert (stated.status_code, CODE in stated.text) == (status, False)
    assert (await page.get("/", headers=headers)).status_code == (200 if password == PASSWORD else 401)
    assert len(await orders.where("loan_state = 'held'")) == (1 if status == 200 else 2)


def test_page_needs_a_password_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAFF_PASSWORD", raising=False)
    with pytest.raises(ValueError, match="set STAFF_PASSWORD"):
        staff.app()
