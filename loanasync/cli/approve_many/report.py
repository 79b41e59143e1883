"""The report of a run: progress, numbers of rows by status, and the causes of rows without a decision."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from loanasync.bulk.rows import STATUSES
from loanasync.cli.console import counted, duration, listed_lines, print_message
from loanasync.cli.exit_codes import Exit

_LINE_INTERVAL = 10.0  # seconds between two progress lines
_MIN_ELAPSED = 0.1  # seconds; a rate over a shorter time says nothing
_WHOLE_RATE = 10  # rows per second from which a rate is shown without decimals
_ROWS_OF_CAUSE = 3  # rows that are kept of each cause
_MOST_CAUSES = 1_000  # causes whose text is kept; messages of further ones are only counted
_SHOWN_CAUSES = 20  # causes that are printed; one row can have a problem in each field
# Numbers, dates, ids and keys: everything that contains a digit. A match begins at the start of a word, so
# that a long word without a digit is searched only once.
_VARYING = re.compile(r"((?<![\w-])[\w-]*\d[\w-]*)")


@define
class _Cause:
    """A message that is the same for some rows, except for its numbers and ids."""

    kind: str
    parts: list[str]
    count: int = 0
    rows: list[int] = field(factory=list)  # the lowest numbers, in order

    def add(self, parts: list[str], row: int) -> None:
        self.parts = [own if own == other else "…" for own, other in zip(self.parts, parts, strict=True)]
        self.count += 1
        self.rows = sorted((*self.rows, row))[:_ROWS_OF_CAUSE]

    def __str__(self) -> str:
        text = ": ".join(filter(None, (self.kind, "".join(self.parts))))
        return f"{self.count:,} × {text} ({listed_lines(self.rows, self.count)})"


class Causes:
    """Counts messages about rows. Those of one kind that differ only in numbers and ids are one cause."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, ...], _Cause] = {}
        self.count: int = 0

    def add(self, kind: str, message: str, row: int) -> None:
        """Count a message of a row."""
        parts = _VARYING.split(message)
        key = (kind, *parts[::2])  # every other part is a number or an id
        if key in self._causes or len(self._causes) < _MOST_CAUSES:
            self._causes.setdefault(key, _Cause(kind, parts)).add(parts, row)
        self.count += 1

    def print(self) -> bool:
        """Print a line for each of the most frequent causes. Return False if some rows are not shown."""
        causes = sorted(self._causes.values(), key=lambda cause: -cause.count)
        for cause in causes[:_SHOWN_CAUSES]:
            print_message(str(cause))
        if left := self.count - sum(cause.count for cause in causes[:_SHOWN_CAUSES]):
            print_message(f"and {counted(left, 'other')}")
        return not left and all(cause.count == len(cause.rows) for cause in causes)


def euro(cents: int) -> str:
    """Return an amount in euro cents as euro: "1,234.50"."""
    return f"{cents / 100:,.2f}"


@define
class Counts:
    """Number of rows and sum of their amounts, by status; and the causes of rows without a decision."""

    rows: Counter[str] = field(factory=Counter)
    sent: Counter[str] = field(factory=Counter)
    cents: Counter[str] = field(factory=Counter)
    causes: Causes = field(factory=Causes)

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

    def table(self, title: str, statuses: Iterable[str] = STATUSES) -> str:
        """Return the counts as lines of text."""
        found = filter(self.rows.__getitem__, statuses)
        shown = [(each, self.rows[each], self.sent[each], self.cents[each]) for each in found]
        shown.append(("total", self.rows.total(), self.sent.total(), self.cents.total()))
        lines = (f"{name:<24}{rows:>9,}{sent:>10,}{euro(cents):>16}" for name, rows, sent, cents in shown)
        return "\n".join((f"{title:<24}{'rows':>9}{'sent now':>10}{'euro':>16}", *lines))


@contextmanager
def progress_lines(counts: Counts, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function that prints a line at most every 10 seconds. A last line is printed at the end.

    Args:
        counts: The counts, which the run changes.
        total: Number of rows.
    """
    started = printed = time.monotonic()

    def print_line() -> None:
        latest = counts.rows.total()
        rate = latest / max(time.monotonic() - started, _MIN_ELAPSED)
        left = f"; about {duration((total - latest) / rate)} left" if 0 < latest < total else ""
        speed = f"{rate:,.0f}" if rate >= _WHOLE_RATE else f"{rate:.1f}"
        print_message(f"{latest:,} of {counted(total, 'row')}: {counts.text}; {speed} rows/s{left}")

    def update() -> None:
        nonlocal printed
        if time.monotonic() >= printed + _LINE_INTERVAL:
            printed = time.monotonic()
            print_line()

    yield update
    print_line()
