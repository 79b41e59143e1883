"""Tests of docs/look.py, which checks the built site in `nox -s docs`."""

import sys
from pathlib import Path
from unittest import mock

import pytest

import look
from support.browser import CHROMIUM, program

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
GOOD = f"""
  <h1 id="top">A page</h1>
  <p>A sentence, <code>a name</code>, <a href="other.html#there">a link</a>, <a href="#top">another</a>,
     <a href="https://example.com/">one that leads elsewhere</a>.</p>
  <div style="overflow-x: auto"><pre style="width: 2000px">a wide one, in a box that scrolls</pre></div>
  <img src="{PIXEL}" alt="A pixel">
  <svg viewBox="0 0 60 20" width="60"><text y="15" fill="currentColor">drawn</text></svg>
"""


BROKEN = {
    "<p style='width: 500px'>A wide one.</p>": '(phone, light): wider than the screen: p "A wide one."',
    "<p style='width: 1500px'>A wider one.</p>": '(desk, dark): wider than the screen: p "A wider one."',
    f"<div class='highlight-sh'><pre style='overflow-x: auto'>{'echo ' * 50}</pre></div>": (
        "(desk, dark): code is wider than its box: echo echo"
    ),
    "<img src='nowhere.png' alt='Nothing'>": "image does not load: nowhere.png",
    f"<img src='{PIXEL}'>": "image without a description",
    "<script>console.error('not well')</script>": "console: not well",
    "<script>throw new Error('thrown')</script>": "script: thrown",
    "<img src='http://127.0.0.1:9/far.png' alt='Far'>": "request to another host: http://127.0.0.1:9/far.png",
    "<p style='color: #999'>Pale by day.</p>": "(phone, light): low contrast: Pale by day.",
    "<p style='color: #222'>Pale by night.</p>": "(desk, dark): low contrast: Pale by night.",
    "<svg><text y='15' fill='#222'>Drawn for the day.</text></svg>": "low contrast: Drawn for the day.",
    "<svg width='60'><text y='15' fill='currentColor'>Longer than it is wide.</text></svg>": (
        "text is cut off by its drawing: Longer than it is wide."
    ),
    "<span class='default_value'>attr_dict['wait']</span>": "default value: attr_dict['wait']",
    "<a href='gone.html'>Gone</a>": "broken link: gone.html",
    "<a href='other.html#here'>Elsewhere</a>": "missing anchor: other.html#here",
    "<a href='#nowhere'>Here</a>": "missing anchor: #nowhere",
    "<a href='http://example.com/'>Plain</a>": "link without https: http://example.com/",
}


def site(folder: Path, *articles: str) -> Path:
    head = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="{PIXEL}">
    <meta name="viewport" content="width=device-width"><style>
    body {{ color: #111; background: #fff }} a {{ color: inherit }}
    @media (prefers-color-scheme: dark) {{ body {{ color: #eee; background: #111 }} }}</style></head>"""
    pages = {f"page-{number:02}": article for number, article in enumerate(articles)}
    for name, article in {**pages, "other": "<p id='there'>Here.</p>"}.items():
        written = f"{head}<body><article>{article}</article></body></html>"
        (folder / f"{name}.html").write_text(written, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the findings of a site with a good page, and pages with defects.

    Opening a page takes most of the time, so all defects are on one page, except the widest element: of the
    elements that are wider than the screen, only the last one is a finding.
    """
    widest, *others = BROKEN
    broken = site(tmp_path_factory.mktemp("site"), GOOD, GOOD + widest, GOOD + "".join(others))
    (broken / "search.html").write_text("<p id='search-results'>Nothing.</p>", encoding="utf-8")
    with mock.patch.object(look, "SEARCH_TIMEOUT", 100):
        return look.look(broken, program(*CHROMIUM))


def test_good_page_has_no_findings(findings: list[str]) -> None:
    assert findings
    assert [each for each in findings if each.startswith(("page-00", "other"))] == []


@pytest.mark.parametrize(("broken", "expected"), BROKEN.items())
def test_broken_page_has_the_finding(findings: list[str], broken: str, expected: str) -> None:
    page = f"page-{min([*BROKEN].index(broken), 1) + 1:02}.html"
    found = [each for each in findings if each.startswith(page)]
    assert [each for each in found if expected in each], found
    assert not [each for each in findings if expected in each and not each.startswith(page)]


def test_search_without_a_result_is_a_finding(findings: list[str]) -> None:
    found = [each for each in findings if each.startswith("search.html")]
    assert "search.html: 403 does not find reference/errors.html first" in found


def test_command_fails_if_there_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(*CHROMIUM)
    monkeypatch.setattr(sys, "argv", ["look.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no pages") as ended:
        look.main()
    assert ended.value.code == f"{tmp_path} has no pages", "printed, with exit status 1"
