"""Tests of public docstrings and of the API reference: summaries, arguments, and every public name."""

import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType

import pytest

import loanasync
from loanasync.ledger import Ledger
from support.pages import PACKAGES, ROOT

REFERENCE = ROOT / "docs" / "reference"
PAGES = [*sorted(REFERENCE.glob("api/*.md")), REFERENCE / "errors.md"]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
# Members that only the package uses; the reference does not show them.
HIDDEN = set(re.findall(r"\w+", " ".join(re.findall(r":exclude-members:(.*)", TEXT))))


def members(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that a class defines."""
    for name, member in vars(kind).items():
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__  # noqa: PLW2901  (the decorated function)
        if isinstance(member, FunctionType | property) and not name.startswith(("_", "test_")):
            yield name, member


def public() -> dict[str, object]:
    """Return each public class, function, method and property by its path."""
    found: dict[str, object] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            item = getattr(module, name)
            if not isinstance(item, type | FunctionType):
                continue  # a type alias, which has no docstring
            found[f"{package}.{name}"] = item
            if isinstance(item, type):
                found |= {f"{package}.{name}.{each}": member for each, member in members(item)}
    return found


PUBLIC = public()


def package_of(path: str) -> str:
    return next(package for package in reversed(PACKAGES) if path.startswith(f"{package}."))


def test_public_names_are_found() -> None:
    assert len(PUBLIC) > 200
    assert len(WITH_ARGUMENTS) > 25


def arguments(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters if callable(function) else {}
    return [name for name in parameters if name not in ("self", "cls")]


def documented(path: str) -> object:
    """Return the object whose docstring documents a name; ledgers inherit that of `Ledger`."""
    name = path.rpartition(".")[2]
    inherits = path.startswith("loanasync.ledger.") and hasattr(Ledger, name)
    return getattr(Ledger, name) if inherits else PUBLIC[path]


# Functions and methods with several arguments. A single argument follows from the summary.
WITH_ARGUMENTS = [
    path
    for path in sorted(PUBLIC)
    if path.rpartition(".")[2] not in HIDDEN
    and not isinstance(PUBLIC[path], type)
    and len(arguments(documented(path))) > 1
]


@pytest.mark.parametrize("path", WITH_ARGUMENTS)
def test_arguments_of_a_public_function_are_documented(path: str) -> None:
    text = inspect.getdoc(documented(path)) or ""
    assert [name for name in arguments(documented(path)) if f"{name}:" not in text] == []


def test_api_reference_has_every_public_name() -> None:
    """A name has its own entry or that of its package; a type alias is named in backticks."""
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            module = "loanasync.errors" if name in loanasync.errors.__all__ else package
            shown = f"automodule:: {module}\n", f" {package}.{name}\n", f"`{name}`"
            assert any(each in TEXT for each in shown), f"{package}.{name}"
