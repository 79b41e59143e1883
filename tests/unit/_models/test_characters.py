"""Normal forms of texts that a shopper may have crafted."""

from itertools import pairwise
from typing import Literal
from unicodedata import combining, normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync._models import characters
from loanasync._models.characters import normal_form, seen, seen_body

FORMS: tuple[Literal["NFC", "NFKC"], ...] = ("NFC", "NFKC")
# Marks of several classes, characters that become several marks, a half-width mark, Hangul and letters.
CHARACTERS = (
    "a=\u0301\u0316\u0327\u0338\u0344\u0345\u0f73\u0f72\u3099\uff9e\u304b\u1100\u1161\u11a8\u212b\xe9\ufc5e"
)


@given(st.text(st.sampled_from(CHARACTERS), max_size=200))
def test_normal_form_is_that_of_unicode(text: str) -> None:
    for form in FORMS:
        assert normal_form(form, text) == normalize(form, text)


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0316\uff9e", "\u0344\u0316", "\u0f73\u0f72"], ids=ascii)
def test_normal_form_gives_python_no_long_unordered_marks(
    marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python orders marks in quadratic time: 200 kB of them would block the event loop for a minute."""
    worst = 0

    def record(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
        nonlocal worst
        decomposed: Literal["NFD", "NFKD"] = "NFKD" if "K" in form else "NFD"
        classes = [combining(part) for each in text for part in normalize(decomposed, each)]
        worst = max(worst, sum(later < earlier for earlier, later in pairwise(classes) if later))
        return normalize(form, text)

    monkeypatch.setattr(characters, "normalize", record)
    seen("a" + marks * 500)
    normal_form("NFKC", "a" + marks * 500)
    assert worst < 50


def test_compared_body_keeps_the_names_of_its_members() -> None:
    body = '{"citt\xe0":"Forli\u0300","a\u0300":"a\u0300"}'
    assert seen_body(body.encode()).decode() == '{"citt\xe0":"Forl\xec","a\u0300":"\xe0"}'
