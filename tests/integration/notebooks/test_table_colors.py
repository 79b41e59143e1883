"""Tables of notebooks in a browser: readable in light and dark themes."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from loanasync._display import notebook
from support.browser import CHROMIUM, luminance, program

THEMES = {"light": ("#ffffff", "#111111"), "dark": ("#111111", "#eeeeee")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = program(*CHROMIUM)
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


def ratio(one: str, other: str) -> float:
    """Return the WCAG contrast ratio of two colours; graphical elements need at least 3."""
    dark, light = sorted(luminance(each) + 0.05 for each in (one, other))
    return light / dark


@pytest.mark.parametrize("theme", THEMES)
def test_table_is_readable_in_light_and_dark_notebooks(browser: Browser, theme: str) -> None:
    ground, ink = THEMES[theme]
    table = notebook.table("Title", ("a", "b"), [("1", "2")], notes=["n"])
    page = browser.new_page()
    page.set_content(f'<body style="background:{ground};color:{ink}">{table}')
    used = "(all) => all.map(each => [getComputedStyle(each).color, getComputedStyle(each).backgroundColor])"
    colours = {tuple(each) for each in page.locator("body *").evaluate_all(used)}
    assert len(colours) == 1, "text and ground are the notebook's own"
    [(text, behind)] = colours
    assert ratio(text, ground_of(ground)) > 10
    assert behind == "rgba(0, 0, 0, 0)"
    page.close()


def ground_of(colour: str) -> str:
    """Return the RGB values of a colour as a browser reports it."""
    return " ".join(str(int(part, 16)) for part in re.findall("[0-9a-f]{2}", colour))
