"""``loanasync approve-many`` and ``loanasync export``: their options."""

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from loanasync import ConfigurationError, LedgerMismatchError
from loanasync.bulk import InputError
from loanasync.cli.approve_many.export import export_job
from loanasync.cli.approve_many.job import Kind
from loanasync.cli.approve_many.plan import check_rows
from loanasync.cli.approve_many.problems import ProblemList
from loanasync.cli.approve_many.rejected import write_invalid
from loanasync.cli.approve_many.report import exit_code_of, table_of
from loanasync.cli.approve_many.run import RunOptions, plan, run
from loanasync.cli.console import counted, print_message, stderr_console
from loanasync.cli.exit_codes import Exit
from loanasync.cli.files import STANDARD_OUTPUT, check_distinct_files
from loanasync.cli.input import DialectName, Reading, named_columns
from loanasync.cli.ledger.open import LEDGER_HELP, SANDBOX_WITHOUT_LEDGER, SERVICE_GROUP, UnusableError

# The groups of options in the help.
_INPUT = "Reading of the rows"
_CHECK = "Checks"
_OUTPUT = "Output"
_LIMITS = "Speed and limits"


def _option(group: str, text: str, *names: str, **settings: Any) -> Any:  # noqa: ANN401  (its type depends on typer)
    """Return an option in a group of the help."""
    return typer.Option(*names, help=text, rich_help_panel=group, **settings)


_FILE: dict[str, Any] = {"metavar": "FILE"}
_COUNT: dict[str, Any] = {"metavar": "N"}
_IN = "File of rows: JSON lines or CSV; - is standard input."
_OUT = (
    "Results file, one line for each row: CSV if its name ends in .csv, otherwise JSON lines;"
    " - is standard output."
)
_LEDGER: dict[str, Any] = {"metavar": "NAME", "envvar": "LOANASYNC_LEDGER"}
_NAME = f"Ledger to use instead of OUT.ledger: {LEDGER_HELP}."
_MEMBER = "With --create: send the column COLUMN as the member NAME. Can be repeated."
_MAPPING = "TOML file with the columns of fields that have other names, and the columns to ignore."
_ENCODING = "Text encoding of IN."
_REJECTED = "File for rows that may be sent again after a correction, with line and reason."
_REPORT = "Write the summary as JSON to this file; - is standard output."
_STOP_AFTER = "Stop after N rows in sequence without a decision; 0: never. Calls in progress finish."
_RATE = "Maximum number of rows started per second. With --create, a row has two calls."
_DEADLINE = "Send no further row after this number of seconds. Calls in progress finish."
_DIALECT = "Which description the service follows, named after its street number field."
_EURO = "Amounts are in euro (450,50) instead of euro cents (45050)."
_CREATE = "Create each loan request first, with the member fiscalCode and those of --member."
_SANDBOX = "Start a sandbox and use it as the service. The requests are created."
_VALIDATE = "List all problems of the file and send nothing. Needs no service."

RejectedFile: TypeAlias = Annotated[str | None, _option(_OUTPUT, _REJECTED, "--rejected", **_FILE)]


def approve_many(
    rows: Annotated[str, typer.Argument(metavar="IN", help=_IN)],
    out: Annotated[str | None, _option(_OUTPUT, _OUT, "-o", "--out", metavar="OUT")] = None,
    ledger: Annotated[str | None, _option(SERVICE_GROUP, _NAME, **_LEDGER)] = None,
    member: Annotated[list[str] | None, _option(SERVICE_GROUP, _MEMBER, metavar="NAME=COLUMN")] = None,
    mapping: Annotated[str | None, _option(_INPUT, _MAPPING, **_FILE)] = None,
    rejected: RejectedFile = None,
    report: Annotated[str | None, _option(_OUTPUT, _REPORT, **_FILE)] = None,
    concurrency: Annotated[int, _option(_LIMITS, "Maximum number of calls in progress.", min=1)] = 64,
    rate: Annotated[float | None, _option(_LIMITS, _RATE)] = None,
    stop_after: Annotated[int, _option(_LIMITS, _STOP_AFTER, min=0, **_COUNT)] = 20,
    deadline: Annotated[float | None, _option(_LIMITS, _DEADLINE, metavar="SECONDS")] = None,
    dialect: Annotated[DialectName, _option(SERVICE_GROUP, _DIALECT)] = DialectName.STREET_NUMBER,
    encoding: Annotated[str, _option(_INPUT, _ENCODING, metavar="NAME")] = "utf-8",
    *,
    euro: Annotated[bool, _option(_INPUT, _EURO, "--euro")] = False,
    skip_invalid: Annotated[
        bool, _option(_CHECK, "Send the valid rows of a file that has invalid ones.", "--skip-invalid")
    ] = False,
    validate_only: Annotated[bool, _option(_CHECK, _VALIDATE, "--validate-only")] = False,
    dry_run: Annotated[
        bool, _option(_CHECK, "Show the plan: what would be sent. Send nothing.", "--dry-run")
    ] = False,
    create: Annotated[bool, _option(SERVICE_GROUP, _CREATE, "--create")] = False,
    sandbox: Annotated[bool, _option(SERVICE_GROUP, _SANDBOX, "--sandbox")] = False,
) -> None:
    """Request the approval of every row of a file, each customer once.

    The service is configured by LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN. The job file
    OUT.ledger records each row and, without --ledger, each requested customer. Run the same command again to
    resume: no customer is requested twice. The results are written when the run ends, or by
    `loanasync export`.

    The first Ctrl-C sends no further row and waits for the calls in progress. The second one cancels them:
    their outcomes become unknown.

    Exit codes: 0 all rows are decided (a refusal is a decision), 1 rows or files failed, 2 nothing was sent,
    3 outcomes are unknown, 124 --deadline has passed, 130 interrupted.

    Example: loanasync approve-many orders.csv -o results.jsonl --euro --sandbox
    """
    if deadline is not None and not deadline > 0:
        raise typer.BadParameter("must be a number of seconds greater than 0", param_hint="--deadline")
    _check_rate(rate)
    job = () if out is None else (f"{out}.ledger",)
    letters = () if rejected is None else (rejected, f"{rejected}.old")
    check_distinct_files((out, *job, *letters, report, ledger), (rows, mapping))
    if sandbox and ledger is not None:
        print_message(SANDBOX_WITHOUT_LEDGER, "bold")
    options = RunOptions(
        out=out,
        ledger=None if sandbox else ledger,
        sandbox=sandbox,
        members=_members(member or ()) if create or sandbox else None,
        rejected=rejected,
        report=report,
        deadline=deadline,
        limits={"concurrency": concurrency, "rate": rate, "stop_after": stop_after or None},
    )
    ignore = tuple(_members(member or ()).values())
    reading = Reading(rows, mapping, encoding, euro, dialect, ignore)
    with _nothing_sent(out, rejected, report):
        orders = reading.rows()
        if not validate_only:
            _check_results(out, is_plan=dry_run)
        counts = check_rows(orders, rejected)
        invalid = counts.rows[Kind.REFUSED_LOCALLY]
        can_send = counts.total > 0 and (skip_invalid or not invalid)
        if rejected is not None and (validate_only or dry_run or not can_send):
            write_invalid(rejected, orders)
        if validate_only:
            valid = counts.total - invalid
            print_message(f"{counted(counts.total, 'row')}: {valid:,} valid, {invalid:,} invalid", "bold")
            can_send = can_send and not invalid
        elif dry_run:
            planned = plan(options, orders) if options.has_begun else counts
            stderr_console().print(table_of(planned, "plan"))
        elif can_send:
            raise typer.Exit(run(options, reading, orders))
        else:
            advice = "correct these rows, or add --skip-invalid to send the valid ones"
            advice = advice if counts.total else "the file contains no rows"
            print_message(f"nothing was sent: {advice}", "bold")
    raise typer.Exit(Exit.DECIDED if can_send else Exit.NOTHING_SENT)


def _check_results(out: str | None, *, is_plan: bool) -> None:
    """Raise an error if the results cannot be written, before the rows are checked."""
    if out is None and not is_plan:
        raise typer.BadParameter(
            "name the results file: -o FILE, or -o - for standard output", param_hint="-o"
        )
    if out not in (None, STANDARD_OUTPUT) and (Path(out).is_dir() or not Path(out).parent.is_dir()):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), out)  # the message says which


def export(
    job: Annotated[str, typer.Argument(metavar="OUT.ledger", help="The job file of approve-many.")],
    out: Annotated[
        str | None, _option(_OUTPUT, "Results file, by default OUT; - is standard output.", "-o", "--out")
    ] = None,
    ledger: Annotated[
        str | None, _option(SERVICE_GROUP, "Ledger of the job, if it is not the job file.", **_LEDGER)
    ] = None,
    rejected: RejectedFile = None,
) -> None:
    """Write the results of a job, with all decisions that its ledger has by now. Send nothing.

    It may be called at any time, also while the job runs or after it was killed. It prints the counts of all
    rows. The exit codes are those of approve-many; a call in progress is an unknown outcome.

    Example: loanasync export results.jsonl.ledger
    """
    results = job.removesuffix(".ledger") if out is None else out
    check_distinct_files((results, rejected), (job,))
    with _nothing_sent(results, rejected):
        counts = export_job(job, results, ledger, rejected)
        stderr_console().print(table_of(counts, "results"))
        raise typer.Exit(exit_code_of(counts))


def _members(options: Sequence[str]) -> dict[str, str]:
    """Return the column by member of the body of a creation."""
    members = named_columns(options, "--member", "NAME=COLUMN")
    if "fiscalCode" in members:
        raise typer.BadParameter("is always sent", param_hint="--member")
    return members


def _check_rate(rate: float | None) -> None:
    """Raise an error if the value of ``--rate`` is not a rate."""
    if rate is not None and not (rate > 0 and isfinite(rate)):
        raise typer.BadParameter("must be a number of rows per second greater than 0", param_hint="--rate")


@contextmanager
def _nothing_sent(*names: str | None) -> Iterator[None]:
    """Report an error that prevents the run, and exit with code 2.

    Args:
        names: Paths of the files that the run writes, the results first.
    """
    try:
        yield
    except InputError as error:
        problems = ProblemList()
        problems.add(error.problems)
        problems.print()
        raise typer.Exit(Exit.NOTHING_SENT) from None
    except (ConfigurationError, UnusableError) as error:
        message = str(error)
    except LedgerMismatchError as error:
        message = f"the ledger {error.ledger} {error.reason}"
    except sqlite3.Error as error:
        message = f"{names[0]}.ledger cannot be used ({error})"
    except OSError as error:
        message = _file_message(error, *names)
    else:
        return
    print_message(message, "bold")
    raise typer.Exit(Exit.NOTHING_SENT)


def _file_message(error: OSError, *names: str | Path | None) -> str:
    """Return a message that names a file as the user did, and what to do."""
    file = str(error.filename or names[0])
    # OUT.ledger is in the folder of OUT.
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
