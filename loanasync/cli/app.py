"""The command line application: its commands, their options and their help."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loanasync import __version__
from loanasync.cli.approve import approve, check, complete
from loanasync.cli.approve_many.command import approve_many
from loanasync.cli.dead_letters import app as letters
from loanasync.cli.ledger.commands import app as ledger
from loanasync.cli.rows.orders import Description

app: typer.Typer = typer.Typer(
    name="loanasync",
    help="Tools around the loan request approval service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
    rich_markup_mode="markdown",  # paragraphs are as wide as the terminal, not as the source
)


app.command()(check)
app.command()(approve)
app.command()(complete)
app.command("approve-many")(approve_many)
app.add_typer(ledger, name="ledger")
app.add_typer(letters, name="dead-letters")


def _version(wanted: bool) -> None:  # noqa: FBT001  (typer's form of a callback)
    if wanted:
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
def demo(
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Export traces and metrics to the collector at this base address, over OTLP/HTTP;"
            " OTEL_EXPORTER_OTLP_HEADERS is sent along.",
        ),
    ] = None,
) -> None:
    """Watch whole loan requests travel, against a sandbox that is started for them.

    Example: loanasync demo --otlp http://localhost:4318
    """
    # The demo records and exports, which takes long to be loaded: no other command waits for it.
    from loanasync.cli.demo import ExportError, collector_at, export  # noqa: PLC0415  (loads the SDK)
    from loanasync.cli.demo import demo as run_demo  # noqa: PLC0415  (loads the SDK)

    try:
        collector = None if otlp is None else collector_at(otlp)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--otlp") from None
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    recorded = asyncio.run(run_demo(console))
    if collector is not None:
        try:
            export(recorded, collector, console)
        except ExportError as error:
            typer.echo(error, err=True)
            raise typer.Exit(1) from None


@app.command()
def sandbox(
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    shop_id: Annotated[str, typer.Option(help="The shop that it knows.")] = "sandbox-shop",
    auth_token: Annotated[str, typer.Option(help="The shop's token, made up.")] = "sandbox-token",  # noqa: S107  (made up)
    dialect: Annotated[
        Description | None, typer.Option(help="Speak one description only; else both are accepted.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="A file of SQLite's to remember customers in.")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="\\[operation=]words\\[:rate\\[:phase]], such as 500:0.1:after; may be given again."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Where the rates of faults begin.")] = 0,
    journal: Annotated[int, typer.Option(min=0, help="Calls to keep, 0 for none.")] = 1000,
    customers: Annotated[int, typer.Option(min=1, help="Customers to remember.")] = 10_000,
    shop_url: Annotated[str | None, typer.Option(help="Where the web application leads back to.")] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SWITCH=VALUE",
            help="Another reading of the specification, such as refusal=201; may be given again.",
        ),
    ] = None,
    *,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Serve the network, too, unprotected.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Show the inspector in the browser.")] = False,
) -> None:
    """Run the sandbox on this machine until Ctrl-C.

    Example: loanasync sandbox --port 8080 --fault 500:0.1:after --state shop.sqlite --open
    """
    from loanasync.sandbox.__main__ import start  # noqa: PLC0415  (its server takes long to be loaded)

    start(
        host=host,
        port=port,
        shop_id=shop_id,
        auth_token=auth_token,
        dialect=None if dialect is None else dialect.value,
        state=state,
        faults=fault or (),
        seed=seed,
        journal=journal,
        customers=customers,
        shop_url=shop_url,
        allow_remote=allow_remote,
        readings=reading or (),
        open_page=open_page,
    )
