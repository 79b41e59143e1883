"""The command line application: its commands, their options and their help."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loanasync import __version__
from loanasync.cli.approve import approve, check, complete
from loanasync.cli.approve_many.command import approve_many, export
from loanasync.cli.dead_letters import app as dead_letters
from loanasync.cli.exit_codes import MEANINGS
from loanasync.cli.ledger.commands import app as ledger
from loanasync.cli.rows.orders import DialectName

# The groups of the sandbox's options in the help.
_ACCESS = "Address"
_SHOP = "Shop"
_BEHAVIOUR = "Behaviour"
_MEMORY = "Memory"

app: typer.Typer = typer.Typer(
    name="loanasync",
    help="Tools for the loan request approval service.",
    epilog=f"Exit codes: {'; '.join(f'{code:d} {text}' for code, text in MEANINGS.items())}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
    rich_markup_mode="markdown",  # paragraphs are wrapped to the width of the terminal
)


app.command()(check)
app.command()(approve)
app.command()(complete)
app.command("approve-many")(approve_many)
app.command()(export)
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
def demo(
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Export traces and metrics over OTLP/HTTP to the collector at this base URL. Sends the"
            " headers of OTEL_EXPORTER_OTLP_HEADERS.",
        ),
    ] = None,
) -> None:
    """Run complete loan requests against a sandbox, and print each step and its traces.

    Example: loanasync demo --otlp http://localhost:4318
    """
    # The OpenTelemetry SDK is slow to import, so other commands do not load it.
    from loanasync.cli.demo import ExportError, collector_at, export, run_demo  # noqa: PLC0415  (loads the SDK)

    try:
        collector = None if otlp is None else collector_at(otlp)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--otlp") from None
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    recording = asyncio.run(run_demo(console))
    if collector is not None:
        try:
            export(recording, collector, console)
        except ExportError as error:
            typer.echo(error, err=True)
            raise typer.Exit(1) from None


@app.command()
def sandbox(
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on.",
            rich_help_panel=_ACCESS,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on; 0 chooses a free one.",
            rich_help_panel=_ACCESS,
        ),
    ] = 0,
    shop_id: Annotated[
        str,
        typer.Option(
            help="Shop id that the sandbox accepts.",
            rich_help_panel=_SHOP,
        ),
    ] = "sandbox-shop",
    auth_token: Annotated[
        str,
        typer.Option(
            help="Token of the shop; any text.",
            rich_help_panel=_SHOP,
        ),
    ] = "sandbox-token",  # noqa: S107  (made up)
    dialect: Annotated[
        DialectName | None,
        typer.Option(
            help="Accept requests of this description only. By default both are accepted.",
            rich_help_panel=_BEHAVIOUR,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="SQLite file that keeps customers across restarts.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="Fault to inject: \\[operation=]words\\[:rate\\[:phase]], such as 500:0.1:after."
            " Can be repeated.",
            rich_help_panel=_BEHAVIOUR,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the random numbers for fault rates.",
            rich_help_panel=_BEHAVIOUR,
        ),
    ] = 0,
    journal: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of calls to keep in the journal; 0 for none.",
            rich_help_panel=_MEMORY,
        ),
    ] = 1000,
    customers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of customers to keep.",
            rich_help_panel=_MEMORY,
        ),
    ] = 10_000,
    shop_url: Annotated[
        str | None,
        typer.Option(
            help="URL of the shop to which the web application returns the customer.",
            rich_help_panel=_SHOP,
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SWITCH=VALUE",
            help="Use another reading of the specification, such as refusal=201. Can be repeated.",
            rich_help_panel=_BEHAVIOUR,
        ),
    ] = None,
    *,
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote",
            help="Accept connections from other machines. The sandbox has no protection.",
            rich_help_panel=_ACCESS,
        ),
    ] = False,
    open_page: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Open the inspector page in the browser.",
            rich_help_panel=_ACCESS,
        ),
    ] = False,
) -> None:
    """Run a sandbox of the service on this machine, until Ctrl-C.

    Example: loanasync sandbox --port 8080 --fault 500:0.1:after --state shop.sqlite --open
    """
    from loanasync.sandbox.__main__ import start  # noqa: PLC0415  (its server is slow to import)

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
