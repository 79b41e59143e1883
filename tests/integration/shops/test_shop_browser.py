"""Two example shops operated in a real browser, from the cart to the completed data."""

import asyncio
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import staff
from attrs import frozen
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.browser import CHROMIUM, program
from support.example_shops import (
    CODE,
    DATA,
    FORM,
    OTHER_CUSTOMER,
    address_of,
    browsing,
    listen,
    shopper,
    tagged,
)

PASSWORD = "a password of the shop"
MINUTE = 60_000  # milliseconds: tolerate a slow machine
SELECTS = {"citizenship", "instalments", "document_type"}  # <select> fields


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    executable = program(*CHROMIUM)
    with sync_playwright() as playwright:
        expect.set_options(timeout=MINUTE)
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        # One context for all tests: its processes need more time to start than a page to load.
        yield browser.new_context(http_credentials={"username": "carla", "password": PASSWORD})
        browser.close()


@frozen
class Served:
    """A shop, the page for its staff, and the sandbox, which redirects customers back to the shop."""

    sandbox: Sandbox
    address: str
    staff: str
    orders: Path

    def change_order(self, state: str, loan: str = "") -> None:
        """Change the order of the browser, which is the second one, as the shop or a killed worker does."""
        with closing(sqlite3.connect(self.orders)) as connection, connection:
            connection.execute("UPDATE orders SET loan_state = ?, loan = ? WHERE id = 2", (state, loan))

    def hold_until(self, seconds: float) -> None:
        """Hold the order, as a click of another worker does."""
        loan = {"order": "A-2", "amount": 45_000, "code": CODE, "holds": {"click": seconds}}
        self.change_order("held", json.dumps(loan))


@pytest.fixture(params=["fastapi", pytest.param("aiohttp", marks=pytest.mark.scheduled)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "orders.db"
    with (
        listen() as sock,
        listen() as other,
        Sandbox.in_thread(shop_url=f"{address_of(sock)}/order") as sandbox,
    ):
        started, stopping = threading.Event(), threading.Event()

        async def serve() -> None:
            login = staff.password_login(PASSWORD)
            async with (
                SqliteLedger(tmp_path / "decisions.db") as ledger,
                shopper(request.param, sandbox.client(ledger=ledger), tmp_path, sock),
                browsing(staff.app(sandbox.client(ledger=ledger), file, login), other),
            ):
                started.set()
                await asyncio.to_thread(stopping.wait)

        server = threading.Thread(target=lambda: asyncio.run(serve()))
        server.start()
        try:
            assert started.wait(60)
            yield Served(sandbox, address_of(sock), address_of(other), file)
        finally:
            stopping.set()
            server.join()


@pytest.fixture
def page(context: BrowserContext, shop: Served) -> Iterator[Page]:
    """The cart of a new shopper. Errors on the console fail the test, except for statuses of pages."""
    errors: list[str] = []
    context.clear_cookies()
    with context.new_page() as opened:
        opened.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
        opened.on("pageerror", lambda error: errors.append(f"error: {error}"))
        opened.goto(shop.address)
        yield opened
    statuses = ("422", "409", "503")
    assert [each for each in errors if each.startswith("error") and not any(map(each.count, statuses))] == []


def fill(page: Page, fields: Mapping[str, str]) -> None:
    for name, value in fields.items():
        field = page.locator(f"[name={name}]")
        if name in SELECTS:
            field.select_option(value)
        elif value == "on":
            field.check()
        else:
            field.fill(value)


def test_browser_walk_from_cart_to_completed_data(page: Page, shop: Served) -> None:
    sandbox = shop.sandbox
    expect(page.get_by_text("Total: 450.00 euro")).to_be_visible()
    fill(page, {**FORM, "province": "roma"})
    page.get_by_role("button", name="Pay in instalments").click()
    expect(page.locator("#province-problem")).to_contain_text("two capital letters")
    expect(page.get_by_label("First name")).to_have_value("Anna")
    page.get_by_label("Province").fill("RM")
    page.get_by_role("button", name="Pay in instalments").click()
    expect(page.get_by_role("heading", name="Your loan application")).to_be_visible()
    assert page.url.startswith(sandbox.base_url)
    page.get_by_role("button", name="Accept the loan").click()
    page.get_by_role("link", name="Back to the shop").click()
    expect(page.get_by_role("heading", name="Welcome back")).to_be_visible()
    fill(page, DATA)
    page.get_by_role("button", name="Complete the order").click()
    expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
    page.reload()
    page.go_back()
    operations = [call.operation for call in sandbox.journal]
    assert operations == ["create_request", "approve", "upload_documents", "complete"]
    assert sandbox.findings == []


def test_form_fits_narrow_screen_and_works_by_keyboard(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in FORM:
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_attribute("name", name)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Pay in instalments")


def pay(page: Page, tag: str = "approved", **changes: str) -> None:
    fill(page, FORM | tagged(tag) | changes)
    press(page, "Pay in instalments")


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()


def expect_page(page: Page, text: str, *, card: bool = False) -> None:
    """Expect a heading, and that the page offers another way to pay only if no loan may be approved."""
    expect(page.get_by_role("heading", level=1)).to_contain_text(text)
    assert bool(re.search("pay by card|another payment method", page.content())) == card


def redirect(page: Page, shop: Served) -> None:
    pay(page)
    for _click in range(2):
        expect_page(page, "Your loan application")
        page.goto(shop.address)
        expect_page(page, "Welcome back")
        page.get_by_role("link", name="To your application").click()


def refused(page: Page, shop: Served) -> None:
    pay(page, "refused")
    expect_page(page, "Loan refused", card=True)
    page.goto(shop.address)
    expect_page(page, "Loan refused", card=True)
    press(page, "New order")
    expect_page(page, "Your cart")


def paid(page: Page, shop: Served) -> None:
    shop.change_order("paid")
    pay(page)
    expect_page(page, "Thank you")
    page.goto(shop.address)
    expect_page(page, "Thank you")


def form(page: Page, _: Served) -> None:
    pay(page, "invalid.city")
    expect_page(page, "Your cart")
    expect(page.locator("#city-problem")).to_be_visible()
    pay(page)
    expect_page(page, "Your loan application")


def waiting_to_try_later(page: Page, shop: Served) -> None:
    shop.sandbox.fault("create_request=html502after")
    pay(page)
    expect_page(page, "Please try again in a few minutes", card=True)
    press(page, "Try again")
    expect_page(page, "Please try again in a few minutes", card=True)
    shop.sandbox.clear_faults()
    press(page, "Try again")
    expect_page(page, "Your loan application")


def waiting_for_another_worker(page: Page, shop: Served) -> None:
    """The worker is killed before it has sent the approval."""
    for seconds, text in ((2e9, "Your request is still being decided"), (1.0, "Your cart")):
        shop.hold_until(seconds)
        page.goto(shop.address)
        expect_page(page, text)


def ask_for_the_outcome(page: Page, shop: Served) -> None:
    """The staff state it on their page."""
    pay(page, "resetafter")
    for _ in range(2):
        expect_page(page, "We have not received the decision on your request yet")
        page.goto(shop.address)
    page.goto(shop.staff)
    page.get_by_label("The service has stated").select_option("approved")
    page.get_by_label("Number of the ticket").fill("ticket 7")
    press(page, "State the outcome")
    expect(page.get_by_role("status")).to_have_text(
        "Order A-2: approved. Send the customer the link that the service gave you with its statement."
    )
    expect(page.get_by_text("No order needs you.")).to_be_visible()
    page.goto(shop.address)
    expect_page(page, "Welcome back")


def ask_because_of_other_data(page: Page, shop: Served) -> None:
    """Another customer holds the order."""
    shop.hold_until(2e9)
    pay(page, fiscal_code=OTHER_CUSTOMER["fiscal_code"])
    expect_page(page, "You have already applied with other data")
    press(page, "New order")
    expect_page(page, "Your cart")


def ask_because_of_the_setup(page: Page, _: Served) -> None:
    pay(page, "forbidden")
    expect_page(page, "payment in instalments is not available now", card=True)
    press(page, "New order")
    expect_page(page, "Your cart")


def ask_because_of_another_order(page: Page, shop: Served) -> None:
    """The sandbox evaluates each customer once, so the second order cannot be approved."""
    for text in ("Loan refused", "You have already requested a loan for another order"):
        pay(page, "refused")
        expect_page(page, text, card=True)
        press(page, "New order")
        expect_page(page, "Your cart")
    assert [each.rule for each in shop.sandbox.findings] == ["post-after-422"]
    shop.sandbox.reset()


# The others show a page whose buttons the tests without a browser press, too.
STORIES: list[object] = [redirect, paid, form, waiting_for_another_worker, ask_for_the_outcome]
STORIES += [
    pytest.param(each, marks=pytest.mark.scheduled)
    for each in (
        *(refused, waiting_to_try_later, ask_because_of_other_data),
        *(ask_because_of_another_order, ask_because_of_the_setup),
    )
]


@pytest.mark.parametrize("shop", ["fastapi"], indirect=True)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_row_of_the_six_pages_has_its_page_and_next_click(
    page: Page, shop: Served, story: Callable[[Page, Served], None]
) -> None:
    """The rows of "The six pages" in docs/howto/web.md, with the next click."""
    expect_page(page, "Your cart")
    story(page, shop)
    assert sum(each.evaluated for each in shop.sandbox.journal) <= 1
    assert shop.sandbox.findings == []
