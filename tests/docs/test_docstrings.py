"""Tests of public docstrings: summary, arguments, and an example."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from loanasync import LoanClient, LoanError
from loanasync.ledger import Ledger

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PACKAGES = [
    "loanasync",
    *(f"loanasync.{name}" for name in ("bulk", "errors", "ledger", "sandbox", "testing")),
]
# Public names without an example, with the reason.
WITHOUT_EXAMPLE = {
    **dict.fromkeys(
        (
            f"loanasync.ledger.Ledger.{name}"
            for name in ("change_header", "create", "expect_number", "header", "open", "reason", "refresh")
        ),
        "used by clients and commands only",
    ),
    "loanasync.sandbox.serve": "runs until a signal stops it",
    "loanasync.sandbox.Journal.append": "used by the sandbox only",
    "loanasync.sandbox.Rule.matches": "used by the sandbox only",
    "loanasync.testing.ScriptedTransport.aclose": "used by the client only",
    "loanasync.testing.ScriptedTransport.check": "used by the client only",
    "loanasync.testing.ScriptedTransport.send": "used by the client only",
}


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


def example_code(docstring: str | None) -> str:
    """The source of a docstring's examples."""
    return "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", docstring or "", re.MULTILINE))


def package_of(path: str) -> str:
    return next(package for package in reversed(PACKAGES) if path.startswith(f"{package}."))


# The examples of each package as one text; test_pages.py runs them.
EXAMPLES = {
    package: "\n".join(
        example_code(item.__doc__) for path, item in PUBLIC.items() if package_of(path) == package
    )
    for package in PACKAGES
}


def test_public_names_are_found() -> None:
    assert len(PUBLIC) > 200
    assert len(WITH_ARGUMENTS) > 25
    assert PUBLIC.keys() > WITHOUT_EXAMPLE.keys()


def test_each_public_name_has_a_docstring_with_a_summary() -> None:
    summaries = {
        path: inspect.cleandoc(item.__doc__ or "").partition("\n\n")[0] for path, item in PUBLIC.items()
    }
    assert {path: each for path, each in summaries.items() if not each.endswith((".", ":", "``"))} == {}


def has_example(path: str) -> bool:
    """Return True if the docstring has an example. A method may have it elsewhere in its package."""
    name = path.rpartition(".")[2]
    if example_code(PUBLIC[path].__doc__):
        return True
    is_method = not isinstance(PUBLIC[path], type) and path.removeprefix(f"{package_of(path)}.") != name
    return is_method and re.search(rf"\.{name}\b", EXAMPLES[package_of(path)]) is not None


def test_each_public_name_has_an_example() -> None:
    assert {path for path in PUBLIC if not has_example(path)} == WITHOUT_EXAMPLE.keys()


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
    for path in sorted(PUBLIC.keys() - WITHOUT_EXAMPLE.keys())
    if not isinstance(PUBLIC[path], type) and len(arguments(documented(path))) > 1
]


@pytest.mark.parametrize("path", WITH_ARGUMENTS)
def test_arguments_of_a_public_function_are_documented(path: str) -> None:
    text = inspect.getdoc(documented(path)) or ""
    assert [name for name in arguments(documented(path)) if f"{name}:" not in text] == []


def test_client_methods_have_all_docstring_sections() -> None:
    for name in ("approve", "approve_many", "check", "complete", "create_request", "upload_documents"):
        text = getattr(LoanClient, name).__doc__ or ""
        assert "Args:" in text
        assert ">>>" in text
        assert name == "approve_many" or "§" in text


def test_api_reference_has_every_public_name() -> None:
    """A name has its own entry or that of its package; errors have the page of errors."""
    pages = (REFERENCE / "api.md").read_text(encoding="utf-8")
    for path, item in PUBLIC.items():
        name = path.removeprefix(f"{package_of(path)}.")
        is_error = isinstance(item, type) and issubclass(item, LoanError)
        if "." not in name and not is_error:
            assert f"{path}\n" in pages or f"automodule:: {package_of(path)}\n" in pages, path
