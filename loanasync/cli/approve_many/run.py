"""One run of approve-many: plan the rows, request the approvals, and report the result."""

import asyncio
import json
import os
from contextlib import AsyncExitStack, ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import typer
from attrs import frozen
from rich.console import Console

from loanasync import LoanClient
from loanasync.cli.approve_many.loop import RequestLoop, RunOptions, RunResult
from loanasync.cli.approve_many.report import Plan, plan_of, report_of, seconds_of, summary_of, ticking
from loanasync.cli.approve_many.results import Format, Results, format_of
from loanasync.cli.approve_many.resume import (
    AT_ONCE,
    OWN,
    Past,
    PastRequests,
    has_begun,
    own_ledger,
    reported,
    resumed,
)
from loanasync.cli.console import say
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import name_of, shop_of, used_by_a_client
from loanasync.cli.rows.append import STANDARD_OUTPUT, Appending, cut_half_a_line, has_content
from loanasync.cli.rows.orders import Order, Orders
from loanasync.ledger import DecisionLedger, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.ledger.keys import key_of

_TO_BE_ASKED: frozenset[Past] = frozenset({"new", "busy"})


def planned(orders: Orders, earlier: PastRequests) -> Plan:
    """Read all rows, print everything that is wrong with them, and return the plan."""
    plan = Plan()
    read = orders.read()
    with earlier.looking_up() as look_up:
        while some := tuple(islice(read, AT_ONCE)):
            look_up([order.code for order in some if order.row is not None])
            for order in some:
                for problem in order.problems:
                    say(str(problem))
                _count(plan, order, earlier)
    return plan


def _count(plan: Plan, order: Order, earlier: PastRequests) -> None:
    plan.rows += 1
    if order.row is None:
        plan.invalid += 1
        plan.duplicates += order.is_duplicate
        return
    past = earlier.past(order.code)
    setattr(plan, past, getattr(plan, past) + 1)
    if past == "new":
        plan.amount += order.row.request.amount
    if past not in _TO_BE_ASKED and not earlier.is_reported(order.code):
        plan.untold[past] += 1


def run(wanted: RunOptions, orders: Orders, console: Console) -> Exit:
    """Check, plan or send the rows, and report the result."""
    wrong = list(orders.wrong_with_columns())
    for problem in wrong:
        say(str(problem))
    if wrong:
        return Exit.NOTHING_SENT
    if wanted.validate_only:
        plan = planned(orders, PastRequests())
        say(f"{plan.rows:,} rows: {plan.new:,} can be sent, {plan.invalid:,} are wrong", "bold")
        return Exit.NOTHING_SENT if plan.invalid or not plan.rows else Exit.DECIDED
    if wanted.out is None and not wanted.dry_run:
        told = "say where results go: -o FILE, or -o - for standard output"
        raise typer.BadParameter(told, param_hint="-o")
    with ExitStack() as stack:
        prepared = _prepared(wanted, orders, stack)
        plan = planned(orders, prepared.earlier)
        if wanted.dry_run:
            console.print(plan_of(plan))
            cannot = not plan.rows or (plan.invalid and not wanted.skip_invalid)
            return Exit.NOTHING_SENT if cannot else Exit.DECIDED
        if not plan.rows or (plan.invalid and not wanted.skip_invalid):
            told = "there are no rows" if not plan.rows else "correct these rows, or give --skip-invalid"
            say(f"nothing was sent: {told}", "bold")
            return Exit.NOTHING_SENT
        ended = asyncio.run(_ask(wanted, orders, prepared, plan, console))
    return _conclude(wanted, plan, ended, console)


@frozen
class _Prepared:
    """The parts of a run. There is no client for a plan that needs none, and for a sandbox."""

    client: LoanClient | None
    ledger: DecisionLedger | None
    earlier: PastRequests
    form: Format


def _prepared(wanted: RunOptions, orders: Orders, stack: ExitStack) -> _Prepared:
    """Lock the results until the stack is closed, and read what they and the ledger know."""
    out = wanted.out or STANDARD_OUTPUT
    is_resumed = out != STANDARD_OUTPUT and _is_file(out) and (has_begun(out) or not wanted.dry_run)
    # A plan for rows that were never requested needs no service.
    needs_shop = not wanted.sandbox and (is_resumed or wanted.ledger is not None or not wanted.dry_run)
    shop = shop_of(os.environ) if needs_shop else None
    secret = ""
    if is_resumed:
        service = "sandbox" if shop is None else f"{shop.base_url} {shop.shop_id}"
        own = "" if wanted.sandbox else OWN
        ledger_name = own if wanted.ledger is None else name_of(wanted.ledger)
        secret = stack.enter_context(resumed(out, service, ledger_name))
        if has_content(out):
            cut_half_a_line(out)
    form = format_of(out, orders.table.delimiter)
    known = reported(out, form) if is_resumed else {}
    if shop is None:
        return _Prepared(None, None, PastRequests(known), form)
    is_own = is_resumed and wanted.ledger is None
    options = used_by_a_client(wanted.ledger, only_reads=wanted.dry_run)
    if is_own:
        file = own_ledger(out)
        options = {
            "ledger": MemoryLedger() if wanted.dry_run and not file.exists() else SqliteLedger(file),
            "ledger_policy": LedgerPolicy(key=secret.encode()),
        }
    client = LoanClient.from_env(dialect=wanted.dialect, **options)
    if not options:
        return _Prepared(client, None, PastRequests(known), form)
    key = partial(key_of, shop, policy=options["ledger_policy"])
    return _Prepared(client, options["ledger"], PastRequests(known, options["ledger"], key, is_own), form)


def _is_file(path: str) -> bool:
    return Path(path).is_file() or not Path(path).exists()


async def _ask(
    wanted: RunOptions,
    orders: Orders,
    prepared: _Prepared,
    plan: Plan,
    console: Console,
) -> RunResult:
    assert wanted.out is not None  # noqa: S101  (for the type checkers)
    client = prepared.client
    async with AsyncExitStack() as stack:
        if prepared.ledger is not None:
            # After the client, which writes to it until then.
            stack.push_async_callback(prepared.ledger.aclose)
        if client is None:
            from loanasync.sandbox import Sandbox  # noqa: PLC0415  (its server takes long to be loaded)

            sandbox = await stack.enter_async_context(Sandbox(customers=plan.rows))
            client = sandbox.client(dialect=wanted.dialect)
        await stack.enter_async_context(client)
        results = stack.enter_context(closing(Results(wanted.out, prepared.form)))
        letters = None
        if wanted.dead_letters is not None:
            head = orders.table.source.mark + orders.table.head
            letters = stack.enter_context(closing(Appending(wanted.dead_letters, afresh=head)))
        tick = stack.enter_context(ticking(console, plan.to_come))
        loop = RequestLoop(wanted, client, orders, plan.rows, prepared.earlier, results, letters, console)
        return await loop.run(tick)


def _conclude(wanted: RunOptions, plan: Plan, ended: RunResult, console: Console) -> Exit:
    summary = ended.summary
    left = plan.to_come - summary.rows
    facts: dict[str, Any] = {"invalid": ended.invalid, "before": plan, "unsent": left}
    console.print(summary_of(summary, **facts))
    say(seconds_of(summary), "bold")
    code = _exit_of(plan, ended, left)
    if wanted.report is not None:
        report = report_of(summary, **facts) | {
            "interrupted": ended.interrupted or ended.stopped or None,
            "unknown_lines": sorted(ended.unknown_lines),
            "exit_code": int(code),
        }
        told = json.dumps(report, indent=2) + "\n"
        try:
            if str(wanted.report) == STANDARD_OUTPUT:
                typer.echo(told, nl=False)
            else:
                wanted.report.write_text(told, encoding="utf-8")
        except OSError as error:
            say(f"{wanted.report}: {error.strerror}: the report is not written, the results are", "bold")
            code = code or Exit.FAILED
    for sentence in (ended.interrupted, ended.stopped):
        if sentence:
            goes_on = left and (wanted.out != STANDARD_OUTPUT or wanted.ledger is not None)
            say(f"{sentence}; the same command goes on" if goes_on else sentence, "bold")
    if ended.unburied:
        say(ended.unburied, "bold")
    if ended.unrecorded:
        told = f"{ended.unrecorded:,} decisions are in the results, and the ledger could not be written"
        option = "" if wanted.ledger is not None else f" --ledger {own_ledger(wanted.out or '')}"
        say(f"{told}: loanasync ledger import-orphans{option}, once it can", "bold")
    if (summary.rejected or summary.error) and wanted.out != STANDARD_OUTPUT:
        say(f"what failed, and why, is in {wanted.out}", "bold")
    if summary.unknown or plan.earlier("unknown"):
        say("outcomes are unknown: settle them with the service; they are not asked for again", "bold")
    return code


def _exit_of(plan: Plan, ended: RunResult, left: int) -> Exit:
    summary = ended.summary
    if ended.interrupted and (left or summary.unknown):
        return Exit.INTERRUPTED
    if summary.unknown or plan.earlier("unknown"):
        return Exit.UNKNOWN
    failed = summary.rejected + summary.error + ended.invalid + plan.earlier("failed") + left
    return Exit.FAILED if failed or ended.is_elsewhere else Exit.DECIDED
