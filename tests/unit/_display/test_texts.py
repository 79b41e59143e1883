"""Texts of problems: languages, catalogues, amounts in euros, and read-only params."""

import copy
import json
import pickle
from typing import Any

import attrs
import pytest

from loanasync import Problem
from loanasync._display.masking import ReadOnlyDict
from loanasync._display.texts import CATALOGUES

RANGE = Problem(
    "amount", "amount", "must be more", "amount.range", {"least": 5_000, "most": 1_500_050}, hint="in cents"
)
CHOICE = Problem("residence", "residence", "must be another", "residence.choice", {"options": ("a", "b")})


def test_text_shows_cents_as_euros_of_the_language() -> None:
    assert RANGE.text("it") == "Inserire un importo tra 50,00 e 15.000,50 euro."
    assert RANGE.text("en") == RANGE.text() == "Enter an amount between 50.00 and 15,000.50 euros."
    large = attrs.evolve(RANGE, params={"least": 5, "most": 10**400 + 1})  # more than a float can hold
    assert large.text("it", {"range": "{least:0,00} {most:0.00}"}).startswith("0,05 100,000,")


def test_text_has_no_hint_and_str_has_it() -> None:
    assert str(RANGE) == "amount: must be more; in cents"
    assert str(attrs.evolve(RANGE, field="", hint="")) == "must be more"
    assert "cents" not in RANGE.text()


@pytest.mark.parametrize(
    ("catalogue", "text"),
    [
        ({"range": "rule", "amount.range": "code"}, "code"),
        ({"range": "rule {least}-{most}"}, "rule 5000-1500050"),
        ({"amount.range": "ab {least:0,00}"}, "ab 50,00"),
        ({"amount.range": "missing {options}", "range": "rule"}, "rule"),
        ({"amount.range": "missing {options}"}, "Enter an amount between 50.00 and 15,000.50 euros."),
        ({"amount.type": "another"}, "Enter an amount between 50.00 and 15,000.50 euros."),
    ],
)
def test_catalogue_precedes_the_language(catalogue: dict[str, str], text: str) -> None:
    assert RANGE.text("en", catalogue) == text


def test_options_are_joined_in_a_template() -> None:
    received = Problem(**json.loads(json.dumps(attrs.asdict(CHOICE))))
    for problem in (CHOICE, received):
        assert problem.text("en", {"choice": "One of {options}."}) == "One of a, b."


@pytest.mark.parametrize("code", ["", "rejected", "city.rejected", "city."])
def test_text_of_a_problem_without_template_is_its_message(code: str) -> None:
    problem = Problem("city", "city", "ist {unbekannt}", code)
    assert problem.text("it") == "ist {unbekannt}"
    assert problem.text("it", {"rejected": "{{no}}"}) == ("{no}" if "rejected" in code else problem.message)


@pytest.mark.parametrize("language", ["de", "de-IT", "it-", "it,en;q=0.5", "italian", "", None, {"a": "b"}])
def test_unknown_language_is_refused(language: Any) -> None:
    with pytest.raises(ValueError, match="there are no texts in this language: pass 'en' or 'it'"):
        RANGE.text(language)


def test_language_with_a_region_has_the_texts_of_the_language() -> None:
    for language in ("it-IT", "it_CH", "it-it", "IT"):
        assert RANGE.text(language, None) == RANGE.text("it") != RANGE.text("en_GB") == RANGE.text("en")


@pytest.mark.parametrize("template", ["{", "{}", "{least.x}", "{least:nonsense}", "{least[0]}"])
def test_template_of_a_wrong_form_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="the template of 'range' has a wrong form; write placeholders as"):
        RANGE.text("en", {"range": template})


def test_catalogues_have_the_same_codes() -> None:
    assert CATALOGUES["en"].keys() == CATALOGUES["it"].keys()


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
