"""Texts of problems: languages, amounts in euros, and read-only params."""

import copy
import json
import pickle
from typing import Any

import attrs
import pytest

from loanasync import Problem
from loanasync._models.masking import ReadOnlyDict
from loanasync._models.texts import LANGUAGES, TEXTS

RANGE = Problem(
    "amount", "amount", "must be more", "amount.range", {"least": 5_000, "most": 1_500_050}, hint="in cents"
)
CHOICE = Problem("residence", "residence", "must be another", "residence.choice", {"options": ("a", "b")})


def test_text_shows_cents_as_euros_of_the_language() -> None:
    assert RANGE.text("it") == "Inserire un importo tra 50,00 e 15.000,50 euro."
    assert RANGE.text("en") == RANGE.text() == "Enter an amount between 50.00 and 15,000.50 euros."
    large = attrs.evolve(RANGE, params={"least": 5, "most": 10**400 + 1})  # more than a float can hold
    assert large.text("it").startswith("Inserire un importo tra 0,05 e 100.000.")


def test_text_has_no_hint_and_str_has_it() -> None:
    assert str(RANGE) == "amount: must be more; in cents"
    assert str(attrs.evolve(RANGE, field="", hint="")) == "must be more"
    assert "cents" not in RANGE.text()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("amount.type", "Enter an amount between 50.00 and 15,000.50 euros."),
        ("instalments.range", "Enter a whole number between 5000 and 1500050."),
        ("instalments.type", "Enter a whole number between 5000 and 1500050."),
        ("city.type", "Enter a whole number between 5000 and 1500050."),
        ("email.format", "Enter a valid e-mail address."),
        ("city.format", "This value is not accepted."),
        ("json", "This value is not accepted."),
    ],
)
def test_text_is_that_of_the_code_or_of_the_rule(code: str, text: str) -> None:
    assert attrs.evolve(RANGE, code=code).text("en") == text
    received = Problem(**json.loads(json.dumps(attrs.asdict(RANGE))) | {"code": code})
    assert received.text("en") == text


@pytest.mark.parametrize(
    "code", ["", "rejected", "city.rejected", "city.", "amount.range", "city.range", "string_too_short"]
)
def test_text_of_a_problem_without_template_or_params_is_its_message(code: str) -> None:
    problem = Problem("city", "city", "ist {unbekannt}", code)
    assert problem.text("it") == "ist {unbekannt}"


@pytest.mark.parametrize("language", ["de", "de-IT", "it-", "it,en;q=0.5", "italian", "", None, {"a": "b"}])
def test_unknown_language_is_refused(language: Any) -> None:
    with pytest.raises(ValueError, match="there are no texts in this language: pass 'en' or 'it'"):
        RANGE.text(language)


def test_language_with_a_region_has_the_texts_of_the_language() -> None:
    for language in ("it-IT", "it_CH", "it-it", "IT"):
        assert RANGE.text(language) == RANGE.text("it") != RANGE.text("en_GB") == RANGE.text("en")


def test_each_text_has_all_languages() -> None:
    assert {tuple(each) for texts in TEXTS.values() for each in texts.values()} == {LANGUAGES}


def test_params_are_a_read_only_copy_and_json() -> None:
    given = {"least": 1}
    params: Any = attrs.evolve(RANGE, params=given).params
    given["least"] = 2
    for change in (
        lambda: params.__setitem__("least", 3), lambda: params.update(least=3), lambda: params.pop("least"),
        params.clear,
    ):  # fmt: skip
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert params == {"least": 1}
    assert json.loads(json.dumps(CHOICE.params)) == {"options": ["a", "b"]}


def test_copy_of_a_problem_keeps_all_fields() -> None:
    same = Problem("amount", "amount", "must be more")
    for again in (copy.copy(RANGE), copy.deepcopy(RANGE), pickle.loads(pickle.dumps(RANGE))):  # noqa: S301
        assert attrs.astuple(again) == attrs.astuple(RANGE)
        assert type(again.params) is ReadOnlyDict
        assert (again, hash(again)) == (same, hash(same))
