"""Opens every page of the built site in Chromium, for `nox -s docs`: on a phone and a desk, light and dark.

Printed is what a reader would stumble over: a page wider than its screen, an error on the console, a picture
that does not load, text that is hard to read, a link that leads nowhere, a request to another host.
"""

import argparse
import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urldefrag, urlsplit

from attrs import define, field, frozen
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = {"phone": 390, "desk": 1280}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LEFT_OUT = {"genindex.html", "py-modindex.html", "search.html"}  # Sphinx's own, without a sentence of ours
READABLE = 4.5  # contrast of text to its ground, as WCAG AA asks

# What of a page reaches beyond the screen, and does not scroll in a box of its own.
WIDE = """() => {
  const root = document.documentElement, found = [];
  if (root.scrollWidth <= root.clientWidth) return found;
  for (const each of document.querySelectorAll('article *')) {
    if (each.getBoundingClientRect().right > root.clientWidth + 1)
      found.push(`${each.tagName.toLowerCase()} "${each.textContent.trim().slice(0, 40)}"`);
  }
  return found.slice(-1).concat(found.length ? [] : ['something outside of the article']);
}"""
CUT = """() => [...document.querySelectorAll('article svg text')].filter((each) => {
  const [text, all] = [each, each.closest('svg')].map((which) => which.getBoundingClientRect());
  return text.left < all.left - 1 || text.right > all.right + 1 || text.bottom > all.bottom + 1;
}).map((each) => each.textContent.trim())"""
BROKEN = """() => [...document.images]
  .filter((each) => each.checkVisibility() && !(each.complete && each.naturalWidth))
  .map((each) => each.getAttribute('src'))"""
NAMELESS = "() => [...document.images].filter((each) => !each.alt).map((each) => each.getAttribute('src'))"
LINKS = "() => [...document.querySelectorAll('a[href]')].map((each) => each.getAttribute('href'))"
NAMES = "() => [...document.querySelectorAll('[id]')].map((each) => each.id)"
# Each text of the article with the colour that it has and the one that is behind it.
FAINT = """(readable) => {
  const parts = (colour) => (colour.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parts(getComputedStyle(at).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = new Set();
  const article = document.querySelector('article') || document.body;
  const texts = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const each = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !each.checkVisibility() || each.closest('style, script')) continue;
    const style = getComputedStyle(each);
    const colour = parts(each.closest('svg') ? style.fill : style.color);
    const [low, high] = [light(colour), light(ground(each))].sort((one, other) => one - other);
    if ((high + 0.05) / (low + 0.05) < readable) found.add(texts.currentNode.data.trim().slice(0, 40));
  }
  return [...found];
}"""


@frozen
class Leads:
    """What a page leads to, and the names within it that others may lead to."""

    links: tuple[str, ...]
    names: frozenset[str]


@define
class Reader:
    """Somebody who opens pages and notes what is wrong with them."""

    browser: Browser
    address: str
    wrong: list[str] = field(factory=list)

    def look(self, name: str) -> Leads:
        """Open a page in every way, note what is wrong, and return what it leads to."""
        with self.browser.new_context(base_url=self.address) as context:
            page = context.new_page()
            self._listen(page, name)
            page.goto(name, wait_until="load")
            for device, width in WIDTHS.items():
                page.set_viewport_size(ViewportSize(width=width, height=900))
                for scheme in SCHEMES:
                    page.emulate_media(color_scheme=scheme)
                    self._see(page, f"{name} ({device}, {scheme})")
            return Leads(tuple(page.evaluate(LINKS)), frozenset(page.evaluate(NAMES)))

    def _listen(self, page: Page, where: str) -> None:
        def told(what: str) -> None:
            self.wrong.append(f"{where}: {what}")

        page.on(
            "console", lambda message: told(f"console: {message.text}") if message.type == "error" else None
        )
        page.on("pageerror", lambda error: told(f"script: {error}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((self.address, "data:"))
                else told(f"asks elsewhere: {request.url}")
            ),
        )

    def _see(self, page: Page, where: str) -> None:
        seen = {
            "wider than the screen": page.evaluate(WIDE),
            "cut off by the edge of its drawing": page.evaluate(CUT),
            "a picture that does not load": page.evaluate(BROKEN),
            "a picture without a description": page.evaluate(NAMELESS),
            "hard to read": page.evaluate(FAINT, READABLE),
        }
        self.wrong += [f"{where}: {what}: {each}" for what, found in seen.items() for each in found]


def astray(site: Path, leads: dict[str, Leads]) -> Iterator[str]:
    """Links to files or to names that are not there, and addresses of other hosts that cannot be."""
    for name, page in leads.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if not (parts.scheme in {"https", "mailto"} or parts.hostname == "127.0.0.1"):
                    yield f"{name}: no address that is safe to follow: {link}"
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            if not target.is_file():
                yield f"{name}: leads nowhere: {link}"
                continue
            led = leads.get(target.resolve().relative_to(site.resolve()).as_posix())
            if led is not None and anchor and unquote(anchor) not in led.names:
                yield f"{name}: leads to no such place: {link}"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and does not tell of each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name that it has there)
        """Say nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site, on this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def look(site: Path, chromium: str) -> list[str]:
    """All that is wrong with a built site."""
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))
    pages = [page for page in pages if page not in LEFT_OUT and not page.startswith("_")]
    if not pages:
        return [f"{site} has no pages"]
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        reader = Reader(browser, address)
        leads = {page: reader.look(page) for page in pages}
        browser.close()
    return [*reader.wrong, *astray(site, leads)]


def main() -> None:
    """Look at a site, and fail when anything is wrong with it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("site", type=Path)
    site = parser.parse_args().site
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        told = "nobody looked at the pages: there is no Chromium (apt-get install chromium)"
        sys.exit(told if os.environ.get("CI") == "true" else print(told))
    wrong = look(site, chromium)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
