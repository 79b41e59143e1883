"""Progress and summary of `approve-many` as text."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loanasync.cli.causes import CauseTally
from loanasync.cli.console import counted, duration, print_message
from loanasync.cli.exit_codes import Exit

STATUSES = ("approved", "refused", "rejected", "unknown", "failed", "not_sent")
_LINE_INTERVAL = 10.0  # seconds between two progress lines where there is no terminal
_MIN_ELAPSED = 0.1  # seconds; a rate over a shorter time says nothing
_WHOLE_RATE = 10  # rows per second from which a rate is shown without decimals
_MOST_GROUPS = 10  # groups of rows without a decision that are printed

UpdateProgress: TypeAlias = Callable[[], None]


def euro(cents: int) -> str:
    """Return an amount in euro cents as euro: "1,234.50"."""
    return f"{cents / 100:,.2f}"


@define
class Counts:
    """Number of rows and sum of their amounts, by status; and the causes of rows without a decision."""

    rows: Counter[str] = field(factory=Counter)
    sent: Counter[str] = field(factory=Counter)
    cents: Counter[str] = field(factory=Counter)
    causes: CauseTally[str] = field(factory=CauseTally)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count the record of a row."""
        status = record["status"]
        self.rows[status] += 1
        self.sent[status] += record["sent"]
        self.cents[status] += record["amount_cents"] or 0
        if record["error"] is not None:
            self.causes.add(status, f"{record['error']}: {record['message']}", record["line"])

    @property
    def text(self) -> str:
        """The counts in one line."""
        shown = (each for each in STATUSES if each in ("approved", "refused") or self.rows[each])
        return ", ".join(f"{self.rows[each]:,} {each}" for each in shown)

    @property
    def exit_code(self) -> Exit:
        """The exit code for these rows."""
        if self.rows["rejected"] + self.rows["failed"] + self.rows["not_sent"]:
            return Exit.FAILED
        return Exit.UNKNOWN if self.rows["unknown"] else Exit.DECIDED

    def table(self, title: str, statuses: Iterable[str] = STATUSES) -> Table:
        """Return the counts as a table."""
        table = Table("status", title=title, title_justify="left")
        for name in ("rows", "sent now", "euro"):
            table.add_column(name, justify="right")
        for each in statuses:
            if self.rows[each]:
                table.add_row(each, f"{self.rows[each]:,}", f"{self.sent[each]:,}", euro(self.cents[each]))
        sums = (f"{each.total():,}" for each in (self.rows, self.sent))
        table.add_row("total", *sums, euro(self.cents.total()))
        return table

    def print_causes(self) -> None:
        """Print the causes of rows without a decision, with the first lines of each."""
        causes = self.causes.causes()
        for cause in causes[:_MOST_GROUPS]:
            print_message(cause.line(f"{cause.kind}: {cause.text}"))
        if (others := len(causes) - _MOST_GROUPS) > 0:
            print_message(f"and {counted(others, 'other cause')} in the results")


@contextmanager
def progress_display(console: Console, counts: Counts, total: int) -> Iterator[UpdateProgress]:
    """Yield a function that updates a progress bar; without a terminal it prints a line every 10 seconds.

    Without a terminal, a last line is printed at the end.

    Args:
        console: Standard error.
        counts: The counts, which the run changes.
        total: Number of rows.
    """
    # A setting such as FORCE_COLOR makes rich treat a log as a terminal, and a bar needs control characters.
    if not console.file.isatty() or console.is_dumb_terminal:
        with _progress_lines(console, counts, total) as update_line:
            yield update_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requesting", total=total)
        yield lambda: progress.update(task, completed=counts.rows.total(), description=counts.text)


@contextmanager
def _progress_lines(console: Console, counts: Counts, total: int) -> Iterator[UpdateProgress]:
    started = printed = time.monotonic()

    def print_line() -> None:
        latest = counts.rows.total()
        rate = latest / max(time.monotonic() - started, _MIN_ELAPSED)
        left = f"; about {duration((total - latest) / rate)} left" if 0 < latest < total else ""
        speed = f"{rate:,.0f}" if rate >= _WHOLE_RATE else f"{rate:.1f}"
        line = f"{latest:,} of {counted(total, 'row')}: {counts.text}; {speed} rows/s{left}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update() -> None:
        nonlocal printed
        if time.monotonic() >= printed + _LINE_INTERVAL:
            printed = time.monotonic()
            print_line()

    yield update
    print_line()
