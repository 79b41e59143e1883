"""Generates the commands of docs/reference/cli.md from their `--help` texts."""

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import chain
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

from loanasync.cli.app import app
from loanasync.cli.exit_codes import MEANINGS
from loanasync.sandbox.__main__ import parser_of

Command: TypeAlias = Callable[..., Any]

EXAMPLE = "Example: "


def commands(group: typer.Typer = app, prefix: str = "loanasync") -> Iterator[tuple[str, Command]]:
    """Yield every command with its full name, in the order of `--help`."""
    for each in group.registered_commands:
        assert each.callback is not None
        yield f"{prefix} {each.name or each.callback.__name__.replace('_', '-')}", each.callback
    for each_group in group.registered_groups:
        assert each_group.typer_instance is not None
        callback = each_group.typer_instance.registered_callback
        assert callback is not None
        assert callback.callback is not None
        yield f"{prefix} {each_group.name}", callback.callback
        yield from commands(each_group.typer_instance, f"{prefix} {each_group.name}")


def example_of(command: Command) -> str:
    """Return the example of a command's help."""
    return " ".join(str(inspect.getdoc(command)).partition(EXAMPLE)[2].split())


def spellings_of(name: str) -> dict[str, tuple[str, ...]]:
    """Return the spellings of each option by the parameter's name, such as `--json` for `as_json`."""
    found: Any = get_command(app)
    for word in name.split()[1:]:
        found = found.commands[word]
    return {each.name: tuple(each.opts) for each in found.params}


def section(name: str, command: Command) -> str:
    """Return the section of a command."""
    description = str(inspect.getdoc(command)).partition(EXAMPLE)[0].strip()
    lines = [
        f"## `{name}`",
        "",
        description,
        "",
        "```sh",
        example_of(command),
        "```",
        "",
    ]
    if name == "loanasync sandbox":
        return "\n".join([*lines, *sandbox_rows(), ""])
    hints = get_type_hints(command, include_extras=True)
    spellings = spellings_of(name)
    groups: dict[str, list[str]] = {}  # in the order of `--help`
    for parameter in inspect.signature(command).parameters.values():
        if hints[parameter.name] is typer.Context:
            continue
        kind, info = get_args(hints[parameter.name])
        title = info.rich_help_panel or ""
        groups.setdefault(title, [f"{title}:", ""] if title else []).append(
            row(parameter, kind, info, spellings[parameter.name])
        )
    return "\n".join([*lines, *chain.from_iterable([*rows, ""] for rows in groups.values())])


def sandbox_rows() -> Iterator[str]:
    """Yield the list of the sandbox, whose options are those of `python -m loanasync.sandbox`."""
    for action in parser_of()._actions:  # noqa: SLF001  (argparse has no public list)
        if action.dest == "help":
            continue
        (spelling,) = action.option_strings
        metavar = str(action.metavar or "/".join(action.choices or ()) or action.dest.upper())
        default = "" if action.default in (None, False, "", []) else f" Default: `{action.default}`."
        help_text = str(action.help)
        text = f"{help_text[:1].upper()}{help_text[1:]}.{default}"
        yield f"- `{spelling}{'' if action.nargs == 0 else f' {metavar}'}`: {text}"


def row(
    parameter: inspect.Parameter, kind: Any, info: ArgumentInfo | OptionInfo, spellings: tuple[str, ...]
) -> str:
    """Return the list item of an argument or an option."""
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
        text += f" Default: `{default}`."
    return f"- {written}: {text}"


def sections() -> str:
    """Return the sections of all commands."""
    return "\n".join(section(name, command) for name, command in commands())


def exit_codes() -> str:
    """Return the table of exit codes."""
    codes = (f"| {code:d} | {text} |" for code, text in MEANINGS.items())
    return "\n".join(["| exit code | meaning |", "|---|---|", *codes])
