"""Imports and attributes in README, pages, example shops and docstrings are public."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.test_pages import examples
from support.pages import PACKAGES, PAGES, ROOT, fences, name_of

PROGRAMS = sorted((ROOT / "docs" / "examples").glob("*.py"))


def private(program: str) -> Iterator[str]:
    """Yield each import of a name that no public package lists, and private attributes of others."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.partition(".")[0] == "loanasync"]
            yield from (name for name in ours if name not in PACKAGES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "loanasync":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            listed = importlib.import_module(str(node.module)).__all__ if node.module in PACKAGES else ()
            yield from sorted(names - {f"{node.module}.{name}" for name in listed} - set(PACKAGES))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
            yield from [node.attr] if node.attr.startswith("_") and not node.attr.endswith("__") else ()


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page).strip()], ids=name_of)
def test_page_uses_public_names_only(page: Path) -> None:
    assert list(private(fences(page))) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_example_program_uses_public_names_only(program: Path) -> None:
    assert list(private(program.read_text(encoding="utf-8"))) == []


def test_docstrings_use_public_names_only() -> None:
    found = {each.name: list(private("".join(part.source for part in each.examples))) for each in examples()}
    assert found
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("from loanasync._client import LoanClient", "loanasync._client.LoanClient"),
        ("from loanasync.ledger.model import Entry", "loanasync.ledger.model.Entry"),
        ("import loanasync.cli", "loanasync.cli"),
        ("client._flights", "_flights"),
    ],
)
def test_private_name_in_a_program_is_found(program: str, named: str) -> None:
    assert list(private(program)) == [named]
