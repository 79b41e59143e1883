"""Annotations of the public API have values, which dishka and Litestar read."""

import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, get_origin, get_type_hints

import pytest

import loanasync
from loanasync import LoanClient
from loanasync.ledger import Ledger


def public_values() -> Iterator[Any]:
    """Return the classes and functions in `__all__` of all modules without an underscore."""
    found = [each.name for each in pkgutil.walk_packages(loanasync.__path__, "loanasync.")]
    for module in ["loanasync", *(name for name in found if "._" not in name)]:
        for name in getattr(import_module(module), "__all__", ()):
            value = getattr(import_module(module), name)
            if callable(value) and get_origin(value) is None:  # no alias
                yield pytest.param(value, id=f"{module}.{name}")


evaluated = cache(get_type_hints)  # many classes inherit the same functions


def functions_of(value: object) -> Iterator[object]:
    """Return a function, or the functions of a class and of its base classes in this package."""
    if not isinstance(value, type):
        yield value
        return
    for owner in value.__mro__:
        if owner.__module__.startswith("loanasync"):
            for member in vars(owner).values():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(function, FunctionType):
                    yield function


@pytest.mark.parametrize("value", [*public_values()])
def test_annotations_of_public_names_can_be_evaluated(value: object) -> None:
    if isinstance(value, type) and value.__module__.startswith("loanasync"):
        evaluated(value)
    for function in functions_of(value):
        evaluated(function)


def test_annotation_of_a_lazily_imported_class_is_that_class() -> None:
    assert get_type_hints(LoanClient.__init__)["ledger"] == Ledger | None


def test_annotations_can_be_evaluated_without_optional_packages() -> None:
    script = """
import sys
sys.modules.update(dict.fromkeys(("pandas", "taskiq", "opentelemetry.sdk", "opentelemetry.sdk.trace")))
from typing import get_type_hints
from loanasync import bulk, testing, worker
for function in (bulk.Approvals.to_frame, testing.TelemetryRecorder.spans, worker.register):
    print(get_type_hints(function)["return"])
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, encoding="utf-8")
    assert done.stdout.count("NotInstalled") == 3
