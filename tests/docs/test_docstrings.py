"""What is public says what it is for, what it takes and raises, and shows how it is used."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from loanasync import LoanClient, LoanError
from loanasync.ledger import DecisionLedger

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ROOMS = ["loanasync", *(f"loanasync.{room}" for room in ("bulk", "errors", "ledger", "sandbox", "testing"))]
# What is public and has no example, with the reason.
UNSHOWN = {
    "loanasync.sandbox.serve": "runs until a signal ends it",
    "loanasync.sandbox.Journal.append": "for the sandbox's own use",
    "loanasync.sandbox.Rule.chosen": "for the sandbox's own use",
    "loanasync.testing.ScriptedTransport.aclose": "for the client alone",
    "loanasync.testing.ScriptedTransport.check": "for the client alone",
    "loanasync.testing.ScriptedTransport.send": "for the client alone",
}


def members(kind: type) -> Iterator[tuple[str, object]]:
    """A class's own public methods and properties."""
    for name, member in vars(kind).items():
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__  # noqa: PLW2901  (what the decorator stands around)
        if isinstance(member, FunctionType | property) and not name.startswith(("_", "test_")):
            yield name, member


def public() -> dict[str, object]:
    """Each public class and function, and each public method and property of theirs, by its path."""
    found: dict[str, object] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            thing = getattr(module, name)
            if not isinstance(thing, type | FunctionType):
                continue  # a type alias, which has no docstring
            found[f"{room}.{name}"] = thing
            # What a ledger has to pass is a base class for tests, which shows how it is used as a whole.
            if isinstance(thing, type) and not name.endswith("Conformance"):
                found |= {f"{room}.{name}.{each}": member for each, member in members(thing)}
    return found


PUBLIC = public()


def shown(docstring: str | None) -> str:
    """The source of a docstring's examples."""
    return "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", docstring or "", re.MULTILINE))


def room_of(path: str) -> str:
    return next(room for room in reversed(ROOMS) if path.startswith(f"{room}."))


# The examples of each room as one text: test_docs runs them.
EXAMPLES = {
    room: "\n".join(shown(thing.__doc__) for path, thing in PUBLIC.items() if room_of(path) == room)
    for room in ROOMS
}


def test_public_names_are_found() -> None:
    assert len(PUBLIC) > 200
    assert PUBLIC.keys() > UNSHOWN.keys()


@pytest.mark.parametrize("path", PUBLIC)
def test_public_name_has_a_docstring_with_a_summary(path: str) -> None:
    told = inspect.cleandoc(PUBLIC[path].__doc__ or "")
    assert told
    first = told.partition("\n\n")[0].replace("\n", " ")
    assert first.endswith((".", ":", "``")), first


@pytest.mark.parametrize("path", sorted(PUBLIC.keys() - UNSHOWN.keys()))
def test_public_name_has_an_example(path: str) -> None:
    """A class and a function have one of their own; a method may be shown by another of its room."""
    name = path.rpartition(".")[2]
    own = shown(PUBLIC[path].__doc__)
    if isinstance(PUBLIC[path], type) or path.removeprefix(f"{room_of(path)}.") == name:
        assert own
    else:
        assert own or re.search(rf"\.{name}\b", EXAMPLES[room_of(path)])


def arguments(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters if callable(function) else {}
    return [name for name in parameters if name not in ("self", "cls")]


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_arguments_of_a_public_function_are_documented(path: str) -> None:
    """Each argument by its name, where there is more than one; a ledger's are those of the protocol."""
    thing, name = PUBLIC[path], path.rpartition(".")[2]
    if path.startswith("loanasync.ledger.") and hasattr(DecisionLedger, name):
        thing = getattr(DecisionLedger, name)
    if isinstance(thing, type) or path in UNSHOWN or len(names := arguments(thing)) < 2:
        return
    explained = inspect.getdoc(thing) or ""
    assert [name for name in names if f"{name}:" not in explained] == []


def test_client_methods_have_all_docstring_sections() -> None:
    for name in ("approve", "approve_many", "check", "complete", "create_request", "upload_documents"):
        told = getattr(LoanClient, name).__doc__ or ""
        assert "Args:" in told
        assert ">>>" in told
        assert name == "approve_many" or "§" in told


def test_api_reference_has_every_public_name() -> None:
    """By its own place or with its whole package; an error is in the page of errors, which takes them all."""
    pages = (REFERENCE / "api.md").read_text(encoding="utf-8")
    for path, thing in PUBLIC.items():
        name = path.removeprefix(f"{room_of(path)}.")
        is_error = isinstance(thing, type) and issubclass(thing, LoanError)
        if "." not in name and not is_error:
            assert f"{path}\n" in pages or f"automodule:: {room_of(path)}\n" in pages, path
