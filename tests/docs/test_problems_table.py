"""Codes of problems: the table in docs/reference/errors.md, and texts in both languages for each code."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import loanasync
from loanasync._display.texts import CATALOGUES
from loanasync._protocol.error_bodies import read_problems
from problems_page import FROM_SERVICE, PAGE, problems_of_checks, problems_of_service, with_table

FOUND = [*problems_of_checks(), *problems_of_service()]
RULES = {each.code.rpartition(".")[2] for each in FOUND}


def test_errors_page_has_the_table_of_problems() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "python docs/_generate/problems_page.py --write"


@pytest.mark.parametrize("language", CATALOGUES)
def test_every_code_has_a_filled_text(language: str) -> None:
    for problem in FOUND:
        catalogue, rule = CATALOGUES[language], problem.code.rpartition(".")[2]
        template = catalogue.get(problem.code) or catalogue[rule]
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        assert names <= problem.params.keys(), problem.code
        text = problem.text(language)
        assert text != problem.message
        assert text.endswith(".")
        assert "{" not in text


def test_every_text_belongs_to_a_code() -> None:
    codes = {each.code for each in FOUND} | RULES
    assert CATALOGUES["en"].keys() - codes == set()


def test_every_rule_in_the_source_is_in_the_table() -> None:
    """Rules are the first argument of Violation, `excluded_rule`, and the end of the code of a Problem."""
    in_source = set(_rules_in_source())
    assert {"range", "prefix", "unknown_field", "object"} <= in_source
    assert in_source - RULES == set()


def _rules_in_source() -> Iterator[str]:
    for file in Path(loanasync.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            named = [each.value for each in call.keywords if each.arg == "excluded_rule"]
            position = {"Violation": 0, "Problem": 3}.get(name)
            if position is not None:
                assert len(call.args) > position, f"{file.name}:{call.lineno}: a problem without a code"
                named.append(call.args[position])
            for each in named:
                last = each.values[-1] if isinstance(each, ast.JoinedStr) else each
                if isinstance(last, ast.Constant):
                    yield str(last.value).rpartition(".")[2]


@pytest.mark.parametrize("body", FROM_SERVICE, ids=str)
def test_message_of_the_specification_has_a_code(body: dict[str, object]) -> None:
    assert all(not each.code.endswith("rejected") for each in read_problems(body))


def test_amount_in_the_texts_is_in_euros() -> None:
    amounts = [each for each in FOUND if each.code in ("amount.range", "amount.type")]
    assert {each.text("it") for each in amounts} == {"Inserire un importo tra 50,00 e 15.000,00 euro."}
