"""The generated tables and pictures of the documentation are up to date, and complete."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import loanasync
import performance_page
import tables
import traces
from faults_page import ROWS
from loanasync import DeadlineExceededError, LoanError, PoolTimeoutError, TransportError, errors
from loanasync._models.texts import LANGUAGES, RARE_RULES, TEXTS
from problems_page import problems_of_checks, problems_of_service


@pytest.mark.parametrize("page", tables.TABLES)
def test_generated_tables_are_up_to_date(page: str) -> None:
    assert (tables.DOCS / page).read_text(encoding="utf-8") == tables.generated(page), "nox -s pages"


async def test_picture_of_traces_is_up_to_date() -> None:
    drawn = traces.picture(await traces.traces())
    assert traces.PICTURE.read_text(encoding="utf-8") == drawn, "nox -s pictures"


def test_performance_result_that_loses_its_target_is_bold() -> None:
    figure = {"median": 1.25, "low": 1.0, "high": 1.5}
    goal, result = performance_page.goal, performance_page.result
    assert result(goal("a", 1.2, figure)) == "**1.25 (1.00 to 1.50), lost**"
    assert result(goal("a", 1.25, figure)) == "1.25 (1.00 to 1.50), met"
    assert result(goal("a", 130, dict.fromkeys(figure, 131))) == "**131, lost**"


def test_performance_figures_are_of_the_named_server_and_order() -> None:
    for server, order in performance_page.SCENARIOS:
        figures = performance_page.measured(f"calls-{server}-{order}")
        assert (figures["server"], figures["order"]) == (server, order)
        assert figures["versions"]["Python"].startswith(f"{performance_page.PYTHON}.")


def test_fault_names_are_unique_and_the_example_exists() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    page = (tables.DOCS / "contributing" / "reliability.md").read_text(encoding="utf-8")
    [example] = re.findall(r"-k ([a-z-]+)", page)
    assert example in names


def test_each_transport_error_is_in_a_row_of_the_faults() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LoanError)}
    faults = {kind for kind in kinds if issubclass(kind, TransportError)} - {TransportError}
    # The clock and the slots of the SDK raise these two; tests of the pipeline cover them.
    assert faults - {row.expected.error for row in ROWS} == {PoolTimeoutError, DeadlineExceededError}


PROBLEMS = [*problems_of_checks(), *problems_of_service()]
RULES = {each.code.rpartition(".")[2] for each in PROBLEMS}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_code_of_a_problem_has_a_filled_text(language: str) -> None:
    for problem in PROBLEMS:
        text = problem.text(language)
        assert text != problem.message
        assert text.endswith(".")
        assert "{" not in text


def test_each_text_of_a_problem_belongs_to_a_code() -> None:
    assert TEXTS["rules"].keys() - {each.code for each in PROBLEMS} - RULES == set()
    assert RARE_RULES <= RULES


def test_each_rule_in_the_source_is_in_the_table_of_problems() -> None:
    """Rules are the first argument of Violation, and the end of the code of a Problem."""
    in_source = set(_rules_in_source())
    assert {"range", "prefix", "unknown_field", "object"} <= in_source
    assert in_source - RULES == set()


def _rules_in_source() -> Iterator[str]:
    for file in Path(loanasync.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            position = {"Violation": 0, "Problem": 3}.get(ast.unparse(call.func).rpartition(".")[2])
            if position is not None:
                assert len(call.args) > position, f"{file.name}:{call.lineno}: a problem without a code"
                rule = call.args[position]
                last = rule.values[-1] if isinstance(rule, ast.JoinedStr) else rule
                if isinstance(last, ast.Constant):
                    yield str(last.value).rpartition(".")[2]
