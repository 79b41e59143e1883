"""``loanasync reconcile``: settle unknown outcomes with a file of outcomes from the service."""

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from attrs import define, evolve, field, frozen

from loanasync.cli.console import counted, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.commands import Name, opened
from loanasync.cli.ledger.open import OpenLedger, OrphanFolder, shop_from_environment
from loanasync.cli.ledger.resolve import TO_RESOLVE
from loanasync.cli.ledger.statements import FIELDS, StatedRow, Statements
from loanasync.cli.rows.append import STANDARD_OUTPUT, AppendFile
from loanasync.cli.rows.mapping import field_mapping
from loanasync.cli.rows.parse import Table
from loanasync.cli.rows.source import InputProblem, Source, UnreadableError
from loanasync.ledger import Entry, Ledger, LedgerPolicy
from loanasync.ledger.address import name_without_password
from loanasync.ledger.keys import places_of
from loanasync.ledger.resolution import (
    Statement,
    find_entry,
    problem_of_note,
    problem_of_source,
    result_without_writing,
    settle_as_stated,
)

_AT_ONCE = 256  # operations of the ledger that are in progress; an SQLite ledger commits them together
_SHOWN = 10  # line numbers and messages of each kind that are printed
_DONE = ("settled", "unchanged")
# By result: the end of a sentence that begins with the number of rows, and what to do.
_TEXTS: Mapping[str, tuple[str, str]] = {
    "settled": ("settled", ""),
    "unchanged": ("already had this outcome", ""),
    "repeats": ("repeated, with the same outcome", ""),
    "contradicts": (
        "contradicting the ledger",
        "nothing was changed; look at each entry with loanasync ledger show --customer",
    ),
    "disagrees": ("contradicting each other", "none of them was used; correct the file"),
    "requested again": (
        "may be about an earlier request of the customer",
        "if the last request was not evaluated, release it with loanasync ledger resolve --customer",
    ),
    "inflight": ("with a request in progress", "run the command again later"),
    "missing": ("without entry", "check the fiscal code, the scope and the order token of the row"),
    "ambiguous": (
        "with an order token of several scopes",
        "add the scope to the row, or for the approval without scope remove the order token",
    ),
    "invalid": ("invalid", "correct these rows, and run the command again"),
}
_NO_ENTRY_AT_ALL = "the ledger has no entry of any customer in the file: check --ledger and LOANASYNC_SHOP_ID"


@frozen
class _Match:
    """A row whose entry was found, and the result. `entry` is set if the row is to be written."""

    line: int
    key: str
    statement: Statement
    result: str | None
    entry: Entry | None


@define
class _Results:
    """The line numbers of each result, and the problems of invalid rows."""

    lines: dict[str, list[int]] = field(factory=lambda: defaultdict(list))
    problems: list[InputProblem] = field(factory=list)
    pairs: list[list[int]] = field(factory=list)  # lines that contradict each other, by customer

    @property
    def is_complete(self) -> bool:
        return all(result in (*_DONE, "repeats") for result in self.lines)

    def add(self, result: str, lines: Iterable[int]) -> None:
        self.lines[result] += lines


def reconcile(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="File of outcomes: JSON lines or CSV, also compressed (.gz); - is standard input.",
        ),
    ],
    ledger: Name,
    source: Annotated[
        str, typer.Option(help="The source of the outcomes. It is stored, with the line as note.")
    ] = "file",
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=NAME", help="Read FIELD from the column or JSON member NAME. Can be repeated."
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the file if it is not UTF-8, such as cp1252.")
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the results as JSON, with line numbers; - is standard output."
        ),
    ] = None,
    orphan_folder: OrphanFolder = None,
    *,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Skip unknown columns and JSON members.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the results, and write nothing.")] = False,
) -> None:
    """Settle unknown outcomes with a file of outcomes, matched by customer.

    Each row has fiscal_code and outcome (approved, refused or not_evaluated), or fiscal_code and approved
    (true or false). It may have scope, order_token and note. A decision in the ledger is never changed, and
    rows that contradict each other are not used. Running the command again changes nothing.

    The shop is configured as for `loanasync ledger show --customer`.

    Exit codes: 0 all rows are settled, or already had this outcome; 1 other results; 2 nothing was matched;
    3 the ledger still has unknown or lost entries; 130 interrupted.

    Example: loanasync reconcile outcomes.csv --ledger decisions.db --dry-run
    """
    if (problem := problem_of_source(source)) is not None:
        raise typer.BadParameter(problem, param_hint="--source")
    columns = field_mapping(column or (), fields=FIELDS).columns
    with opened(ledger, orphan_folder=orphan_folder) as use:
        if report not in (None, STANDARD_OUTPUT) and name_without_password(report) in map(
            name_without_password, (file, ledger)
        ):
            raise typer.BadParameter("is also the file of outcomes or the ledger", param_hint="--report")
        shop = shop_from_environment(os.environ)
        policy, secrets = use.policy, use.secrets(shop)
        rows, results = _read_rows(file, encoding, columns, source.strip(), ignore_unknown=ignore_unknown)
        with closing(AppendFile(report or os.devnull, overwrite_with="")) as report_file:
            matches = use.run(_match(use, shop.shop_id, secrets, rows, results))
            use.run(_settle(use.ledger, policy, matches, results, dry_run=dry_run))
            left = sum(1 for _ in use.entries(*TO_RESOLVE))
            if dry_run:
                left -= sum(match.entry is not None and match.entry.state in TO_RESOLVE for match in matches)
            _print(results, left, dry_run=dry_run)
            code = _exit_code(results, left)
            try:
                report_file.add(json.dumps(_report(results, left, dry_run=dry_run), indent=2) + "\n")
            except OSError as error:
                print_message(
                    f"the report {report} could not be written ({error.strerror}); the results above are "
                    "complete",
                    "bold",
                )
                code = code or Exit.FAILED
        raise typer.Exit(code)


def _read_rows(
    file: str, encoding: str | None, columns: Mapping[str, str], source: str, *, ignore_unknown: bool
) -> tuple[list[tuple[StatedRow, Statement]], _Results]:
    """Return the valid rows with their statements, and the results of the others.

    Raises:
        typer.Exit: The file cannot be read, or its header is wrong.
    """
    results = _Results()
    rows = []
    name = "standard input" if file == STANDARD_OUTPUT else file
    short_name = Path(name).name if problem_of_note(Path(name).name) is None else "the file"
    try:
        with closing(Source(file, encoding)) as opened_file:
            statements = Statements(Table(opened_file), columns, ignore_unknown)
            wrong = [*statements.column_problems()]
            for problem in wrong:
                print_message(str(problem))
            if wrong:
                raise typer.Exit(Exit.NOTHING_SENT)
            for row in statements.read():
                if isinstance(row, StatedRow):
                    note = row.note or f"line {row.line} of {short_name}"
                    rows.append((row, Statement(row.state, source, note)))
                else:
                    results.problems += row
                    results.add("invalid", {problem.line for problem in row})
    except UnreadableError as error:
        print_message(f"{name}: {error.location}{error}", "bold")
        raise typer.Exit(Exit.NOTHING_SENT) from None
    return rows, results


async def _match(
    use: OpenLedger,
    shop_id: str,
    secrets: Sequence[bytes],
    rows: Sequence[tuple[StatedRow, Statement]],
    results: _Results,
) -> list[_Match]:
    """Return a match for each entry that may have to be written. Add all other rows to the results."""

    async def match(row: StatedRow, statement: Statement) -> _Match | None:
        by_order = row.order_token is not None
        places = places_of(shop_id, row.fiscal_code, secrets, use.policy, row.scope, row.order_token)
        found = await find_entry(use.ledger, places, by_order=by_order)
        if not isinstance(found, Entry):
            results.add(found, [row.line])
            return None
        result = result_without_writing(found, statement)
        kept = found if result in (None, "inflight") else None  # 100,000 decided entries are large
        return _Match(row.line, found.key, statement, result, kept)

    matches: dict[str, list[_Match]] = defaultdict(list)
    for begin in range(0, len(rows), _AT_ONCE):
        for each in await asyncio.gather(*(match(*row) for row in rows[begin : begin + _AT_ONCE])):
            if each is not None:
                matches[each.key].append(each)
    to_settle = []
    for first, *others in matches.values():  # in the order of their lines
        if any(each.statement.state is not first.statement.state for each in others):
            results.pairs.append([each.line for each in (first, *others)])
            results.add("disagrees", results.pairs[-1])
            continue
        if others:
            results.add("repeats", [each.line for each in others])
        if first.entry is None:
            results.add(str(first.result), [first.line])
        else:
            to_settle.append(first)
    return to_settle


async def _settle(
    ledger: Ledger,
    policy: LedgerPolicy,
    matches: Sequence[_Match],
    results: _Results,
    *,
    dry_run: bool,
) -> None:
    """Settle the entries of the matches, and add them to the results."""
    folders = () if dry_run else await asyncio.to_thread(lambda: policy.orphan_folders)

    async def settle(match: _Match) -> None:
        result = match.result or "settled"
        if not dry_run and match.entry is not None:
            result, _ = await settle_as_stated(ledger, match.entry, match.statement, orphan_folders=folders)
        results.add(result, [match.line])

    for begin in range(0, len(matches), _AT_ONCE):
        await asyncio.gather(*(settle(match) for match in matches[begin : begin + _AT_ONCE]))


def _print(results: _Results, left: int, *, dry_run: bool) -> None:
    """Print the number of rows of each result, with the lines of those that need a person."""
    for result, (text, advice) in _TEXTS.items():
        lines = results.lines.get(result)
        if not lines:
            continue
        label = "to settle" if dry_run and result == "settled" else text
        where = ""
        if result == "disagrees":
            groups = "; ".join(f"lines {_listed(pair)}" for pair in sorted(results.pairs)[:_SHOWN])
            where = f": {groups}{_more(len(results.pairs), 'customer')}; {advice}"
        elif advice:
            where = f": {_shown_lines(lines)}; {advice}"
        print_message(f"{counted(len(lines), 'row')} {label}{where}")
    for message, problems in _by_message(results.problems):
        lines = [problem.line for problem in problems]
        print_message(f"  {counted(len(lines), 'row')}: {message}: {_shown_lines(lines)}")
    if not results.lines:
        print_message("the file has a header, but no rows")
    elif _is_without_match(results) and "missing" in results.lines:
        print_message(_NO_ENTRY_AT_ALL)
    if left:
        print_message(
            f"still unknown or lost in the ledger: {counted(left, 'entry', 'entries')}; "
            "list them with loanasync ledger sweep"
        )


def _by_message(problems: Iterable[InputProblem]) -> list[tuple[str, list[InputProblem]]]:
    """Return the problems of invalid rows by message, the most frequent message first."""
    groups: dict[str, list[InputProblem]] = defaultdict(list)
    for problem in problems:
        groups[str(evolve(problem, file="", line=0)).removeprefix(": ")].append(problem)
    return sorted(groups.items(), key=lambda group: -len(group[1]))[:_SHOWN]


def _shown_lines(lines: Sequence[int]) -> str:
    word = "line" if len(lines) == 1 else "lines"
    return f"{word} {_listed(sorted(lines)[:_SHOWN])}{_more(len(lines), 'line')}"


def _more(number: int, noun: str) -> str:
    return f" and {counted(number - _SHOWN, f'more {noun}')}" if number > _SHOWN else ""


def _listed(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines))


def _report(results: _Results, left: int, *, dry_run: bool) -> dict[str, object]:
    """Return the JSON members of the report. They contain no value of the file."""
    return {
        "dry_run": dry_run,
        "rows": sum(map(len, results.lines.values())),
        "results": {result: len(lines) for result, lines in results.lines.items()},
        "lines": {result: sorted(lines) for result, lines in results.lines.items() if result not in _DONE},
        "disagreeing": sorted(results.pairs),
        "problems": [
            {"line": each.line, "field": each.field, "message": each.message} for each in results.problems
        ],
        "still_unknown": left,
    }


def _is_without_match(results: _Results) -> bool:
    return all(result in ("missing", "invalid") for result in results.lines)


def _exit_code(results: _Results, left: int) -> Exit:
    if _is_without_match(results):
        return Exit.NOTHING_SENT
    if left:
        return Exit.UNKNOWN
    return Exit.DECIDED if results.is_complete else Exit.FAILED
