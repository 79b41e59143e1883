"""The tables of the page on performance are those of docs/figures."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_page", BENCHMARKS / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_performance_page_is_up_to_date(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert page == script.with_tables(page), "update it: python benchmarks/page.py"


def test_changed_table_is_restored_from_the_figures(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    for name in script.TABLES:
        begin = script.BEGIN.format(name)
        rows = page.partition(begin)[2].partition(script.END.format(name))[0].splitlines()
        assert len(rows) > 3, name
        changed = page.replace(begin + rows[0], f"{begin}| changed")
        assert changed != page
        assert script.with_tables(changed) == page


def test_result_that_loses_its_target_is_bold(script: ModuleType) -> None:
    figure = {"median": 1.25, "low": 1.0, "high": 1.5}
    assert script.result(script.goal("a", 1.2, figure)) == "**1.25 (1.00 to 1.50), lost**"
    assert script.result(script.goal("a", 1.25, figure)) == "1.25 (1.00 to 1.50), met"
    assert script.result(script.goal("a", 130, dict.fromkeys(figure, 131))) == "**131, lost**"
    assert script.result(None) == ""


def test_conversion_is_compared_with_pydantic(script: ModuleType) -> None:
    ratios = {"median": 0.5, "low": 0.4, "high": 0.8}  # of pydantic to loanasync
    lines = [{"name": "order to bytes, pydantic", "ratio": ratios}, {"name": "build", "ratio": None}]
    [goal] = script.conversion_goals(lines)
    assert (goal["name"], goal["met"]) == ("order to bytes, loanasync / pydantic", False)
    assert (goal["low"], goal["median"], goal["high"]) == (1.25, 2, 2.5)


def test_ledger_targets_are_those_of_claim_and_settlement(script: ModuleType) -> None:
    good, bad = (dict.fromkeys(("median", "low", "high"), figure) for figure in (1.0, 100.0))
    rows = [
        {"name": name, **{kind: {"cost": bad, "added": bad, "by_hand": bad} for kind in ("cpu", "wall")}}
        for name in ("memory", "SQLite")
    ]
    operations = [
        {"name": "memory", "cpu": {"cost": good, "by_hand": bad}},
        {"name": "SQLite", **{kind: {"cost": bad, "by_hand": good} for kind in ("cpu", "wall")}},
    ]
    goals = list(script.ledger_goals([{"in_flight": 1, "rows": rows, "operations": operations}]))
    assert [goal["name"] for goal in goals] == [
        "CPU of claim and settlement in SQLite / SQL by hand, 1 in flight",
        "time of claim and settlement in SQLite / SQL by hand, 1 in flight",
        "CPU of claim and settlement in memory (µs), 1 in flight",
    ]
    assert all(goal["met"] for goal in goals)


def test_figures_of_calls_are_of_the_named_server_and_order(script: ModuleType) -> None:
    for server, order in script.SCENARIOS:
        found = script.measured(f"calls-{server}-{order}")
        assert found.keys() == set(script.PYTHONS)
        for python, figures in found.items():
            assert (figures["server"], figures["order"]) == (server, order)
            assert figures["versions"]["Python"].startswith(f"{python}.")
