"""docs/reference/cli.md, out of the commands themselves: what `--help` says, for who reads in the browser.

`python docs/_generate/cli_page.py --write` puts it into the page.
"""

import argparse
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

from loanasync.cli.app import app

__all__ = ["PAGE", "commands", "example_of", "section", "with_commands"]

Command: TypeAlias = Callable[..., Any]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
BEGIN, END = "<!-- what --help says begins -->", "<!-- what --help says ends -->"
EXAMPLE = "Example: "


def commands(within: typer.Typer = app, above: str = "loanasync") -> Iterator[tuple[str, Command]]:
    """Every command with its whole name, in the order of `--help`."""
    for each in within.registered_commands:
        assert each.callback is not None
        yield f"{above} {each.name or each.callback.__name__.replace('_', '-')}", each.callback
    for group in within.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{above} {group.name}")


def example_of(command: Command) -> str:
    """The one line that its help shows."""
    return " ".join(str(inspect.getdoc(command)).partition(EXAMPLE)[2].split())


def spellings_of(name: str) -> dict[str, tuple[str, ...]]:
    """How each option of a command is typed, by its parameter: `as_json` is typed `--json`."""
    found: Any = get_command(app)
    for word in name.split()[1:]:
        found = found.commands[word]
    return {each.name: tuple(each.opts) for each in found.params}


def section(name: str, command: Command) -> str:
    told = str(inspect.getdoc(command)).partition(EXAMPLE)[0].strip()
    lines = [f"## `{name}`", "", told, "", "```sh", example_of(command), "```", "", "| | |", "|---|---|"]
    hints = get_type_hints(command, include_extras=True)
    spellings = spellings_of(name)
    for parameter in inspect.signature(command).parameters.values():
        kind, info = get_args(hints[parameter.name])
        lines.append(row(parameter, kind, info, spellings[parameter.name]))
    return "\n".join([*lines, ""])


def row(
    parameter: inspect.Parameter, kind: Any, info: ArgumentInfo | OptionInfo, spellings: tuple[str, ...]
) -> str:
    """An argument or an option: how it is written, and what it is for."""
    *_, inner = [each for each in (kind, *get_args(kind)) if each is not type(None)]
    if get_origin(inner) is list:
        (inner,) = get_args(inner)
    is_choice = inspect.isclass(inner) and issubclass(inner, Enum)
    value = info.metavar or ("/".join(inner) if is_choice else inner.__name__.upper())
    names = ", ".join(spellings)
    if isinstance(info, ArgumentInfo):
        written = f"`{value}`"
    else:
        written = f"`{names}`" if inner is bool else f"`{names} {value}`"
    told = str(info.help).replace("\\[", "[")
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if default not in (None, False, "", inspect.Parameter.empty):
        told += f" By default `{default}`."
    if info.envvar:
        told += f" If it is not given: `{info.envvar}`."
    return f"| {written} | {told} |"


def with_commands(page: str) -> str:
    """A page with its commands as they are."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    told = "\n".join(section(name, command) for name, command in commands())
    return f"{before}{BEGIN}\n\n{told}\n{END}{after}"


def main() -> None:
    """Write the commands into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    PAGE.write_text(with_commands(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
