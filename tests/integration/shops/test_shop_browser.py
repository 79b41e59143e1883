"""Two example shops clicked through in a real browser, from the cart to the completed data."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.browser import CHROMIUM, program
from support.example_shops import DATA, FORM, address_of, listening, serving

MINUTE = 60_000  # milliseconds; a slow machine is no reason to fail
CHOSEN = {"citizenship", "instalments", "document_type"}  # from a list


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    executable = program(*CHROMIUM)
    with sync_playwright() as started:
        expect.set_options(timeout=MINUTE)
        browser = started.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


class Town:
    """A shop, and the service that it asks, which leads back to it."""

    def __init__(self, sandbox: Sandbox, address: str) -> None:
        self.sandbox = sandbox
        self.address = address

    def operations(self) -> list[str]:
        return [call.operation for call in self.sandbox.journal]


@pytest.fixture(params=["fastapi", "aiohttp"])
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    with listening() as sock, Sandbox.in_thread(shop_url=f"{address_of(sock)}/back") as sandbox:
        up, ended = threading.Event(), threading.Event()

        async def live() -> None:
            ledger = SqliteLedger(tmp_path / "decisions.db")
            async with ledger, serving(request.param, sandbox.client(ledger=ledger), sock):
                up.set()
                await asyncio.to_thread(ended.wait)

        shop = threading.Thread(target=lambda: asyncio.run(live()))
        shop.start()
        try:
            assert up.wait(60)
            yield Town(sandbox, address_of(sock))
        finally:
            ended.set()
            shop.join()


@pytest.fixture
def page(browser: Browser, town: Town) -> Iterator[Page]:
    """A visitor whose console says of nothing that it is wrong, but that a form was."""
    wrong: list[str] = []
    with browser.new_context(base_url=town.address) as context:
        context.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        yield context.new_page()
    assert [each for each in wrong if "422" not in each] == []


def fill(page: Page, typed: Mapping[str, str]) -> None:
    for name, value in typed.items():
        field = page.locator(f"[name={name}]")
        if name in CHOSEN:
            field.select_option(value)
        elif value == "on":
            field.check()
        else:
            field.fill(value)


def test_a_person_clicks_from_the_cart_to_the_completed_data(page: Page, town: Town) -> None:
    page.goto("/")
    expect(page.get_by_text("Together: 450.00 euro")).to_be_visible()
    fill(page, {**FORM, "province": "roma"})
    page.get_by_role("button", name="Pay in instalments").click()
    expect(page.locator("#province-problem")).to_contain_text("two upper-case letters")
    expect(page.get_by_label("First name")).to_have_value("Anna")
    page.get_by_label("Province").fill("RM")
    page.get_by_role("button", name="Pay in instalments").click()
    expect(page.get_by_role("heading", name="Your loan application")).to_be_visible()
    assert page.url.startswith(town.sandbox.base_url)
    page.get_by_role("button", name="Accept the loan").click()
    page.get_by_role("link", name="Back to the shop").click()
    expect(page.get_by_role("heading", name="Welcome back")).to_be_visible()
    fill(page, DATA)
    page.get_by_role("button", name="Complete the order").click()
    expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
    page.reload()
    page.go_back()
    assert town.operations() == ["create_request", "approve", "upload_documents", "complete"]
    assert town.sandbox.findings == []


def test_a_person_who_closes_the_page_and_comes_back_is_sent_on(page: Page, town: Town) -> None:
    gone = page.context.new_page()
    gone.goto("/")
    slow = {**FORM, "email": "anna+slow1000after@example.com"}
    fill(gone, slow)
    gone.get_by_role("button", name="Pay in instalments").click(no_wait_after=True)
    town.sandbox.journal.wait(1, timeout=60)
    gone.close()
    page.goto("/")
    fill(page, slow)
    page.get_by_role("button", name="Pay in instalments").click()
    expect(page.get_by_role("heading", name="Your loan application")).to_be_visible()
    assert town.operations() == ["create_request", "approve"]


def test_the_form_fits_a_narrow_screen_and_a_keyboard_reaches_it_all(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.goto("/")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in FORM:
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_attribute("name", name)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Pay in instalments")
