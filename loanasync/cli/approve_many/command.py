"""``loanasync approve-many``: its options."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from loanasync import ConfigurationError
from loanasync.cli.approve_many.loop import RunOptions
from loanasync.cli.approve_many.resume import NotResumableError
from loanasync.cli.approve_many.run import run
from loanasync.cli.console import console as told_to
from loanasync.cli.console import say
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import WITHOUT_LEDGER, UnusableError
from loanasync.cli.rows.append import STANDARD_OUTPUT
from loanasync.cli.rows.orders import FIELDS, Description, Orders, checking_client, dialect_of
from loanasync.cli.rows.parse import Table
from loanasync.cli.rows.source import Source, Unreadable


def approve_many(
    rows: Annotated[
        str, typer.Argument(metavar="IN", help="JSON lines or CSV, also .gz; - is what is piped in.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="OUT",
            help="Results as JSON lines, one for each row; - is standard output.",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="LOANASYNC_LEDGER",
            help="Ledger of the decisions instead of OUT.ledger: a file's path, redis://...?prefix=... or"
            " postgresql://...?table=...",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=NAME", help="The column or member of a field; may be given again."),
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Of the file, if not UTF-8, such as cp1252.")] = None,
    dead_letters: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rows that may be given again, as they came.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The summary as JSON; - is standard output.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Calls at once.")] = 64,
    rate: Annotated[float | None, typer.Option(help="Calls that begin in a second.")] = None,
    canary: Annotated[
        int, typer.Option(min=0, metavar="N", help="N rows first, the others only if all these are decided.")
    ] = 0,
    max_errors: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop when N rows have failed.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Send no further row after so many seconds.")
    ] = None,
    dialect: Annotated[
        Description, typer.Option(help="Name of the street number in the request.")
    ] = Description.STREET_NUMBER,
    *,
    euro: Annotated[
        bool, typer.Option("--euro", help="Amounts are euro, 450,50; else euro cents, 45050.")
    ] = False,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Pass over columns that are no field.")
    ] = False,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Send the good rows of a file that has bad ones.")
    ] = False,
    validate_only: Annotated[
        bool,
        typer.Option("--validate-only", help="Name all that is wrong, and send nothing."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, send nothing.")] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Ask a sandbox that is started for it, without a ledger.")
    ] = False,
) -> None:
    """Ask for the approval of every row of a file, each customer once.

    The service is that of LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN. The same command
    again continues where it ended: a customer who was requested is in the ledger, by default OUT.ledger, and
    is not requested again.

    Ends with 0 when all are decided (a refusal is a decision), 1 when rows failed, 2 when nothing was sent,
    3 when outcomes are unknown, 130 when it was interrupted.

    Example: loanasync approve-many orders.csv -o results.jsonl --euro --sandbox
    """
    console = told_to()
    if deadline is not None and not deadline > 0:
        raise typer.BadParameter("must be a number of seconds above 0", param_hint="--deadline")
    own = () if out is None else (f"{out}.ledger", f"{out}.resume")
    _must_differ(rows, out, *own, dead_letters, None if report is None else str(report), ledger)
    if sandbox and ledger is not None:
        say(WITHOUT_LEDGER, "bold")
    wanted = RunOptions(
        out=out,
        ledger=None if sandbox else ledger,
        dead_letters=dead_letters,
        report=report,
        concurrency=concurrency,
        rate=rate,
        canary=canary,
        max_errors=max_errors,
        deadline=deadline,
        dialect=dialect_of(dialect),
        skip_invalid=skip_invalid,
        validate_only=validate_only,
        dry_run=dry_run,
        sandbox=sandbox,
    )
    try:
        named = _named(column or ())
        with closing(Source(rows, encoding)) as source:
            table = Table(source)
            orders = Orders(table, checking_client(wanted.dialect), named, euro, ignore_unknown)
            code = run(wanted, orders, console)
    except Unreadable as error:
        say(f"{rows if rows != '-' else 'standard input'}{error.where} {error}", "bold")
        code = Exit.NOTHING_SENT
    except (NotResumableError, ConfigurationError, UnusableError) as error:
        say(str(error), "bold")
        code = Exit.NOTHING_SENT
    except OSError as error:
        say(f"{error.filename or out}: {error.strerror}", "bold")
        code = Exit.NOTHING_SENT
    raise typer.Exit(code)


def _must_differ(rows: str, *names: str | None) -> None:
    """What is written must not be what is read, or written by something else."""
    given = [name for name in names if name is not None]
    files = [_real(name) for name in given if _is_file(name)]
    files += [_real(rows)] if _is_file(rows) else []
    for file in files:
        if files.count(file) > 1:
            raise typer.BadParameter(f"{file} is named for two things, and can be one only")
    if given.count(STANDARD_OUTPUT) > 1:
        raise typer.BadParameter("standard output is named for two things, and can be one only")


def _is_file(name: str) -> bool:
    """Or may become one; a device can be named twice."""
    return name != STANDARD_OUTPUT and (Path(name).is_file() or not Path(name).exists())


def _real(name: str) -> str:
    return str(Path(name.removeprefix("sqlite:///")).resolve())


def _named(columns: Sequence[str]) -> dict[str, str]:
    named = {}
    for each in columns:
        name, found, column = each.partition("=")
        if not found or not column:
            raise typer.BadParameter(f"{each}: must be FIELD=NAME", param_hint="--column")
        if name not in FIELDS:
            told = f"{name} is no field; these are: {', '.join(sorted(FIELDS))}"
            raise typer.BadParameter(told, param_hint="--column")
        named[name] = column
    return named
