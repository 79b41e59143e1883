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
