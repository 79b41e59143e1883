"""The command line stays small: a bound on the options and arguments of all commands together."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from loanasync.cli.app import app
from loanasync.sandbox.__main__ import parser_of

MOST = 47
OF_THE_FRAMEWORK = {"help", "install_completion", "show_completion"}


def parameters(command: Any, name: str = "loanasync") -> Iterator[str]:
    """Yield the name of each option and argument of a command and of the commands below it."""
    for parameter in command.params:
        if parameter.name not in OF_THE_FRAMEWORK and name != "loanasync sandbox":
            yield f"{name} {parameter.name}"
    if name == "loanasync sandbox":  # its options are those of another parser
        yield from (f"{name} {action.dest}" for action in parser_of()._actions if action.dest != "help")
    for each, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{name} {each}")


def test_commands_have_few_options_and_arguments() -> None:
    found = [*parameters(get_command(app))]
    assert "loanasync approve-many rows" in found
    assert len(found) <= MOST, "remove one before you add another"
