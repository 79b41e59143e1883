"""A browser for tests, and the programs of this machine that they need."""

import os
import re
import shutil
from urllib.parse import urljoin

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect

from loanasync.sandbox import Sandbox

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def program(*names: str) -> str:
    """Return the path of the first installed program; fail without one in CI and skip elsewhere."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(f"{names[0]} is not installed: apt-get install {names[0]}")
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


class Visitor:
    """Opens pages, and records their requests and console errors."""

    def __init__(self, context: BrowserContext, sandbox: Sandbox) -> None:
        self.requested_urls: list[str] = []
        self.errors: list[str] = []
        self._context = context
        self._address = sandbox.base_url

    def __call__(self, path: str = "/_sandbox/") -> Page:
        page = self._context.new_page()
        page.on("request", lambda request: self.requested_urls.append(request.url))
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(urljoin(self._address, path))
        if page.locator("script").count():
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
        return page

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def close(self) -> None:
        for page in self._context.pages:
            page.close()


def luminance(colour: str) -> float:
    """Return the relative luminance of a computed colour as defined in WCAG, from 0 to 1."""
    parts = [int(part) / 255 for part in re.findall("[0-9]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
