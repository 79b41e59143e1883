"""Plan, progress and summary of `approve-many` as text, and its report."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loanasync.cli.approve_many.job import UNFINISHED, Counts, Kind
from loanasync.cli.approve_many.results import DECIDED
from loanasync.cli.causes import CauseTally
from loanasync.cli.console import counted, duration
from loanasync.cli.exit_codes import Exit

_LINE_INTERVAL = 10.0  # seconds between two progress lines where there is no terminal
_MIN_ELAPSED = 0.1  # seconds; a rate over a shorter time says nothing
_WHOLE_RATE = 10  # rows per second from which a rate is shown without decimals
_ADVICE = {
    "not_sent": "correct the cause, then send these rows again",
    "not_evaluated": "correct the cause, then send these rows again",
    "unknown": "ask the service for the outcomes; do not send these rows again",
}
_OTHER_ADVICE = "the customers were decided before; do not send these rows again"

UpdateProgress: TypeAlias = Callable[[int], None]
"""A function that is called with the number of finished rows."""


def euro(cents: int) -> str:
    """Return an amount in euro cents as euro: "1,234.50"."""
    return f"{cents / 100:,.2f}"


def table_of(counts: Counts, title: str) -> Table:
    """Return the kinds of rows with their numbers and amounts, and the total."""
    table = Table("rows", title=title, title_justify="left")
    table.add_column("number", justify="right")
    table.add_column("euro", justify="right")
    for kind in Kind:
        if counts.rows[kind]:
            table.add_row(kind, f"{counts.rows[kind]:,}", euro(counts.cents[kind]))
    table.add_row("total", f"{counts.total:,}", euro(counts.cents.total()))
    return table


def exit_code_of(counts: Counts) -> Exit:
    """Return the exit code for the results of all rows."""
    rows = counts.rows
    if rows[Kind.UNKNOWN]:
        return Exit.UNKNOWN
    not_decided = rows[Kind.FAILED] + rows[Kind.REFUSED_LOCALLY] + rows[Kind.TO_BE_SENT]
    return Exit.FAILED if not_decided else Exit.DECIDED


def unfinished(counts: Counts) -> int:
    """Return the number of rows that still need a result."""
    return sum(counts.rows[kind] for kind in UNFINISHED)


@contextmanager
def progress_display(console: Console, counts: Counts, total: int) -> Iterator[UpdateProgress]:
    """Yield a function that updates a progress bar; without a terminal it prints a line every 10 seconds.

    Without a terminal, a last line is printed at the end.

    Args:
        console: Standard error.
        counts: The counts, which the run changes.
        total: Number of rows that need a result.
    """
    # A setting such as FORCE_COLOR makes rich treat a log as a terminal, and a bar needs control characters.
    if not console.file.isatty() or console.is_dumb_terminal:
        with _progress_lines(console, counts, total) as update_line:
            yield update_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requesting", total=total)
        yield lambda finished: progress.update(task, completed=finished, description=_text(counts))


@contextmanager
def _progress_lines(console: Console, counts: Counts, total: int) -> Iterator[UpdateProgress]:
    started = printed = time.monotonic()
    latest = 0

    def print_line() -> None:
        rows = f"{latest:,} of {counted(total, 'row')}"
        rate = latest / max(time.monotonic() - started, _MIN_ELAPSED)
        left = f"; about {duration((total - latest) / rate)} left" if 0 < latest < total else ""
        speed = f"{rate:,.0f}" if rate >= _WHOLE_RATE else f"{rate:.1f}"
        line = f"{rows}: {_text(counts)}; {speed} rows/s{left}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update(finished: int) -> None:
        nonlocal printed, latest
        latest = finished
        if time.monotonic() >= printed + _LINE_INTERVAL:
            printed = time.monotonic()
            print_line()

    yield update
    print_line()


def _text(counts: Counts) -> str:
    shown = (Kind.APPROVED, Kind.REFUSED, Kind.UNKNOWN, Kind.FAILED)
    return ", ".join(f"{counts.rows[kind]:,} {kind}" for kind in shown)


@define
class Failures:
    """The causes of rows without a decision, by outcome, and the lines of unknown rows."""

    tally: CauseTally[str] = field(factory=CauseTally)
    unknown_lines: list[int] = field(factory=list)

    def seen(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records, and note the failures among them."""
        for record in records:
            if record["status"] not in DECIDED and "error" in record:
                self.tally.add(record["outcome"], f"{record['error']}: {record['message']}", record["line"])
            if record["status"] == "unknown":
                self.unknown_lines.append(record["line"])
            yield record


def report_of(counts: Counts, failures: Failures) -> dict[str, Any]:
    """Return the report of a run as JSON members."""
    return {
        "rows": counts.total,
        "counts": counts.members(),
        "failures": [
            {
                "cause": cause.text,
                "count": cause.count,
                "outcome": cause.kind,
                "lines": cause.rows,
                "advice": _ADVICE.get(cause.kind, _OTHER_ADVICE),
            }
            for cause in failures.tally.causes()
        ],
        "unknown_lines": failures.unknown_lines,
    }
