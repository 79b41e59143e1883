"""Screenshots of the sandbox's pages, taken with `nox -s screenshots`; times and pseudonyms are fixed."""

import os
import sys
import time
from pathlib import Path
from unittest import mock

from playwright.sync_api import APIRequestContext, Page, expect, sync_playwright

import look
from loanasync.sandbox import Sandbox, masking

HERE = Path(__file__).parent / "_static"
LARGEST = 150_000  # bytes: the pictures are part of every clone
NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
ORDER = {
    "amount": 45_000,
    "instalments": 12,
    "loanFinality": "ecommerce_shop",
    "email": "anna@example.com",
    "firstname": "Anna",
    "lastname": "Prova",
    "mobilePhone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "streetNumber": "12/A",
    "citizenship": "italian",
    "orderToken": "order-1042",
}


def fill(shop: APIRequestContext, requests: str) -> str:
    """Send requests with different outcomes and return the URL of one customer's page."""
    accepted, refused, lost = (f"{requests}/TSTXYZ00A00A000{letter}" for letter in "ABC")
    responses = {}
    for address, tag in ((refused, "+refused"), (lost, "+500after"), (accepted, "+slow20")):
        shop.post(requests, data={"fiscalCode": address.rpartition("/")[2]})
        response = shop.post(address, data={**ORDER, "email": f"anna{tag}@example.com"})
        responses[address] = response.json()
    shop.post(refused, data={**ORDER, "email": "anna+refused@example.com"})
    shop.post(f"{accepted}/documents", data={})
    for _ in range(2):  # the first call gets the fault
        shop.patch(accepted, data={"usPerson": False})
    return str(responses[accepted]["redirectUrl"])


def fix_times(sandbox: Sandbox) -> None:
    """Give every call a fixed time and duration."""
    for entry in sandbox.journal:
        entry.at = NOON + 4 * entry.number
        entry.elapsed = (20.0 if "slow" in str(entry.request) else 0.1 * (entry.number % 4 + 2)) / 1000


def take(page: Page, address: str, name: str, width: int) -> None:
    """Take a screenshot of a whole page."""
    page.set_viewport_size({"width": width, "height": 300})
    page.goto(address)
    if "live.js" in page.content():  # not in the customer's page
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size(
        {"width": width, "height": height}
    )  # puts the label in the corner of the window into the corner of the page
    picture = page.screenshot(path=HERE / name, animations="disabled")
    if len(picture) > LARGEST:
        sys.exit(f"{name} has {len(picture)} bytes, more than {LARGEST}")


def main() -> None:
    """Take both screenshots."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    browser_path = look.chromium()
    if browser_path is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with (
        mock.patch.object(masking, "_KEY", bytes(16)),  # fixed pseudonyms of customers
        Sandbox.in_thread(shop_id="tea-and-books", shop_url="/") as sandbox,
        sync_playwright() as playwright,
    ):
        sandbox.fault("complete=500x1")
        shop = playwright.request.new_context(extra_http_headers={"X-Auth-Token": sandbox.auth_token})
        application = fill(shop, f"{sandbox.base_url}/api/shops/{sandbox.shop_id}/requests")
        shop.dispose()
        fix_times(sandbox)
        browser = playwright.chromium.launch(
            executable_path=browser_path,
            args=["--headless", "--no-sandbox", "--disable-gpu", "--disable-lcd-text"],
        )
        page = browser.new_page(color_scheme="light")
        take(page, f"{sandbox.base_url}/_sandbox/", "inspector.png", 880)
        take(page, application, "application.png", 600)
        browser.close()


if __name__ == "__main__":
    main()
