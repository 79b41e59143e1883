"""The sandbox's pages in a real browser. `test_pages` sends the forms without JavaScript."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Playwright, expect, sync_playwright

from loanasync.sandbox import Sandbox
from support.browser import CHROMIUM, Visitor, luminance, program
from support.raw_shop import BODY, CODE, TOKEN

MINUTE = 60_000  # milliseconds; enough for slow machines


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    program(*CHROMIUM)
    with sync_playwright() as started:
        expect.set_options(timeout=MINUTE)
        yield started


@pytest.fixture(scope="module")
def context(playwright: Playwright) -> Iterator[BrowserContext]:
    """One context for all tests: its processes need more time to start than a page to load."""
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    browser = playwright.chromium.launch(executable_path=program(*CHROMIUM), args=arguments)
    yield browser.new_context()
    browser.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.in_thread() as running:
        yield running


class Shop:
    """A shop that sends requests while the browser shows pages."""

    def __init__(self, playwright: Playwright, sandbox: Sandbox) -> None:
        self._address = f"{sandbox.base_url}/api/shops/{sandbox.shop_id}/requests"
        self._calls = playwright.request.new_context(extra_http_headers={"X-Auth-Token": TOKEN})

    def create(self) -> int:
        return self._calls.post(self._address, data={"fiscalCode": CODE}).status

    def approve(self, **changes: object) -> tuple[int, Any]:
        response = self._calls.post(f"{self._address}/{CODE}", data={**BODY, **changes})
        return response.status, response.json()

    def approved(self) -> str:
        """Return the redirect URL of an approved request."""
        self.create()
        status, response = self.approve()
        assert status == 201
        return str(response["redirectUrl"])

    def close(self) -> None:
        self._calls.dispose()


@pytest.fixture
def shop(playwright: Playwright, sandbox: Sandbox) -> Iterator[Shop]:
    shop = Shop(playwright, sandbox)
    yield shop
    shop.close()


@pytest.fixture
def visit(context: BrowserContext, sandbox: Sandbox) -> Iterator[Visitor]:
    """A visitor whose pages load nothing from other hosts and log no console errors."""
    visitor = Visitor(context, sandbox)
    yield visitor
    visitor.close()
    assert visitor.requested_urls
    assert [url for url in visitor.requested_urls if not url.startswith(f"{sandbox.base_url}/")] == []
    assert visitor.errors == []


def journal(page: Page) -> Any:
    return page.locator("#journal tbody tr")


def test_customer_accepts_the_loan(visit: Visitor, shop: Shop) -> None:
    address = shop.approved()
    inspector = visit()
    page = visit(address)
    expect(page.get_by_role("heading", name="Your loan application")).to_be_visible()
    expect(page.get_by_text("450.00 euro")).to_be_visible()
    assert "Anna" not in page.content()
    assert CODE not in page.content()
    page.get_by_role("link", name="Show personal data").click()
    expect(page.get_by_text("Anna", exact=True)).to_be_visible()
    expect(page.get_by_text(CODE)).to_be_visible()
    page.get_by_role("link", name="Hide personal data").click()
    expect(page.get_by_text(CODE)).to_have_count(0)
    page.get_by_role("button", name="Accept the loan").click()
    expect(page.locator("#state")).to_contain_text("Application accepted.")
    expect(page.get_by_role("button")).to_have_count(0)
    expect(inspector.get_by_role("link", name="accepted")).to_be_visible()


def test_inspector_shows_a_new_call_with_findings(visit: Visitor, shop: Shop) -> None:
    page = visit()
    expect(page.get_by_text("No calls yet.")).to_be_visible()
    shop.approved()
    expect(journal(page)).to_have_count(2)
    expect(page.locator("#requests tbody tr")).to_contain_text("approved")
    expect(page.get_by_text("No misuse of the protocol found.")).to_be_visible()
    assert shop.approve()[0] == 400
    expect(page.locator("#findings")).to_contain_text("post-after-201")
    expect(journal(page)).to_have_count(3)
    assert CODE not in page.content()
    page.get_by_role("link", name="Show personal data").click()
    expect(page.get_by_role("cell", name=CODE)).to_be_visible()


def test_live_update_keeps_typed_text_focus_and_scroll_position(visit: Visitor, shop: Shop) -> None:
    shop.create()
    page = visit()
    field = page.get_by_label("Inject a fault")
    field.fill("appro")
    shop.approve()
    expect(journal(page)).to_have_count(2)
    expect(field).to_be_focused()
    expect(field).to_have_value("appro")
    reset = page.get_by_role("button", name="Reset everything")
    reset.focus()
    shop.approve()
    expect(journal(page)).to_have_count(3)
    expect(page.get_by_text("1 customer, 3 calls so far.")).to_be_visible()
    expect(reset).to_be_focused()
    expect(field).to_have_value("appro")


def test_hidden_page_is_up_to_date_when_it_is_shown(visit: Visitor, shop: Shop) -> None:
    page = visit("/_sandbox/")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, arg=True)
    shop.approve()
    with pytest.raises(AssertionError):
        expect(journal(page)).to_have_count(1, timeout=500)
    page.evaluate(hide, arg=False)
    expect(journal(page)).to_have_count(1)


def test_page_reports_a_stopped_sandbox(context: BrowserContext) -> None:
    page = context.new_page()
    with Sandbox.in_thread() as sandbox:
        page.goto(f"{sandbox.base_url}/_sandbox/")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_text("The sandbox does not respond")).to_be_visible()
    page.close()


@pytest.mark.parametrize("path", ["/_sandbox/", "/_sandbox/calls/2", "application"])
def test_pages_have_two_color_schemes_and_fit_a_phone(visit: Visitor, shop: Shop, path: str) -> None:
    address = shop.approved()
    shop.approve(email="anna+slow1@example.com")  # a finding
    page = visit(address if path == "application" else path)
    page.set_viewport_size({"width": 360, "height": 640})
    backgrounds = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours = "['color', 'background-color'].map((each) => getComputedStyle(document.body)[each])"
        backgrounds[scheme] = [luminance(colour) for colour in page.evaluate(colours)]
        brighter, darker = sorted(backgrounds[scheme], reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) > 7, "the contrast of text and background"
    assert backgrounds["light"][1] > 0.7
    assert backgrounds["dark"][1] < 0.1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('.table, pre')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert page.evaluate(wide) == 0
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    page.keyboard.press("Tab")
    expect(page.locator(":focus-visible")).to_have_css("outline-style", "solid")
