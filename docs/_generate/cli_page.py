"""Write docs/reference/cli.md from the help of the commands.

Run `python docs/_generate/cli_page.py --write`.
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
    """Yield each command with its full name, in the order of `--help`."""
    for each in within.registered_commands:
        assert each.callback is not None
        yield f"{above} {each.name or each.callback.__name__.replace('_', '-')}", each.callback
    for group in within.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{above} {group.name}")


def example_of(command: Command) -> str:
    """Return the example in the help of a command."""
    return " ".join(str(inspect.getdoc(command)).partition(EXAMPLE)[2].split())


def spellings_of(name: str) -> dict[str, tuple[str, ...]]:
    """Return the option of each parameter of a command: `as_json` is `--json`."""
    found: Any = get_command(app)
    for word in name.split()[1:]:
        found = found.commands[word]
    return {each.name: tuple(each.opts) for each in found.params}


def section(name: str, command: Command) -> str:
    text = str(inspect.getdoc(command)).partition(EXAMPLE)[0].strip()
    lines = [f"## `{name}`", "", text, "", "```sh", example_of(command), "```", "", "| | |", "|---|---|"]
    hints = get_type_hints(command, include_extras=True)
    spellings = spellings_of(name)
    for parameter in inspect.signature(command).parameters.values():
        kind, info = get_args(hints[parameter.name])
        lines.append(row(parameter, kind, info, spellings[parameter.name]))
    return "\n".join([*lines, ""])


def row(
    parameter: inspect.Parameter, kind: Any, info: ArgumentInfo | OptionInfo, spellings: tuple[str, ...]
) -> str:
    """Return the line of an argument or option: its spelling and its help."""
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
    text = str(info.help).replace("\\[", "[")
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if default not in (None, False, "", inspect.Parameter.empty):
        text += f" By default `{default}`."
    if info.envvar:
        text += f" If it is not given: `{info.envvar}`."
    return f"| {written} | {text} |"


def with_commands(page: str) -> str:
    """Return the page with the current commands."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = "\n".join(section(name, command) for name, command in commands())
    return f"{before}{BEGIN}\n\n{written}\n{END}{after}"


def main() -> None:
    """Write the commands into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    PAGE.write_text(with_commands(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
