"""Names, defaults, log levels and orders of steps on the pages are those of the code."""

import ast
import builtins
import importlib
import inspect
import logging
import pkgutil
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import attrs
import pytest

import loanasync
from loanasync import LoanClient, LoanError, Meta, Problem, RetryPolicy, errors
from loanasync.bulk import RowResult
from loanasync.ledger import Entry, Ledger, LedgerPolicy, MemoryLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import (
    ScriptedResponse,
    approval_request,
    approved,
    connection_lost,
    fiscal_code,
    response,
    scripted_client,
    system_error,
)
from support.pages import PACKAGES, PAGES, ROOT, name_of

PUBLIC = {
    name: getattr(package, name)
    for package in map(importlib.import_module, PACKAGES)
    for name in package.__all__
}
DECISIONS = (loanasync.Approved, loanasync.Refused)
ERRORS = tuple(getattr(errors, name) for name in errors.__all__)
# Variables of the pages, and the classes whose attributes they have.
VARIABLES: dict[str, tuple[type, ...]] = {
    "client": (LoanClient,),
    "decision": DECISIONS,
    "entry": (Entry,),
    "error": ERRORS,
    "ledger": (Ledger,),
    "meta": (Meta,),
    "problem": (Problem,),
    "request": (loanasync.ApprovalRequest,),
    "result": (RowResult,),
}
FILES = (file for kind in ("*.py", "*.json") for file in (ROOT / "loanasync").rglob(kind))
SOURCE = "".join(file.read_text(encoding="utf-8") for file in FILES)
MODULES = {each.name for each in pkgutil.walk_packages(loanasync.__path__, "loanasync.")}
CODE = re.compile(r"`([A-Za-z_][\w.]*)(\([^`]*\))?`")


def has(owner: Any, name: str) -> bool:
    """Return True if a class or a module has an attribute, also one that a method sets."""
    names = {each.name for each in attrs.fields(owner)} if inspect.isclass(owner) and attrs.has(owner) else ()
    return hasattr(owner, name) or name in names or f"self.{name}: " in SOURCE


def owners_of(dotted: list[str]) -> tuple[Any, ...] | None:
    """Return the objects that a name on a page can mean, up to its last part; None for other libraries."""
    first = dotted[0]
    if first in VARIABLES:
        return VARIABLES[first]
    if first == "loanasync":
        return (loanasync,)
    return (PUBLIC[first],) if first in PUBLIC else None


def is_known(name: str) -> bool:
    """Return False for a name of this package that does not exist."""
    dotted = name.split(".")
    if f'"{name}"' in SOURCE or name in MODULES:  # for example an attribute of a span
        return True
    if len(dotted) == 1:
        known = name in PUBLIC or hasattr(builtins, name) or hasattr(aiohttp, name) or name in SOURCE
        return known or not re.fullmatch(r"[A-Z]\w*Error|LOANASYNC_\w+", name)
    owners = owners_of(dotted)
    for part in dotted[1:] if owners is not None else ():
        found = [owner for owner in owners or () if has(owner, part)]
        if not found:
            return False
        owners = tuple(getattr(owner, part, None) for owner in found)
        if not all(inspect.isclass(owner) or inspect.ismodule(owner) for owner in owners):
            return True  # an attribute of an instance, whose type is not followed
    return True


def text_of(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# The page on the command line is generated, and test_pages.py tests the names of telemetry.
OTHERS = {"CHANGELOG.md", "cli.md", "telemetry.md"}
USERS_PAGES = [page for page in PAGES if page.name not in OTHERS and "contributing" not in page.parts]


@pytest.mark.parametrize("page", USERS_PAGES, ids=name_of)
def test_names_on_page_exist(page: Path) -> None:
    assert [match[1] for match in CODE.finditer(text_of(page)) if not is_known(match[1])] == []


def arguments(call: str) -> list[str]:
    try:
        tree = ast.parse(call.replace("...", "0"), mode="eval").body
    except SyntaxError:
        return []
    return [each.arg for each in tree.keywords if each.arg] if isinstance(tree, ast.Call) else []


METHODS = {name: member for name, member in vars(LoanClient).items() if inspect.isfunction(member)}


@pytest.mark.parametrize("page", USERS_PAGES, ids=name_of)
def test_arguments_on_page_exist(page: Path) -> None:
    for match in CODE.finditer(text_of(page)):
        function = PUBLIC.get(match[1]) or METHODS.get(match[1].rpartition(".")[2])
        if match[2] and function is not None:
            known = inspect.signature(function).parameters
            assert [each for each in arguments(match[1] + match[2]) if each not in known] == [], match[0]


@pytest.mark.parametrize(
    "name", ["NoSuchError", "Timeout.no_such", "error.no_such", "LOANASYNC_NO_SUCH", "loanasync.no_such"]
)
def test_name_that_does_not_exist_is_found(name: str) -> None:
    assert not is_known(name)
    assert is_known("Timeout.attempt")


def unknown_parts(command: str) -> list[str]:
    """Return the subcommands and options of a command that the generated page on the command line lacks."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    words = re.sub(" --(ledger|queue) NAME", "", command).split()
    named = words[: 3 if words[1] in ("ledger", "dead-letters") else 2]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [each for each in (" ".join(named), *options) if each not in page]


@pytest.mark.parametrize("page", USERS_PAGES, ids=name_of)
def test_commands_in_text_of_page_exist(page: Path) -> None:
    commands = re.findall(r"`(loanasync [a-z][^`]*)`", text_of(page))
    assert {each: unknown_parts(each) for each in commands if unknown_parts(each)} == {}


def defaults() -> Iterator[tuple[str, str]]:
    """Yield each row of the tables of parameters in the page on timeouts: name and default."""
    page = (ROOT / "docs" / "howto" / "deadlines.md").read_text(encoding="utf-8")
    for name, default in re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| ([\d., ]+?)(?:,? or .*?)? \|", page, re.MULTILINE
    ):
        yield from zip(re.findall(r"\w+", name), default.split(", "), strict=True)


def test_defaults_of_timeouts_retries_and_breaker_are_those_of_the_code() -> None:
    code: dict[str, float] = {}
    for settings in (loanasync.Timeout(), RetryPolicy(), loanasync.CircuitBreaker()):
        code |= attrs.asdict(settings)
    shown = dict(defaults())
    assert shown.keys() == code.keys()
    assert {name: float(value) for name, value in shown.items()} == code
    lease = loanasync.Timeout().longest + 2 * LedgerPolicy().patience
    page = (ROOT / "docs" / "howto" / "deadlines.md").read_text(encoding="utf-8")
    assert f"2 * LedgerPolicy.patience`, by default {lease:.0f} seconds" in page


LEVELS = {
    "201": approved(),
    "404": response(404),
    "500": system_error(),
    "502": response(502),
    "no": connection_lost(),
}


@pytest.mark.parametrize("kind", LEVELS)
async def test_levels_of_log_events_are_those_of_the_page(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = (ROOT / "docs" / "reference" / "telemetry.md").read_text(encoding="utf-8")
    attempt, call = re.findall(r"^\| (?:attempt|call) \| (\w+); WARNING", page, re.MULTILINE)
    assert "WARNING for a status from 500 on, or no response" in page
    answer: ScriptedResponse = LEVELS[kind]
    caplog.set_level(logging.DEBUG, "loanasync")
    try:
        await scripted_client(answer, retry=RetryPolicy(attempts=1)).approve(
            fiscal_code(), approval_request()
        )
    except LoanError:
        call = "WARNING"
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING" if kind in ("500", "502", "no") else attempt, call]


@pytest.mark.parametrize("with_ledger", [False, True])
async def test_steps_of_an_approval_are_in_the_order_of_the_page(with_ledger: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    heading = "## With a ledger" if with_ledger else "## One approval, step by step"
    steps = re.findall(r"`(_?[A-Z]\w+\.\w+)`", page.partition(heading)[2].partition("\n## ")[0])
    assert len(steps) > 3
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "loanasync" in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    ledger = MemoryLedger() if with_ledger else None
    async with Sandbox() as sandbox, sandbox.client(ledger=ledger) as client:
        for is_measured in (False, True):  # the second call has an idle connection
            await client.create_request({"fiscalCode": (code := fiscal_code())})
            order = approval_request()
            sys.setprofile(note if is_measured else None)
            try:
                await client.approve(code, order)
            finally:
                sys.setprofile(None)
    assert [step for step in steps if step not in called] == []
    assert [pair for pair in pairwise(steps) if called.index(pair[0]) >= called.index(pair[1])] == []


def test_steps_of_a_restore_are_in_the_order_of_the_error() -> None:
    page = (ROOT / "docs" / "howto" / "restore.md").read_text(encoding="utf-8")
    steps = ["ledger sweep`. For", "Ask the service", "5. Run `loanasync ledger confirm", "6. Start the"]
    assert [page.index(step) for step in steps] == sorted(page.index(step) for step in steps)
    assert "import the orphan files," in SOURCE
    assert "compare the ledger with the service, then run loanasync ledger confirm" in SOURCE
