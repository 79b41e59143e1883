"""Summary of the results of `approve_many`: counts, amounts and the time since the first row."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import field, frozen

from loanasync._models.decisions import Approved
from loanasync.bulk.rows import STATUSES, RowResult


def _read_only(counts: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(counts))


@frozen(kw_only=True)
class Summary:
    """Counts and amounts of the results so far. It contains no personal data.

    Args:
        approved: Number of approved rows.
        refused: Number of refused rows.
        rejected: Number of rows whose fields the client or the service rejected.
        unknown: Number of rows whose outcome is unknown.
        failed: Number of rows with another error of the service, or with other data than a decided request.
        not_sent: Number of rows that were not sent.
        already_decided: Number of rows with status unknown or failed that an earlier call decided.
        amount_approved: Sum of the approved amounts, in euro cents.
        amount_refused: Sum of the refused amounts, in euro cents.
        amount_unknown: Sum of the amounts whose outcome is unknown, in euro cents.
        net_amount: Sum that the shop receives, in euro cents, as far as the service reported it.
        elapsed: Seconds since the first row.
        errors: Number of rows without a decision, by the name of their error, the most frequent one first.

    Example:
        >>> from loanasync.bulk import Summary
        >>> Summary().rows
        0
    """

    approved: int = 0
    refused: int = 0
    rejected: int = 0
    unknown: int = 0
    failed: int = 0
    not_sent: int = 0
    already_decided: int = 0
    amount_approved: int = 0
    amount_refused: int = 0
    amount_unknown: int = 0
    net_amount: int = 0
    elapsed: float = 0.0
    errors: Mapping[str, int] = field(factory=dict, converter=_read_only)

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return sum(number for _, number in self._counts)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{number} {status}" for status, number in self._counts if number or status == "approved"
        )
        euro = f"{self.amount_approved / 100:.2f} euro approved"
        return f"<{self._title}: {counts}{self._earlier}; {euro}{self._errors}>"

    @property
    def _counts(self) -> list[tuple[str, int]]:
        return [(status, getattr(self, status)) for status in STATUSES]

    @property
    def _earlier(self) -> str:
        return f", {self.already_decided} of them already decided" if self.already_decided else ""

    @property
    def _errors(self) -> str:
        return "".join(f"; {number} × {name}" for name, number in self.errors.items())

    @property
    def _title(self) -> str:
        return "Summary of 1 row" if self.rows == 1 else f"Summary of {self.rows} rows"

    def _repr_html_(self) -> str:
        from loanasync._models import notebook  # noqa: PLC0415  (only notebooks need it)

        rows = [
            (status, number, notebook.euro(getattr(self, f"amount_{status}", None)))
            for status, number in self._counts
            if number
        ]
        notes = [
            f"net amount {notebook.euro(self.net_amount)}; {self.elapsed:.3g} s since the first row",
            *filter(None, self._errors.split("; ")),
        ]
        return notebook.table(self._title + self._earlier, ("status", "rows", "amount"), rows, notes)


class Tally:
    """Counts results as they arrive, in constant memory.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started: float | None = None
        self._counts: Counter[str] = Counter()  # by status, or the names of the summary's other numbers
        self._errors: Counter[str] = Counter()

    def start(self) -> None:
        """Start the clock, unless it runs already."""
        if self._started is None:
            self._started = self._now()

    def add(self, result: RowResult) -> None:
        """Count a result."""
        counts, status, decision = self._counts, result.status, result.decision
        counts[status] += 1
        if decision is None:
            self._errors[type(result.error).__name__] += 1
            counts["already_decided"] += result.already_decided
            if status == "unknown" and type(result.request.amount) is int:
                counts["amount_unknown"] += result.request.amount
            return
        counts[f"amount_{status}"] += decision.amount or result.request.amount
        if isinstance(decision, Approved):
            counts["net_amount"] += decision.net_amount or 0

    def summary(self) -> Summary:
        """Return the summary of all results so far."""
        elapsed = 0.0 if self._started is None else self._now() - self._started
        return Summary(**self._counts, elapsed=elapsed, errors=dict(self._errors.most_common()))
