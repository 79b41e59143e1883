"""Two example shops operated in a real browser, from the cart to the completed data."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.browser import CHROMIUM, program
from support.example_shops import DATA, FORM, address_of, listen, shopper

MINUTE = 60_000  # milliseconds: tolerate a slow machine
SELECTS = {"citizenship", "instalments", "document_type"}  # <select> fields


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    executable = program(*CHROMIUM)
    with sync_playwright() as playwright:
        expect.set_options(timeout=MINUTE)
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(params=["fastapi", pytest.param("aiohttp", marks=pytest.mark.scheduled)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Sandbox, str]]:
    """The sandbox, which redirects customers back to the shop, and the address of the shop."""
    with listen() as sock, Sandbox.in_thread(shop_url=f"{address_of(sock)}/order") as sandbox:
        started, stopping = threading.Event(), threading.Event()

        async def serve() -> None:
            ledger = SqliteLedger(tmp_path / "decisions.db")
            async with ledger, shopper(request.param, sandbox.client(ledger=ledger), tmp_path, sock):
                started.set()
                await asyncio.to_thread(stopping.wait)

        server = threading.Thread(target=lambda: asyncio.run(serve()))
        server.start()
        try:
            assert started.wait(60)
            yield sandbox, address_of(sock)
        finally:
            stopping.set()
            server.join()


@pytest.fixture
def page(browser: Browser, shop: tuple[Sandbox, str]) -> Iterator[Page]:
    """A page that fails the test on console errors other than status 422."""
    errors: list[str] = []
    with browser.new_context(base_url=shop[1]) as context:
        context.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
        context.on("weberror", lambda error: errors.append(f"error: {error.error}"))
        yield context.new_page()
    assert [each for each in errors if each.startswith("error") and "422" not in each] == []


def fill(page: Page, fields: Mapping[str, str]) -> None:
    for name, value in fields.items():
        field = page.locator(f"[name={name}]")
        if name in SELECTS:
            field.select_option(value)
        elif value == "on":
            field.check()
        else:
            field.fill(value)


def test_browser_walk_from_cart_to_completed_data(page: Page, shop: tuple[Sandbox, str]) -> None:
    sandbox, _ = shop
    page.goto("/")
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
    page.goto("/")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in FORM:
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_attribute("name", name)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Pay in instalments")
