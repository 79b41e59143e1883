"""Plan, progress and report of `approve-many`, as text and as JSON."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Drawn

from loanasync.bulk import Summary

_EVERY = 10.0  # seconds between two lines where there is no terminal

Ticker: TypeAlias = Callable[[Summary], None]


@define
class Plan:
    """What is in a file, before anything is sent."""

    rows: int = 0
    new: int = 0
    decided: int = 0
    unknown: int = 0
    failed: int = 0
    busy: int = 0
    invalid: int = 0
    duplicates: int = 0
    amount: int = 0  # of the new ones, euro cents
    untold: Counter[str] = field(factory=Counter)  # known, of these kinds, and not in the results

    @property
    def to_come(self) -> int:
        """How many results are still to be written."""
        return self.new + self.busy + self.untold.total()

    def earlier(self, kind: str) -> int:
        """How many of a kind the results had before."""
        return int(getattr(self, kind)) - self.untold[kind]


def _euro(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def _drawn(title: str, rows: Iterable[tuple[str, int, str]], others: Iterable[tuple[str, int, str]]) -> Drawn:
    """Return a table of rows, and of other rows whose number is not 0."""
    drawn = Drawn("rows", title=title, title_justify="left")
    drawn.add_column("number", justify="right")
    drawn.add_column("euro", justify="right")
    for name, number, euro in (*rows, *(each for each in others if each[1])):
        drawn.add_row(name, f"{number:,}", euro)
    return drawn


def plan_of(plan: Plan) -> Drawn:
    """Return the plan as a table."""
    drawn = _drawn(
        "plan",
        [("to be asked for", plan.new, _euro(plan.amount))],
        [
            ("decided already", plan.decided, ""),
            ("of unknown outcome, never asked again", plan.unknown, ""),
            ("failed for good before", plan.failed, ""),
            ("being asked for by another command", plan.busy, ""),
            ("wrong, and not sent", plan.invalid, ""),
            ("of these a customer's second", plan.duplicates, ""),
        ],
    )
    drawn.add_row("all", f"{plan.rows:,}", "")
    return drawn


def summary_of(summary: Summary, *, invalid: int, before: Plan, unsent: int) -> Drawn:
    """Return the numbers of a run as a table."""
    return _drawn(
        "results",
        [
            ("approved", summary.approved, _euro(summary.amount_approved)),
            ("refused", summary.refused, _euro(summary.amount_refused)),
        ],
        [
            ("rejected", summary.rejected + invalid, ""),
            ("error", summary.error, ""),
            ("unknown: settle them with the service", summary.unknown, _euro(summary.amount_unknown)),
            ("unknown since an earlier run", before.earlier("unknown"), ""),
            ("decided in an earlier run", before.earlier("decided"), ""),
            ("failed for good in an earlier run", before.earlier("failed"), ""),
            ("not asked for yet", unsent, ""),
        ],
    )


def seconds_of(summary: Summary) -> str:
    """How long it took."""
    if not summary.approved + summary.refused:
        return f"{summary.elapsed:.1f} s"
    half, most = f"{summary.latency_50:.3g} s", f"{summary.latency_99:.3g} s"
    return f"{summary.elapsed:.1f} s; half of the decisions came within {half}, 99 % within {most}"


def report_of(summary: Summary, *, invalid: int, before: Plan, unsent: int) -> dict[str, Any]:
    """The same, for programs."""
    kinds = {kind: getattr(summary, kind) for kind in ("approved", "refused", "rejected", "unknown", "error")}
    kinds["rejected"] += invalid
    earlier = {kind: before.earlier(kind) for kind in ("decided", "unknown", "failed")}
    return {
        "rows": before.rows,
        "results": kinds,
        "earlier": earlier,
        "not_asked": unsent,
        "cents": {
            "approved": summary.amount_approved,
            "refused": summary.amount_refused,
            "unknown": summary.amount_unknown,
            "net": summary.net_amount,
        },
        "seconds": {
            "elapsed": round(summary.elapsed, 3),
            "latency_50": round(summary.latency_50, 6),
            "latency_95": round(summary.latency_95, 6),
            "latency_99": round(summary.latency_99, 6),
        },
    }


@contextmanager
def ticking(console: Console, total: int) -> Iterator[Ticker]:
    """Yield a function that shows a bar on a terminal, and elsewhere prints a line every 10 seconds."""
    if not console.is_terminal:
        printed = time.monotonic()

        def print_line(summary: Summary) -> None:
            nonlocal printed
            if time.monotonic() < printed + _EVERY:
                return
            printed = time.monotonic()
            said = f"{summary.rows:,} of {total:,} rows: {summary.approved:,} approved"
            console.print(f"{said}, {summary.refused:,} refused", highlight=False)

        yield print_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("asking", total=total)

        def move_bar(summary: Summary) -> None:
            told = f"{summary.approved:,} approved, {summary.refused:,} refused"
            progress.update(task, completed=summary.rows, description=told)

        yield move_bar
