"""``loanasync approve-many``: its options."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from loanasync import ConfigurationError
from loanasync.cli.approve_many.loop import RunOptions
from loanasync.cli.approve_many.resume import NotResumableError
from loanasync.cli.approve_many.run import run
from loanasync.cli.console import print_message, stderr_console
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import (
    LEDGER_HELP,
    SANDBOX_WITHOUT_LEDGER,
    SERVICE_GROUP,
    GroupedCipherName,
    GroupedOrphanFolder,
    UnusableError,
)
from loanasync.cli.rows.append import STANDARD_OUTPUT
from loanasync.cli.rows.mapping import field_mapping
from loanasync.cli.rows.orders import DialectName, Orders, dialect_of, offline_client
from loanasync.cli.rows.parse import Table
from loanasync.cli.rows.source import Source, UnreadableError

# The groups of options in the help.
_INPUT = "Reading of the rows"
_CHECK = "Checks"
_OUTPUT = "Output"
_LIMITS = "Speed and limits"


def approve_many(
    rows: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="File of rows: JSON lines or CSV, also compressed (.gz); - is standard input."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="OUT",
            help="Results file, one line for each row: CSV if its name ends in .csv, otherwise JSON lines;"
            " - is standard output.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="LOANASYNC_LEDGER",
            help=f"Ledger to use instead of OUT.ledger: {LEDGER_HELP}.",
            rich_help_panel=SERVICE_GROUP,
        ),
    ] = None,
    cipher: GroupedCipherName = None,
    orphan_folder: GroupedOrphanFolder = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=NAME",
            help="Read FIELD from the column or JSON member NAME. Can be repeated.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with the names of columns, and with values to replace or to add. --column wins.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            help="Encoding of the file if it is not UTF-8, such as cp1252.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for rows that may be sent again after a correction, with line and reason.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the summary as JSON to this file; - is standard output.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    problems: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="List all problems of the rows in this file, one per line; - is standard output.",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of calls in progress.",
            rich_help_panel=_LIMITS,
        ),
    ] = 64,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Maximum number of calls started per second.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    canary: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Send N rows first; send the others only if all N are decided.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0,
    max_errors: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Stop when N rows have failed. Calls in progress finish, so some more rows may fail. Without"
            " this option, the run stops if its first 20 rows all fail for the same cause.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Send no further row after this number of seconds. Calls in progress finish.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    dialect: Annotated[
        DialectName,
        typer.Option(
            help="Which description the service follows, named after its street number field.",
            rich_help_panel=SERVICE_GROUP,
        ),
    ] = DialectName.STREET_NUMBER,
    *,
    euro: Annotated[
        bool,
        typer.Option(
            "--euro",
            help="Amounts are in euro (450,50) instead of euro cents (45050).",
            rich_help_panel=_INPUT,
        ),
    ] = False,
    ignore_unknown: Annotated[
        bool,
        typer.Option(
            "--ignore-unknown",
            help="Skip unknown columns and JSON members.",
            rich_help_panel=_INPUT,
        ),
    ] = False,
    skip_invalid: Annotated[
        bool,
        typer.Option(
            "--skip-invalid",
            help="Send the valid rows of a file that has invalid ones.",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    validate_only: Annotated[
        bool,
        typer.Option(
            "--validate-only",
            help="List all problems of the file and send nothing. Needs no service.",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the plan: what would be sent. Send nothing.",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox",
            help="Start a sandbox and use it as the service, without a ledger.",
            rich_help_panel=SERVICE_GROUP,
        ),
    ] = False,
) -> None:
    """Request the approval of every row of a file, each customer once.

    The service is configured by LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN. Run the
    same command again to resume. Requested customers are recorded in the ledger, by default OUT.ledger, and
    are not requested again.

    The first Ctrl-C sends no further row and waits for the calls in progress. The second one cancels them:
    their outcomes become unknown.

    Exit codes: 0 all rows are decided (a refusal is a decision), 1 rows failed, 2 nothing was sent,
    3 outcomes are unknown, 124 --deadline has passed, 130 interrupted.

    Example: loanasync approve-many orders.csv -o results.jsonl --euro --sandbox
    """
    if deadline is not None and not deadline > 0:
        raise typer.BadParameter("must be a number of seconds greater than 0", param_hint="--deadline")
    check_rate(rate)
    own_files = () if out is None else (f"{out}.ledger", f"{out}.resume")
    letters = () if dead_letters is None else (dead_letters, f"{dead_letters}.old")
    check_distinct_files(
        rows, out, *own_files, *letters, problems, None if report is None else str(report), ledger
    )
    if sandbox and ledger is not None:
        print_message(SANDBOX_WITHOUT_LEDGER, "bold")
    options = RunOptions(
        out=out,
        ledger=None if sandbox else ledger,
        cipher=cipher,
        orphan_folder=orphan_folder,
        dead_letters=dead_letters,
        report=report,
        problems=problems,
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
    fields = field_mapping(column or (), mapping)
    with nothing_sent(rows, out, dead_letters, problems, report), closing(Source(rows, encoding)) as source:
        orders = Orders(Table(source), offline_client(options.dialect), fields, euro, ignore_unknown)
        code = run(options, orders, stderr_console())
    raise typer.Exit(code)


def check_rate(rate: float | None) -> None:
    """Raise an error if the value of ``--rate`` is not a rate."""
    if rate is not None and not (rate > 0 and isfinite(rate)):
        raise typer.BadParameter("must be a number of calls per second greater than 0", param_hint="--rate")


@contextmanager
def nothing_sent(rows: str, *names: str | Path | None) -> Iterator[None]:
    """Report an error that prevents the run, and exit with code 2.

    Args:
        rows: Path of the rows.
        names: Paths of the files that the run writes, the results first.
    """
    try:
        yield
    except UnreadableError as error:
        message = f"{'standard input' if rows == '-' else rows}: {error.location}{error}"
    except (NotResumableError, ConfigurationError, UnusableError) as error:
        message = str(error)
    except OSError as error:
        message = _file_message(error, *names)
    else:
        return
    print_message(message, "bold")
    raise typer.Exit(Exit.NOTHING_SENT)


def _file_message(error: OSError, *names: str | Path | None) -> str:
    """Return a message that names a file as the user did, and what to do."""
    file = str(error.filename or names[0])
    # OUT.ledger and OUT.resume are in the folder of OUT.
    given = [str(name) for name in names if name is not None and file.startswith(str(name))]
    name = max(given, key=len, default=file)
    folder = Path(name).parent
    if not folder.is_dir():
        return f"{name}: the folder {folder} {'is a file' if folder.exists() else 'does not exist'}"
    if Path(name).is_dir():
        return f"{name}: this is a directory; name a file"
    if name != file:
        return f"{name}: {file} beside it cannot be used ({error.strerror})"
    return f"{name}: cannot be written ({error.strerror})"


def check_distinct_files(rows: str, *names: str | None) -> None:
    """Raise an error if a file would be used for two purposes, such as the rows and the results."""
    given = [name for name in names if name is not None]
    files: dict[str, str] = {}  # the name that the user gave, by path
    for name in filter(_is_file, [rows, *given]):
        if (path := _resolved(name)) in files:
            first = files[path]
            named = f"'{name}'" if name == first else f"'{first}' and '{name}' are one file, which"
            raise typer.BadParameter(f"{named} is used for two purposes; name two different files")
        files[path] = name
    if given.count(STANDARD_OUTPUT) > 1:
        raise typer.BadParameter("standard output is used for two purposes; name a file for one of them")


def _is_file(name: str) -> bool:
    """Return True for a file, or a path where one can be created. A device may be used twice."""
    return name != STANDARD_OUTPUT and (Path(name).is_file() or not Path(name).exists())


def _resolved(name: str) -> str:
    return str(Path(name.removeprefix("sqlite:///")).resolve())
