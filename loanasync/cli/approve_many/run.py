"""One run of approve-many: plan the rows, request the approvals, and report the result."""

import asyncio
import errno
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import typer
from attrs import frozen
from rich.console import Console

from loanasync import LoanClient
from loanasync.cli.approve_many.final_lines import keep_final_lines_if_possible
from loanasync.cli.approve_many.loop import RequestLoop, RunOptions, RunResult
from loanasync.cli.approve_many.problems import ProblemList, known_rows
from loanasync.cli.approve_many.report import (
    Plan,
    duration_line,
    euro,
    failure_lines,
    plan_table,
    progress_display,
    report_members,
    summary_table,
)
from loanasync.cli.approve_many.results import Format, ResultsFile, format_of
from loanasync.cli.approve_many.resume import (
    LOOKUP_BATCH,
    OWN_LEDGER,
    NotResumableError,
    PastRequests,
    PastStatus,
    ResultsLock,
    has_earlier_run,
    locked_results,
    own_ledger,
    read_results,
)
from loanasync.cli.console import counted, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import settings_of, shop_from_environment
from loanasync.cli.rows.append import STANDARD_OUTPUT, AppendFile, has_content, truncate_incomplete_line
from loanasync.cli.rows.orders import Order, Orders
from loanasync.cli.rows.parse import LINE_NAME
from loanasync.cli.rows.source import InputProblem
from loanasync.ledger import Ledger, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.ledger.address import name_without_password
from loanasync.ledger.environment import cipher_of
from loanasync.ledger.guard import LedgerGuard

_BEGIN_OF_LETTERS = 1_000_000  # bytes that are searched for the name of the first column
_WITHOUT_OUTCOME: frozenset[PastStatus] = frozenset({"new", "busy"})


def make_plan(orders: Orders, earlier: PastRequests, problems: ProblemList) -> Plan:
    """Read all rows, print their problems, and return the plan."""
    plan = Plan()
    rows = orders.read()
    with earlier.lookups() as look_up:
        while batch := tuple(islice(rows, LOOKUP_BATCH)):
            look_up([order.code for order in batch if order.row is not None])
            for order in batch:
                problems.add_row(order)
                _count(plan, order, earlier)
    problems.print()
    return plan


def _count(plan: Plan, order: Order, earlier: PastRequests) -> None:
    plan.rows += 1
    if order.row is None:
        plan.invalid += 1
        plan.duplicates += order.is_duplicate
        return
    status = earlier.status(order.code)
    setattr(plan, status, getattr(plan, status) + 1)
    if status == "new":
        plan.amount += order.row.request.amount
    if status not in _WITHOUT_OUTCOME and not earlier.is_reported(order.code):
        plan.unreported[status] += 1


def run(options: RunOptions, orders: Orders, console: Console) -> Exit:
    """Check, plan or send the rows, and report the result."""
    with closing(ProblemList(options.problems, _results_name(options))) as problems:
        # A column that appears twice has the same problem twice.
        if column_problems := list(dict.fromkeys(orders.column_problems())):
            _list_all(column_problems, orders, problems)
            return Exit.NOTHING_SENT
        if options.validate_only:
            plan = make_plan(orders, PastRequests(), problems)
            print_message(
                f"{counted(plan.rows, 'row')}: {plan.new:,} valid, {plan.invalid:,} invalid", "bold"
            )
            return Exit.NOTHING_SENT if plan.invalid or not plan.rows else Exit.DECIDED
        return _plan_and_send(options, orders, problems, console)


def _list_all(column_problems: Sequence[InputProblem], orders: Orders, problems: ProblemList) -> None:
    """Print the problems of the columns and of all rows."""
    # A field without a column is reported once, not for each row.
    without_column = {problem.field for problem in column_problems if problem.field}
    rows = (problem for order in orders.read() for problem in order.problems)
    for problem in chain(column_problems, (each for each in rows if each.field not in without_column)):
        problems.add(problem)
    problems.print()


def _plan_and_send(options: RunOptions, orders: Orders, problems: ProblemList, console: Console) -> Exit:
    if options.out is None and not options.dry_run:
        raise typer.BadParameter(
            "name the results file: -o FILE, or -o - for standard output", param_hint="-o"
        )
    out = options.out or STANDARD_OUTPUT
    if out != STANDARD_OUTPUT and Path(out).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), out)
    with ExitStack() as stack:
        parts = _prepare(options, orders, stack)
        if parts.lock is not None and options.skip_invalid:
            problems.is_known = known_rows(_results_name(options), parts.form)
        plan = make_plan(orders, parts.earlier, problems)
        can_send = plan.rows and (not plan.invalid or options.skip_invalid)
        if options.dry_run:
            console.print(plan_table(plan))
            return Exit.DECIDED if can_send else Exit.NOTHING_SENT
        if not can_send:
            reason = (
                "correct these rows, or add --skip-invalid to send the valid ones"
                if plan.rows
                else "the file contains no rows"
            )
            print_message(f"nothing was sent: {reason}", "bold")
            return Exit.NOTHING_SENT
        is_first = parts.lock is not None and not parts.lock.begun
        _begin(options, orders, plan, parts)
        result = asyncio.run(_send(options, orders, parts, plan, console))
        if parts.earlier_lines and not result.used_fallback:
            keep_final_lines_if_possible(options.out or "", parts.form, parts.earlier_lines)
        if parts.lock is not None and is_first:
            _end_first_run(parts.lock, plan, result)
    return _report_result(options, plan, result, console)


@frozen
class _RunParts:
    """The parts of a run.

    Args:
        client: None for a sandbox, and for a plan that needs no service.
        earlier: The customers that were requested before.
        form: Format of the results.
        lock: The lock on the results, if they can be resumed.
        earlier_lines: Number of lines in the results before this run.
    """

    client: LoanClient | None
    earlier: PastRequests
    form: Format
    lock: ResultsLock | None
    earlier_lines: int = 0


def _begin(options: RunOptions, orders: Orders, plan: Plan, parts: _RunParts) -> None:
    """Create the files of the run, and print its first lines."""
    # Find a wrong path before the ledger is created.
    letters = options.dead_letters
    earlier_letters = letters is not None and _has_letters(letters, orders)
    if letters is not None:
        AppendFile(letters).close()
    if options.report is not None and str(options.report) != STANDARD_OUTPUT:
        options.report.open("a").close()
    ledger_id = parts.earlier.open_ledger()
    if parts.lock is not None:
        parts.lock.begin(ledger_id)
    if letters is not None and earlier_letters:
        Path(letters).replace(f"{letters}.old")
        print_message(f"the earlier {letters} is kept as {letters}.old")
    print_message(_start_line(options, orders, plan, parts))


def _has_letters(path: str, orders: Orders) -> bool:
    """Return True if an earlier file of dead letters contains rows.

    Raises:
        NotResumableError: The file is not empty and contains something else.
    """
    if not has_content(path):
        return False
    encoding = orders.table.source.encoding
    try:
        with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
            begin = file.read(_BEGIN_OF_LETTERS)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        begin = b""
    if LINE_NAME.encode(encoding) not in begin:
        raise NotResumableError(
            f"{path} exists and contains no dead letters of these rows: name another file for --dead-letters"
        )
    return begin != orders.table.dead_letters_header.encode(encoding)


def _end_first_run(lock: ResultsLock, plan: Plan, result: RunResult) -> None:
    """Record if no customer was evaluated: the address or the token may have been wrong."""
    known_before = plan.decided + plan.unknown + plan.failed + plan.busy
    evaluated = result.summary.rows - result.repeatable
    if known_before == evaluated == 0:
        lock.end_unevaluated()


def _start_line(options: RunOptions, orders: Orders, plan: Plan, parts: _RunParts) -> str:
    """Return a line that says what this run will do."""
    ledger = "none"
    if options.ledger is not None:
        ledger = name_without_password(options.ledger)
    elif parts.client is not None:
        ledger = str(own_ledger(_results_name(options)))
    rate = "" if options.rate is None else f", at most {options.rate:g} per second"
    return (
        f"requesting {plan.results_to_write:,} of {counted(plan.rows, 'row')} of {orders.table.source.name}: "
        f"{euro(plan.amount)} euro, {counted(options.concurrency, 'call')} at a time{rate}; ledger: {ledger}"
    )


def _prepare(options: RunOptions, orders: Orders, stack: ExitStack) -> _RunParts:
    """Lock the results until the stack is closed, and read what they and the ledger know."""
    out = options.out or STANDARD_OUTPUT
    is_resumable = _is_file(out) and (has_earlier_run(out) or not options.dry_run)
    # A plan for rows that were never requested needs no service.
    needs_shop = not options.sandbox and (is_resumable or options.ledger is not None or not options.dry_run)
    shop = shop_from_environment(os.environ) if needs_shop else None
    lock = None
    if is_resumable:
        service = "sandbox" if shop is None else f"{shop.base_url} {shop.shop_id}"
        own = "" if options.sandbox else OWN_LEDGER
        ledger_name = own if options.ledger is None else name_without_password(options.ledger)
        lock = stack.enter_context(locked_results(out, service, ledger_name))
        if has_content(out):
            truncate_incomplete_line(out)
    form = format_of(out, orders.table.delimiter)
    reported, from_ledger, lines = read_results(out, form) if is_resumable else ({}, {}, 0)
    if shop is None:
        return _RunParts(None, PastRequests(reported), form, lock, lines)
    if options.ledger is not None:
        settings = settings_of(options.ledger, options.cipher, options.orphan_folder)
        ledger: Ledger = settings.ledger
        policy = settings.policy
    elif lock is not None:
        file = own_ledger(out)
        ledger = MemoryLedger() if options.dry_run and not file.exists() else SqliteLedger(file)
        policy = LedgerPolicy(orphan_folder=options.orphan_folder, encrypt=cipher_of(options.cipher))
    else:
        raise typer.BadParameter(
            "name a ledger, or results in a file with -o FILE: rows may come twice", param_hint="--ledger"
        )
    client = LoanClient.from_env(dialect=options.dialect, ledger=ledger, ledger_policy=policy)
    is_own = options.ledger is None
    guard = LedgerGuard(ledger, policy, shop.base_url)
    earlier = PastRequests(reported, guard, shop, is_own, from_ledger, lock)
    return _RunParts(client, earlier, form, lock, lines)


def _is_file(path: str) -> bool:
    """Return True for a file, or a path where one can be created; False for a device or a pipe."""
    return path != STANDARD_OUTPUT and (Path(path).is_file() or not Path(path).exists())


async def _send(
    options: RunOptions,
    orders: Orders,
    parts: _RunParts,
    plan: Plan,
    console: Console,
) -> RunResult:
    assert options.out is not None  # noqa: S101  (for the type checkers)
    client = parts.client
    async with AsyncExitStack() as stack:
        if client is not None and client.ledger is not None:
            # Closed after the client, which may write to it until then.
            stack.push_async_callback(client.ledger.aclose)
        if client is None:
            from loanasync.sandbox import Sandbox  # noqa: PLC0415  (its server is slow to import)

            sandbox = await stack.enter_async_context(Sandbox(customers=plan.rows))
            client = sandbox.client(dialect=options.dialect)
        await stack.enter_async_context(client)
        results = stack.enter_context(closing(ResultsFile(options.out, parts.form)))
        letters = None
        if options.dead_letters is not None:
            header, encoding = orders.table.dead_letters_header, orders.table.source.encoding
            file = AppendFile(options.dead_letters, overwrite_with=header, encoding=encoding)
            letters = stack.enter_context(closing(file))
        update_progress = stack.enter_context(progress_display(console, plan.results_to_write))
        loop = RequestLoop(options, client, orders, plan.rows, parts.earlier, results, letters, console)
        return await loop.run(update_progress)


def _report_result(options: RunOptions, plan: Plan, result: RunResult, console: Console) -> Exit:
    summary = result.summary
    unsent = plan.results_to_write - summary.rows
    numbers: dict[str, Any] = {"invalid": result.invalid, "plan": plan, "unsent": unsent}
    console.print(summary_table(summary, **numbers))
    for line in failure_lines(result.failures, _results_name(options)):
        print_message(line)
    print_message(duration_line(summary, has_decisions=result.decided > 0), "bold")
    code = _exit_code(plan, result, unsent)
    if options.report is not None:
        report = report_members(summary, result.failures, **numbers) | {
            "interrupted": next(iter(result.reasons(unsent)), None),
            "unknown_lines": sorted(result.unknown_lines),
            "exit_code": int(code),
        }
        text = json.dumps(report, indent=2) + "\n"
        try:
            if str(options.report) == STANDARD_OUTPUT:
                typer.echo(text, nl=False)
            else:
                options.report.write_text(text, encoding="utf-8")
        except OSError as error:
            print_message(
                f"the report {options.report} could not be written ({error.strerror}); "
                "the results are not affected",
                "bold",
            )
            code = code or Exit.FAILED
    for message in _final_messages(options, plan, result, unsent):
        print_message(message, "bold")
    return code


def _final_messages(options: RunOptions, plan: Plan, result: RunResult, unsent: int) -> Iterator[str]:
    """Yield why the run ended early, and what the user has to do."""
    summary = result.summary
    can_resume = options.ledger is not None or _is_file(options.out or STANDARD_OUTPUT)
    for reason in result.reasons(unsent):
        yield f"{reason}; run the same command to resume" if can_resume and unsent else reason
    if result.dead_letters_failure:
        yield result.dead_letters_failure
    if result.unrecorded:
        yield (
            f"{counted(result.unrecorded, 'decision')} could not be recorded in the ledger; the results "
            f"contain them. When the ledger works again, run: {_ledger_command(options, 'import-orphans')}"
        )
    if (repeatable := result.repeatable) and can_resume:
        subject, pronoun = ("row was", "it") if repeatable == 1 else ("rows were", "them")
        yield (
            f"{repeatable:,} failed {subject} not evaluated: correct the cause, then run the same command to "
            f"send {pronoun} again"
        )
    if (summary.rejected or summary.error) and options.out != STANDARD_OUTPUT:
        yield f"the reasons of failed rows are in {options.out}"
    if unknown := summary.unknown + plan.already_reported("unknown"):
        subject = "1 outcome is" if unknown == 1 else f"{unknown:,} outcomes are"
        command = _ledger_command(options, "resolve")
        resolve = f", then run: {command}" if command else ""
        # Decisions of calls that a second Ctrl-C gave up may reach the ledger after this summary.
        again = "run the same command first, it may find their decisions; then " if _gave_up(result) else ""
        again = again if command and can_resume else ""
        yield f"{subject} unknown: {again}ask the service{resolve}. Unknown rows are not sent again"


def _gave_up(result: RunResult) -> bool:
    """Return True if outcomes may be unknown because the run was interrupted."""
    is_signal = result.interrupt_code is Exit.INTERRUPTED
    return bool(result.interrupted and is_signal and result.summary.unknown)


def _results_name(options: RunOptions) -> str:
    return "the results" if options.out == STANDARD_OUTPUT else str(options.out)


def _ledger_command(options: RunOptions, name: str) -> str:
    """Return a command for the ledger of this run, without its address; empty without a ledger."""
    command = f"loanasync ledger {name}"
    if options.ledger is not None:
        return f"{command} (with the same --ledger)"
    own = own_ledger(options.out or "")
    return f"{command} --ledger {own}" if own.exists() else ""


def _exit_code(plan: Plan, result: RunResult, unsent: int) -> Exit:
    summary = result.summary
    if (result.interrupted and unsent) or _gave_up(result):
        return result.interrupt_code
    if summary.unknown or plan.already_reported("unknown"):
        return Exit.UNKNOWN
    failed = summary.rejected + summary.error + result.invalid + plan.already_reported("failed") + unsent
    return Exit.FAILED if failed or result.used_fallback else Exit.DECIDED
