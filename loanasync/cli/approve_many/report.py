"""Plan, progress and report of `approve-many`, as text and as JSON."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loanasync.bulk import FailureGroup, Summary
from loanasync.cli.console import counted, listed_lines

_MOST_GROUPS = 10  # groups of failed rows or problems that are printed
_ADVICE = {
    "not_sent": "correct the cause, then send these rows again",
    "not_evaluated": "correct the cause, then send these rows again",
    "unknown": "ask the service for the outcomes; do not send these rows again",
}
_OTHER_ADVICE = "the customers were decided before; do not send these rows again"
_LINE_INTERVAL = 10.0  # seconds between two progress lines where there is no terminal
_MIN_ELAPSED = 0.1  # seconds; a rate over a shorter time says nothing
_WHOLE_RATE = 10  # rows per second from which a rate is shown without decimals

UpdateProgress: TypeAlias = Callable[[Summary], None]


@define
class Plan:
    """Numbers of rows, known before anything is sent."""

    rows: int = 0
    new: int = 0
    decided: int = 0
    unknown: int = 0
    failed: int = 0
    busy: int = 0
    invalid: int = 0
    duplicates: int = 0
    amount: int = 0  # of the new rows, in euro cents
    # Number of rows, by kind, that the ledger knows and the results lack.
    unreported: Counter[str] = field(factory=Counter)

    @property
    def results_to_write(self) -> int:
        """Number of results that this run writes, without those of invalid rows."""
        return self.new + self.busy + self.unreported.total()

    def already_reported(self, kind: str) -> int:
        """Return the number of rows of a kind that were in the results before this run."""
        return int(getattr(self, kind)) - self.unreported[kind]


def euro(cents: int) -> str:
    """Return an amount in euro cents as euro: "1,234.50"."""
    return f"{cents / 100:,.2f}"


def _table(
    title: str, rows: Iterable[tuple[str, int, str]], optional: Iterable[tuple[str, int, str]]
) -> Table:
    """Return a table of rows, and of those optional rows whose number is not 0."""
    table = Table("rows", title=title, title_justify="left")
    table.add_column("number", justify="right")
    table.add_column("euro", justify="right")
    for name, number, euro in (*rows, *(each for each in optional if each[1])):
        table.add_row(name, f"{number:,}", euro)
    return table


def plan_table(plan: Plan) -> Table:
    """Return the plan as a table."""
    table = _table(
        "plan",
        [("to be requested", plan.new, euro(plan.amount))],
        [
            ("already decided", plan.decided, ""),
            ("outcome unknown, will not be requested again", plan.unknown, ""),
            ("failed in an earlier run, will not be requested again", plan.failed, ""),
            ("in progress in another command", plan.busy, ""),
            ("invalid, will not be sent", plan.invalid, ""),
            ("of these, duplicate customers", plan.duplicates, ""),
        ],
    )
    table.add_row("total", f"{plan.rows:,}", "")
    return table


def summary_table(summary: Summary, *, invalid: int, plan: Plan, unsent: int) -> Table:
    """Return the results of a run as a table."""
    return _table(
        "results",
        [
            ("approved", summary.approved, euro(summary.amount_approved)),
            ("refused", summary.refused, euro(summary.amount_refused)),
        ],
        [
            ("rejected", summary.rejected + invalid, ""),
            ("error", summary.error, ""),
            ("outcome unknown", summary.unknown, euro(summary.amount_unknown)),
            ("outcome unknown since an earlier run", plan.already_reported("unknown"), ""),
            ("decided in an earlier run", plan.already_reported("decided"), ""),
            ("failed in an earlier run", plan.already_reported("failed"), ""),
            ("not requested yet", unsent, ""),
        ],
    )


def duration_line(summary: Summary, *, has_decisions: bool) -> str:
    """Return a line with the duration of the run, and the latency of its decisions.

    Args:
        summary: The results of the run.
        has_decisions: True if requests of this run were decided, and not only read from the ledger.
    """
    if not has_decisions:
        return f"{summary.elapsed:.1f} s"
    half, most = _seconds(summary.latency_50), _seconds(summary.latency_99)
    return f"{summary.elapsed:.1f} s; half of the decisions arrived within {half}, 99 % within {most}"


def failure_lines(failures: Sequence[FailureGroup], results: str) -> Iterator[str]:
    """Yield a line for each of the largest groups of failed rows.

    Args:
        failures: The groups, the largest one first. Their `rows` are line numbers.
        results: Name of the results, which contain the error of each row.
    """
    for group in failures[:_MOST_GROUPS]:
        yield f"{group} ({listed_lines(group.rows, group.count)})"
    if (others := len(failures) - _MOST_GROUPS) > 0:
        yield f"and {counted(others, 'other cause')} in {results}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds * 1_000, 1):.0f} ms"


def report_members(
    summary: Summary, failures: Sequence[FailureGroup], *, invalid: int, plan: Plan, unsent: int
) -> dict[str, Any]:
    """Return the results of a run as the members of the JSON report."""
    results = {
        status: getattr(summary, status) for status in ("approved", "refused", "rejected", "unknown", "error")
    }
    results["rejected"] += invalid
    return {
        "rows": plan.rows,
        "results": results,
        "earlier": {kind: plan.already_reported(kind) for kind in ("decided", "unknown", "failed")},
        "not_requested": unsent,
        "failures": [
            {
                "cause": group.cause,
                "count": group.count,
                "outcome": group.outcome,
                "lines": group.rows,
                "advice": _ADVICE.get(group.outcome, _OTHER_ADVICE),
            }
            for group in failures
        ],
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
def progress_display(console: Console, total: int) -> Iterator[UpdateProgress]:
    """Yield a function that updates a progress bar; without a terminal it prints a line every 10 seconds.

    Without a terminal, a last line is printed at the end.
    """
    # A setting such as FORCE_COLOR makes rich treat a log as a terminal, and a bar needs control characters.
    if not console.file.isatty() or console.is_dumb_terminal:
        with _progress_lines(console, total) as update_line:
            yield update_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requesting", total=total)

        def update_bar(summary: Summary) -> None:
            progress.update(task, completed=summary.rows, description=_counts(summary))

        yield update_bar


@contextmanager
def _progress_lines(console: Console, total: int) -> Iterator[UpdateProgress]:
    started = printed = time.monotonic()
    latest = Summary()

    def print_line() -> None:
        rows = f"{latest.rows:,} of {counted(total, 'row')}"
        rate = latest.rows / max(time.monotonic() - started, _MIN_ELAPSED)
        left = f"; about {_rounded((total - latest.rows) / rate)} left" if 0 < latest.rows < total else ""
        speed = f"{rate:,.0f}" if rate >= _WHOLE_RATE else f"{rate:.1f}"
        console.print(
            f"{rows}: {_counts(latest)}; {speed} rows/s{left}", highlight=False, markup=False, soft_wrap=True
        )

    def update(summary: Summary) -> None:
        nonlocal printed, latest
        latest = summary
        if time.monotonic() >= printed + _LINE_INTERVAL:
            printed = time.monotonic()
            print_line()

    yield update
    print_line()


def _counts(summary: Summary) -> str:
    failed = summary.rejected + summary.unknown + summary.error
    return f"{summary.approved:,} approved, {summary.refused:,} refused, {failed:,} failed"


def _rounded(seconds: float) -> str:
    """Return a duration in the largest unit of which there are more than one."""
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"
