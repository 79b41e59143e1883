"""Tests of the pages about the sandbox: they list all tags, rules and options."""

import inspect
import re
from ast import literal_eval
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from attrs import evolve

from loanasync.sandbox import Sandbox
from loanasync.sandbox.__main__ import parser_of
from loanasync.sandbox.linter import RULES
from loanasync.sandbox.outcomes import DEFAULT_OUTCOME, parse_words
from support.cli import run

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "sandbox.md"


def written(pattern: str) -> set[str]:
    return set(re.findall(pattern, GUIDE.read_text(encoding="utf-8")))


def test_tags_in_the_sandbox_guide_exist() -> None:
    tags = written(r"`\+([a-z0-9.]+)`")
    assert tags
    for tag in tags:
        assert evolve(parse_words(tag), name="") != DEFAULT_OUTCOME


def test_sandbox_guide_lists_every_linter_rule() -> None:
    assert written(r"\| `([a-z0-9-]+)` \|") == RULES.keys()


def test_sandbox_guide_lists_the_values_of_each_reading_and_its_default() -> None:
    hints, parameters = get_type_hints(Sandbox.__init__), inspect.signature(Sandbox).parameters
    choices = {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}
    rows = {
        name: tuple(map(literal_eval, re.findall("`(.+?)`", values)))
        for name, values in re.findall(r"\| `(\w+)=` \| (.+?) \|", GUIDE.read_text(encoding="utf-8"))
    }
    assert rows == choices
    assert {name: values[0] for name, values in rows.items()} == {
        name: parameters[name].default for name in rows
    }


def test_sandbox_options_have_python_arguments() -> None:
    options = {action.dest for action in parser_of()._actions} - {"help"}
    assert options < set(inspect.signature(Sandbox).parameters)
    printed = run(None, "sandbox", "--help")
    for name in options - {"faults"}:  # given one by one, as --fault
        assert f"--{name.replace('_', '-')[:12]}" in printed.stdout
