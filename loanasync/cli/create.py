"""``loanasync create``: the creation calls for the rows of a file (spec §1.1, §4.3)."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import define, field, frozen

from loanasync import AlreadyEvaluatedError, Dialect, LoanClient, LoanError
from loanasync._validation.rules import check_fiscal_code, normalize_fiscal_code
from loanasync.bulk.rate import Rate
from loanasync.cli.approve_many.command import check_distinct_files, check_rate, nothing_sent
from loanasync.cli.approve_many.final_lines import keep_final_lines_if_possible
from loanasync.cli.approve_many.first_rows import FirstRows
from loanasync.cli.approve_many.problems import ProblemList
from loanasync.cli.approve_many.results import (
    NotWrittenError,
    ResultsFile,
    error_members,
    format_of,
    outcome_members,
)
from loanasync.cli.approve_many.resume import CREATION, locked_results, read_results
from loanasync.cli.console import counted, interruptible, print_message, stderr_console
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import client_without_ledger, shop_from_environment
from loanasync.cli.rows.append import has_content, truncate_incomplete_line
from loanasync.cli.rows.mapping import field_mapping
from loanasync.cli.rows.orders import Orders, offline_client
from loanasync.cli.rows.parse import Table
from loanasync.cli.rows.source import Source


@frozen
class _Creation:
    """The request of one row."""

    line: int
    id: object
    code: str
    body: Mapping[str, Any]


@define
class _Run:
    """Sends the creations, and writes the result of each one.

    Each row is written as unknown before its call starts, so that a run that is killed leaves no row that
    looks as if it was not sent.
    """

    _results: ResultsFile
    _rate: Rate | None
    _rows: Iterator[_Creation]
    _earlier: Mapping[str, object]  # by the customers in the results of earlier runs
    _first_rows: FirstRows = field(init=False, factory=FirstRows)
    counts: Counter[str] = field(init=False, factory=Counter)
    stopped: str = field(init=False, default="")  # the reason
    is_interrupted: bool = field(init=False, default=False)

    async def send(self, client: LoanClient, concurrency: int) -> None:
        """Send the rows, until they end or the run is stopped."""
        async with client:
            workers = [asyncio.create_task(self._work(client)) for _ in range(concurrency)]
            with interruptible(self._interrupt, lambda: [worker.cancel() for worker in workers]):
                await asyncio.wait(workers)
        for worker in workers:
            if not worker.cancelled():
                worker.result()

    def _interrupt(self) -> None:
        self.stopped, self.is_interrupted = "interrupted", True
        print_message(
            "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel them"
        )

    async def _work(self, client: LoanClient) -> None:
        while not self.stopped:
            if self._rate is not None:
                await self._rate.wait()
            row = None if self.stopped else next(self._rows, None)
            if row is None:
                return
            self._write(row, "unknown", "unknown", message="in progress when the run ended")
            if self._results.failure:  # the next run could not know that this row was sent
                return
            is_first = row.code not in self._earlier and self._first_rows.add()
            self.counts["unknown"] += 1
            status = await self._create(client, row, is_first=is_first)
            self.counts["unknown"] -= 1
            self.counts[status] += 1
            self.stopped = self.stopped or self._first_rows.reason

    async def _create(self, client: LoanClient, row: _Creation, *, is_first: bool) -> str:
        try:
            await client.create_request(row.body)
        except AlreadyEvaluatedError as error:  # spec §4.1: so a request of this customer was created before
            self._write(row, "evaluated", "evaluated", **error_members(error))
            return "evaluated"
        except LoanError as error:
            if is_first:
                self._first_rows.add_failure(error, error.outcome)
            status = "unknown" if error.outcome == "unknown" else "error"
            self._write(row, status, error.outcome, repeatable=error.repeatable, **error_members(error))
            return status
        self._write(row, "created", "done")
        return "created"

    def _write(self, row: _Creation, status: str, outcome: str, **more: Any) -> None:
        own = {"line": row.line, "id": row.id, "fiscal_code": row.code}
        repeatable = more.pop("repeatable", False)
        record = own | outcome_members(status, outcome, repeatable=repeatable) | more
        try:
            self._results.add({name: value for name, value in record.items() if value is not None})
        except NotWrittenError as error:
            stderr_console().file.write(str(error))
        if self._results.failure:
            self.stopped = self._results.failure

    def report(self, rows: str, out: str, planned: Mapping[str, int]) -> Exit:
        """Print the result, and return the exit code."""
        created, unknown, evaluated = (self.counts[status] for status in ("created", "unknown", "evaluated"))
        failed = self.counts["error"] + evaluated
        unsent = planned["new"] - created - failed - unknown
        print_message(
            f"{created:,} created, {failed:,} failed, {unknown:,} unknown, {unsent:,} not sent", "bold"
        )
        if reason := self.stopped if unsent else self._results.failure:
            print_message(f"{reason}; run the same command to resume", "bold")
        if failed:
            print_message(f"the reasons of failed rows are in {out}", "bold")
        if evaluated := evaluated + planned["failed"]:
            print_message(
                f"{evaluated:,} evaluated before (see {out}): ask the service for the decisions, and remove "
                f"these rows from {rows}",
                "bold",
            )
        if unknown := unknown + planned["unknown"]:
            print_message(
                f"{unknown:,} unknown: ask the service whether these requests exist. To send one again, "
                f"remove its line from {out}",
                "bold",
            )
        if self.is_interrupted and unsent:
            return Exit.INTERRUPTED
        if unknown:
            return Exit.UNKNOWN
        return Exit.FAILED if failed or evaluated or unsent or self._results.failure else Exit.DECIDED


def create(
    rows: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="File of rows: JSON lines or CSV, also compressed (.gz); - is standard input."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "-o",
            "--out",
            metavar="OUT",
            help="Results file, one line for each row: CSV if its name ends in .csv, otherwise JSON lines."
            " It must not be the one of approve-many.",
        ),
    ],
    member: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Send the column or JSON member COLUMN as the member NAME of the body. Can be repeated.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=NAME",
            help="Read FIELD, fiscal_code or id, from the column or JSON member NAME. Can be repeated.",
        ),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="TOML file with the names of columns, as in approve-many."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the file if it is not UTF-8, such as cp1252.")
    ] = None,
    problems: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="List all problems of the rows in this file, one per line."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum number of calls in progress.")] = 16,
    rate: Annotated[float | None, typer.Option(help="Maximum number of calls started per second.")] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the rows, and show how many would be sent. Send nothing.")
    ] = False,
) -> None:
    """Create the loan request of every row of a file, before approve-many requests the approvals.

    The specification does not show the body of this call. The command sends the member fiscalCode, and those
    of --member. Ask the service which members it needs.

    Run the same command again to resume: it sends the rows that were not created. It does not repeat a
    creation whose outcome is unknown.

    Exit codes: 0 all requests are created, 1 rows failed, 2 nothing was sent, 3 outcomes are unknown,
    130 interrupted.

    Example: loanasync create orders.csv -o created.jsonl --rate 50
    """
    check_rate(rate)
    if out == "-" or (Path(out).exists() and not Path(out).is_file()):
        raise typer.BadParameter("name a file: it is the memory of what was sent", param_hint="-o")
    check_distinct_files(rows, out, f"{out}.resume", problems)
    fields = field_mapping(column or (), mapping)
    members = _members(member or ())
    with nothing_sent(rows, out, problems), closing(Source(rows, encoding)) as source:
        code = Exit.NOTHING_SENT
        orders = Orders(Table(source), offline_client(Dialect()), fields, euro=False, ignore_unknown=True)
        with closing(ProblemList(problems, "")) as problem_list:
            creations = _read(orders, members, problem_list)
        if creations:
            limit = Rate(rate) if rate else None
            code = _send(creations, orders.table, out, concurrency, limit, dry_run)
    raise typer.Exit(code)


def _send(
    creations: Sequence[_Creation],
    table: Table,
    out: str,
    concurrency: int,
    rate: Rate | None,
    is_dry_run: bool,  # noqa: FBT001  (private)
) -> Exit:
    shop = shop_from_environment(os.environ)
    with locked_results(out, f"{CREATION}{shop.base_url} {shop.shop_id}", "") as lock:
        if has_content(out):
            truncate_incomplete_line(out)
        form = format_of(out, table.delimiter)
        earlier, _, earlier_lines = read_results(out, form)
        planned: Counter[str] = Counter(earlier.get(each.code, "new") for each in creations)
        print_message(
            f"{counted(planned['new'], 'request')} to create; in an earlier run {planned['decided']:,} were "
            f"created, and {planned['unknown']:,} are unknown"
        )
        if is_dry_run:
            return Exit.DECIDED
        with closing(ResultsFile(out, form)) as results:
            lock.begin()
            rows = (each for each in creations if earlier.get(each.code, "new") == "new")
            run = _Run(results, rate, rows, earlier)
            asyncio.run(run.send(client_without_ledger(), concurrency))
        if not results.failure:
            keep_final_lines_if_possible(out, form, earlier_lines)
        return run.report(table.source.name, out, planned)


def _members(options: Sequence[str]) -> dict[str, str]:
    """Return the column by member of the body."""
    members = {}
    for option in options:
        name, separator, column = option.partition("=")
        if not separator or not name or not column:
            raise typer.BadParameter(f"'{option}' must be NAME=COLUMN", param_hint="--member")
        if name == "fiscalCode":
            raise typer.BadParameter("use --column fiscal_code=COLUMN", param_hint="--member")
        members[name] = column
    return members


def _read(orders: Orders, members: Mapping[str, str], problems: ProblemList) -> Sequence[_Creation]:
    """Return the rows, and print their problems. With a problem, return none."""
    for problem in orders.column_problems():
        if problem.field in ("fiscal_code", "id"):
            problems.add(problem)
    creations = () if problems.count else [*_creations(orders, members, problems)]
    problems.print()
    if problems.count or not creations:
        reason = "correct these rows" if problems.count else "the file contains no rows"
        print_message(f"nothing was sent: {reason}", "bold")
    return () if problems.count else creations


def _creations(orders: Orders, members: Mapping[str, str], problems: ProblemList) -> Iterator[_Creation]:
    """Yield the rows without a problem. The second row of a customer is a problem."""
    first_lines: dict[str, int] = {}
    names: set[str] = set()  # of columns and JSON members
    for parsed in orders.table.rows():
        if parsed.problem:
            problems.add(orders.table.problem(parsed.problem, parsed.line))
            continue
        names.update(parsed.members)
        values, columns, messages = orders.values(parsed)
        code: Any = values.get("fiscal_code")
        messages |= {each.field: each.message for each in check_fiscal_code(code)}
        if "fiscal_code" not in messages:
            code = normalize_fiscal_code(code)
            first = first_lines.setdefault(code, parsed.line)
            if first != parsed.line:
                messages["fiscal_code"] = f"duplicate of line {first}: each customer may appear only once"
        if message := messages.get("fiscal_code"):
            column = columns.get("fiscal_code", "")
            problems.add(orders.table.problem(message, parsed.line, column, "fiscal_code"))
            continue
        sent = {name: parsed.members.get(column) for name, column in members.items()}
        body = {"fiscalCode": code} | {name: value for name, value in sent.items() if value not in (None, "")}
        yield _Creation(parsed.first_line, values.get("id"), code, body)
    for name, column in members.items():
        if names and column not in names:
            problems.add(orders.table.problem(f"--member {name}={column}: no row has {column!r}"))
