"""``loanasync approve-many``: its options."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from loanasync._settings import Dialect
from loanasync.bulk import FileRow, InputError, InputRows
from loanasync.cli.approve_many.files import (
    STANDARD_OUTPUT,
    LockedError,
    Output,
    check_distinct_files,
    files_of_ledger,
    write_whole,
)
from loanasync.cli.approve_many.input import rows_of
from loanasync.cli.approve_many.report import Causes
from loanasync.cli.approve_many.results import rejected_lines
from loanasync.cli.console import counted, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import LEDGER_HELP, UnusableError
from loanasync.errors import ConfigurationError, LedgerMismatchError, LoanError

# The groups of options in the help.
_SERVICE = "Service and ledger"
_INPUT = "Reading of the rows"
_CHECK = "Checks"
_OUTPUT = "Output"
_LIMITS = "Speed and limits"


class DialectName(StrEnum):
    """The values of ``--dialect``: the name of the street number in each description of the call."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def _option(group: str, text: str, *names: str, **settings: Any) -> Any:  # noqa: ANN401  (its type depends on typer)
    """Return an option in a group of the help."""
    return typer.Option(*names, help=text, rich_help_panel=group, **settings)


_FILE: dict[str, Any] = {"metavar": "FILE"}
_COUNT: dict[str, Any] = {"metavar": "N"}
_IN = "File of rows: JSON lines or CSV; - is standard input."
_OUT = "Results, one line for each row: CSV if its name ends in .csv, else JSON lines; - is standard output."
_LEDGER: dict[str, Any] = {"metavar": "NAME", "envvar": "LOANASYNC_LEDGER"}
_NAME = (
    f"The ledger: {LEDGER_HELP}. Default: a file for each service and shop in"
    " ~/.local/state/loanasync/ledgers."
)
_MAPPING = "TOML file of column names, columns to ignore, and members of a creation."
_REJECTED = "File for rejected and failed rows, with the reason."
_STOP_AFTER = "Stop after N rows in sequence without a decision; 0: never."
_RATE = "Rows started per second; with --create, each has two calls."
_DIALECT = "The description that the service follows, by its street number field."
_EURO = "Amounts are in euro (450,50), not in euro cents (45050)."
_CREATE = "Create each loan request first, with fiscalCode and the members of --mapping."
_DRY_RUN = "Print what would be sent; send nothing."
_ONE = "A customer has one approval for ever, so rows need no column order_id."


def approve_many(
    rows: Annotated[str, typer.Argument(metavar="IN", help=_IN)],
    out: Annotated[str | None, _option(_OUTPUT, _OUT, "-o", "--out", metavar="OUT")] = None,
    ledger: Annotated[str | None, _option(_SERVICE, _NAME, **_LEDGER)] = None,
    mapping: Annotated[str | None, _option(_INPUT, _MAPPING, **_FILE)] = None,
    rejected: Annotated[str | None, _option(_OUTPUT, _REJECTED, "--rejected", **_FILE)] = None,
    concurrency: Annotated[int, _option(_LIMITS, "Maximum number of calls in progress.", min=1)] = 64,
    rate: Annotated[float | None, _option(_LIMITS, _RATE)] = None,
    stop_after: Annotated[int, _option(_LIMITS, _STOP_AFTER, min=0, **_COUNT)] = 20,
    dialect: Annotated[DialectName, _option(_SERVICE, _DIALECT)] = DialectName.STREET_NUMBER,
    encoding: Annotated[str, _option(_INPUT, "Text encoding of IN.", metavar="NAME")] = "utf-8",
    *,
    euro: Annotated[bool, _option(_INPUT, _EURO, "--euro")] = False,
    one_per_customer: Annotated[bool, _option(_INPUT, _ONE, "--one-per-customer")] = False,
    skip_invalid: Annotated[
        bool, _option(_CHECK, "Send valid rows although others are invalid.", "--skip-invalid")
    ] = False,
    dry_run: Annotated[bool, _option(_CHECK, _DRY_RUN, "--dry-run")] = False,
    create: Annotated[bool, _option(_SERVICE, _CREATE, "--create")] = False,
) -> None:
    """Request the approval of every row of a file, each order of a customer once.

    LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN name the service. Run the same command
    again at any time: an approval that the ledger knows is not requested again. Results are
    written at the end.

    The first Ctrl-C sends no further row and waits for calls in progress. The second one gives them up, as
    unknown.

    Ends with 1 if rows or files failed, else with 3 if outcomes are unknown.

    Example: loanasync approve-many orders.csv -o results.jsonl --euro
    """
    # They load aiohttp, which takes longer than most other commands.
    from loanasync.cli.approve_many.plan import print_plan  # noqa: PLC0415
    from loanasync.cli.approve_many.run import run  # noqa: PLC0415
    from loanasync.cli.approve_many.session import RunOptions  # noqa: PLC0415

    if rate is not None and not (rate > 0 and isfinite(rate)):
        raise typer.BadParameter("must be a number of rows per second greater than 0", param_hint="--rate")
    if out is None and not dry_run:
        raise typer.BadParameter(
            "name the results file: -o FILE, or -o - for standard output", param_hint="-o"
        )
    results = () if out is None else Output(out).files
    check_distinct_files((*results, rejected, *files_of_ledger(ledger)), (rows, mapping))
    with _errors(out, rejected):
        required = () if one_per_customer else ("order_id",)
        orders, members = rows_of(rows, mapping, encoding=encoding, euro=euro, required=required)
        options = RunOptions(
            out=Output(out or STANDARD_OUTPUT),
            ledger=ledger,
            members=members if create else None,
            rejected=rejected,
            dialect=getattr(Dialect, dialect)(),
            limits={"concurrency": concurrency, "rate": rate, "stop_after": stop_after or None},
        )
        for each in (out, rejected):
            _check_folder(each)
        total, invalid, cents = _check_rows(orders, rejected, one_per_customer=one_per_customer)
        can_send = total > 0 and (skip_invalid or not invalid)
        if dry_run:
            code = print_plan(options, orders)
            if rejected is not None:
                _write_rejected(rejected, orders)
            raise typer.Exit(code if can_send else Exit.NOTHING_SENT)
        if can_send:
            raise typer.Exit(run(options, orders, total, cents))
        if rejected is not None:
            _write_rejected(rejected, orders)
        advice = "correct these rows, or add --skip-invalid to send the valid ones"
        print_message(f"nothing was sent: {advice if total else 'the file contains no rows'}")
        raise typer.Exit(Exit.NOTHING_SENT)


def _check_rows(orders: InputRows, rejected: str | None, *, one_per_customer: bool) -> tuple[int, int, int]:
    """Print the problems of the rows. Return the number of rows and of invalid ones, and the sum in cents."""
    problems, total, invalid, cents, without_order = Causes(), 0, 0, 0, 0
    for order in orders:
        total += 1
        for each in order.problems:
            problems.add(", ".join(filter(None, (each.field, each.column))), each.message, each.line)
        without_order += any(each.field == "order_id" for each in order.problems)
        invalid += bool(order.problems)
        cents += 0 if order.problems else order.request.amount
        if one_per_customer and order.order_id:
            raise typer.BadParameter("the rows have orders: leave it out", param_hint="--one-per-customer")
    if not problems.print():
        number = counted(problems.count, "problem")
        advice = f"to list all {number} with their rows, add --rejected FILE"
        print_message(
            f"all {number} with their rows are listed in {rejected}" if rejected is not None else advice
        )
    if 0 < without_order == total:  # else a few rows are to be corrected
        print_message(_NO_ORDER)
    return total, invalid, cents


def _write_rejected(path: str, orders: InputRows) -> None:
    def reason_of(_: int, row: FileRow) -> str:
        return "; ".join(f"{each.field}: {each.message}" for each in row.problems)

    write_whole(path, rejected_lines(orders, reason_of))


def _check_folder(path: str | None) -> None:
    """Raise an error if a file cannot be written, before the rows are checked."""
    if path not in (None, STANDARD_OUTPUT) and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)  # the message says which


_NO_ORDER = (
    "each row needs the number of its order, since the ledger outlives the file: add a column order_id. If "
    "each customer has one approval for ever, pass --one-per-customer"
)


@contextmanager
def _errors(*names: str | None) -> Iterator[None]:
    """Report an error that prevents the run, and exit with its code.

    Args:
        names: Paths of the files that the run writes, the results first.
    """
    try:
        yield
    except (InputError, LockedError, ConfigurationError, UnusableError, LoanError, OSError) as error:
        print_message(_message_of(error, *names))
        if isinstance(error, InputError) and any(each.field == "order_id" for each in error.problems):
            print_message(_NO_ORDER)
        code = Exit.LOCKED if isinstance(error, LockedError) else Exit.NOTHING_SENT
        raise typer.Exit(code) from None


def _message_of(error: Exception, *names: str | None) -> str:
    """Return a message that names a file or a ledger as the user did, and what to do."""
    if isinstance(error, LedgerMismatchError):
        return f"the ledger {error.ledger} {error.reason}"
    if not isinstance(error, OSError):
        return str(error)
    file = str(error.filename or names[0])
    # OUT.ledger is in the folder of OUT.
    name = max((each for each in names if each and file.startswith(each)), key=len, default=file)
    folder = Path(name).parent
    if not folder.is_dir():
        return f"{name}: the folder {folder} {'is a file' if folder.exists() else 'does not exist'}"
    if Path(name).is_dir():
        return f"{name}: this is a directory; name a file"
    return f"{name}: {file} cannot be written ({error.strerror})"
