"""The command line application: its commands, their options and their help."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from loanasync import __version__
from loanasync.cli.approve_many.command import approve_many
from loanasync.cli.console import print_message
from loanasync.cli.dead_letters import app as dead_letters
from loanasync.cli.exit_codes import MEANINGS, Exit
from loanasync.cli.ledger.commands import app as ledger
from loanasync.errors import ConfigurationError

app: typer.Typer = typer.Typer(
    name="loanasync",
    help="Tools for the loan request approval service.",
    epilog=f"Exit codes: {'; '.join(f'{code:d} {text}' for code, text in MEANINGS.items())}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
    rich_markup_mode="markdown",  # paragraphs are wrapped to the width of the terminal
)


app.command("approve-many")(approve_many)
app.add_typer(ledger, name="ledger")
app.add_typer(dead_letters, name="dead-letters")


def _version(value: bool) -> None:  # noqa: FBT001  (typer requires this signature)
    if value:
        typer.echo(f"loanasync {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo() -> None:
    """Run complete loan requests against a sandbox, and print each step and its traces.

    Example: loanasync demo
    """
    # The OpenTelemetry SDK is slow to import, so other commands do not load it.
    from loanasync.cli.demo import run_demo  # noqa: PLC0415  (loads the SDK)

    terminal = Console()
    try:
        asyncio.run(run_demo(terminal if terminal.is_terminal else Console(width=120)))
    except ConfigurationError as error:
        print_message(str(error))
        raise typer.Exit(Exit.NOTHING_SENT) from None


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def sandbox(
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTIONS", help="Options, which --help lists.")
    ] = None,
) -> None:
    """Run a sandbox of the service on this machine, until Ctrl-C.

    Example: loanasync sandbox --port 8080 --fault 500after:0.1 --state shop.sqlite
    """
    from loanasync.sandbox.__main__ import main  # noqa: PLC0415  (its server is slow to import)

    main(options or (), "loanasync sandbox")
