"""``loanasync approve-many``: its options, and how a run ends."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import frozen
from rich.console import Console

from loanasync import ConfigurationError, Dialect, LoanClient
from loanasync.cli._description import Description, dialect_of
from loanasync.cli._exit import Exit
from loanasync.cli._files import Finding, Source, Unreadable
from loanasync.cli._ledgers import UnusableError, ledger_at, name_of, policy_of, shop_of
from loanasync.cli._many import Asking, Ended, Limits, survey
from loanasync.cli._memory import Memory, NotesFile, Nothing, NotResumableError
from loanasync.cli._orders import FIELDS, Orders, checking_client
from loanasync.cli._remembered import Remembered
from loanasync.cli._results import STANDARD_OUTPUT, Appending, Results
from loanasync.cli._tables import Table
from loanasync.cli._told import Plan, plan_of, report_of, seconds_of, summary_of, ticking
from loanasync.ledger import DecisionLedger
from loanasync.ledger._keys import key_of
from loanasync.sandbox import Sandbox

__all__ = ["approve_many"]


@frozen(kw_only=True)
class _Wanted:
    """The options, but for those of the rows."""

    out: str | None
    ledger: str | None
    dead_letters: str | None
    report: Path | None
    limits: Limits
    dialect: Dialect
    skip_invalid: bool
    validate_only: bool
    dry_run: bool
    sandbox: bool


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
            help="Remember who was asked there: a file's path, or sqlite:///path.",
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
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="The summary as JSON.")] = None,
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
        Description, typer.Option(help="Which of the two descriptions is written.")
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
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Ask a sandbox that is started for it.")] = False,
) -> None:
    """Ask for the approval of every row of a file, each customer once.

    The service is that of LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN. The same command
    again goes on where it ended: who was asked for stands in the ledger, or in OUT and OUT.asked without one,
    and is not asked for again.

    Ends with 0 when all are decided (a refusal is a decision), 1 when rows failed, 2 when nothing was sent,
    3 when outcomes are unknown, 130 when it was interrupted.

    Example: loanasync approve-many orders.csv -o results.jsonl --euro --sandbox
    """
    console = Console(stderr=True)
    if ledger is not None and sandbox:
        told = "a ledger outlives the sandbox that is started for one command: give one of the two"
        raise typer.BadParameter(told, param_hint="--ledger")
    wanted = _Wanted(
        out=out,
        ledger=ledger,
        dead_letters=dead_letters,
        report=report,
        limits=Limits(
            concurrency=concurrency, rate=rate, canary=canary, max_errors=max_errors, deadline=deadline
        ),
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
            code = _run(wanted, orders, console)
    except Unreadable as error:
        _say(console, f"{rows if rows != '-' else 'standard input'}{error.where} {error}")
        code = Exit.NOTHING_SENT
    except (NotResumableError, ConfigurationError, UnusableError) as error:
        _say(console, str(error))
        code = Exit.NOTHING_SENT
    except OSError as error:
        _say(console, f"{error.filename or out}: {error.strerror}")
        code = Exit.NOTHING_SENT
    raise typer.Exit(code)


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, style="bold", highlight=False, markup=False, soft_wrap=True)


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


def _run(wanted: _Wanted, orders: Orders, console: Console) -> Exit:
    wrong = list(orders.wrong_with_columns())
    for finding in wrong:
        _tell(console, finding)
    if wrong:
        return Exit.NOTHING_SENT
    tell = partial(_tell, console)
    if wanted.validate_only:
        plan = survey(orders, Nothing(), tell)
        _say(console, f"{plan.rows:,} rows: {plan.new:,} can be sent, {plan.invalid:,} are wrong")
        return Exit.NOTHING_SENT if plan.invalid or not plan.rows else Exit.DECIDED
    if wanted.out is None and not wanted.dry_run:
        told = "say where results go: -o FILE, or -o - for standard output"
        raise typer.BadParameter(told, param_hint="-o")
    client, ledger = None, None
    if not wanted.sandbox and _needs_the_shop(wanted):
        ledger, options = _ledger(wanted)
        client = LoanClient.from_env(dialect=wanted.dialect, **options)
    with closing(_memory(wanted, client, ledger)) as memory:
        plan = survey(orders, memory, tell)
        if wanted.dry_run:
            console.print(plan_of(plan))
            return Exit.NOTHING_SENT if plan.invalid and not wanted.skip_invalid else Exit.DECIDED
        if not plan.rows or (plan.invalid and not wanted.skip_invalid):
            told = "there are no rows" if not plan.rows else "mend these rows, or give --skip-invalid"
            _say(console, f"nothing was sent: {told}")
            return Exit.NOTHING_SENT
        ended = asyncio.run(_ask(wanted, orders, memory, client, ledger, plan, console))
    return _conclude(wanted, plan, ended, console)


def _needs_the_shop(wanted: _Wanted) -> bool:
    """A plan for a file that was never asked for needs none."""
    has_begun = wanted.out is not None and Path(wanted.out).exists()
    return not wanted.dry_run or has_begun or wanted.ledger is not None


def _ledger(wanted: _Wanted) -> tuple[DecisionLedger | None, dict[str, Any]]:
    if wanted.ledger is None:
        return None, {}
    ledger = ledger_at(wanted.ledger, "empty" if wanted.dry_run else "made")
    return ledger, {"ledger": ledger, "ledger_policy": policy_of(os.environ)}


def _tell(console: Console, finding: Finding) -> None:
    console.print(str(finding), highlight=False, markup=False, soft_wrap=True)


def _memory(wanted: _Wanted, client: LoanClient | None, ledger: DecisionLedger | None) -> Memory:
    results = Nothing()
    has_begun = wanted.out is not None and Path(wanted.out).exists()
    if (
        wanted.out not in (None, STANDARD_OUTPUT)
        and _is_file(wanted.out)
        and (has_begun or not wanted.dry_run)
    ):
        service = "sandbox" if client is None else repr(client)
        results = NotesFile(wanted.out, service, None if wanted.ledger is None else name_of(wanted.ledger))
    if ledger is None:
        return results
    return Remembered(ledger, partial(key_of, shop_of(os.environ), policy=policy_of(os.environ)), results)


def _is_file(path: str) -> bool:
    return Path(path).is_file() or not Path(path).exists()


async def _ask(
    wanted: _Wanted,
    orders: Orders,
    memory: Memory,
    client: LoanClient | None,
    ledger: DecisionLedger | None,
    plan: Plan,
    console: Console,
) -> Ended:
    assert wanted.out is not None  # noqa: S101  (for the type checkers)
    async with AsyncExitStack() as stack:
        if ledger is not None:
            stack.push_async_callback(ledger.aclose)  # after the client, which writes to it until then
        if client is None:
            sandbox = await stack.enter_async_context(Sandbox(customers=plan.rows))
            client = sandbox.client(dialect=wanted.dialect)
        await stack.enter_async_context(client)
        results = stack.enter_context(closing(Results(wanted.out)))
        letters = None
        if wanted.dead_letters is not None:
            letters = stack.enter_context(closing(Appending(wanted.dead_letters, afresh=orders.table.head)))
        tick = stack.enter_context(ticking(console, plan.to_come))
        made = wanted.sandbox
        asking = Asking(client, orders, memory, results, letters, wanted.limits, create=made, console=console)
        return await asking.run(tick)


def _conclude(wanted: _Wanted, plan: Plan, ended: Ended, console: Console) -> Exit:
    summary = ended.summary
    left = plan.to_come - summary.rows
    facts: dict[str, Any] = {"invalid": ended.invalid, "before": plan, "unsent": left}
    console.print(summary_of(summary, **facts))
    _say(console, seconds_of(summary))
    code = _exit_of(plan, ended, left)
    if wanted.report is not None:
        report = report_of(summary, **facts) | {
            "interrupted": ended.interrupted or ended.stopped or None,
            "unknown_lines": sorted(ended.unknown_lines),
            "exit_code": int(code),
        }
        wanted.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for sentence in (ended.interrupted, ended.stopped):
        if sentence:
            _say(console, f"{sentence}; the same command goes on" if left else sentence)
    if ended.unrecorded:
        told = f"{ended.unrecorded:,} decisions are in the results, and the ledger could not be written"
        _say(console, f"{told}: loanasync ledger import-orphans, once it can")
    if summary.unknown or plan.earlier("unknown"):
        _say(console, "outcomes are unknown: settle them with the service; they are not asked for again")
    return code


def _exit_of(plan: Plan, ended: Ended, left: int) -> Exit:
    summary = ended.summary
    if ended.interrupted and (left or summary.unknown):
        return Exit.INTERRUPTED
    if summary.unknown or plan.earlier("unknown"):
        return Exit.UNKNOWN
    failed = summary.rejected + summary.error + ended.invalid + plan.earlier("failed") + left
    return Exit.FAILED if failed else Exit.DECIDED
