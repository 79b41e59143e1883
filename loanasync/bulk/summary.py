"""Summary of the results of `approve_many`: counts, amounts and durations."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from attrs import frozen

from loanasync._results import Approved
from loanasync.bulk.causes import FailureGroup, FailureTally
from loanasync.bulk.rows import RowResult, Status

_STATUSES = ("approved", "refused", "rejected", "unknown", "error")
_BUCKETS_PER_OCTAVE = 32  # latency buckets from one power of two to the next, for a precision of 3 %
_MIN_LATENCY = 1e-6  # seconds
_MOST_NOTES = 10  # groups of failures in a notebook


@frozen(kw_only=True)
class Summary:
    """Counts, amounts and durations of the results so far. It contains no personal data.

    Latencies are those of decisions only. They are precise to 3 %.

    Args:
        approved: Number of approved rows.
        refused: Number of refused rows.
        rejected: Number of rows whose fields the client or the service rejected.
        unknown: Number of rows whose outcome is unknown.
        error: Number of rows with another error.
        already_decided: Number of those rows, with status unknown or error, that an earlier call decided.
        amount_approved: Sum of the approved amounts, in euro cents.
        amount_refused: Sum of the refused amounts, in euro cents.
        amount_unknown: Sum of the amounts whose outcome is unknown, in euro cents.
        net_amount: Sum that the shop receives, in euro cents, as far as the service reported it.
        elapsed: Seconds since the first row.
        latency_50: Half of the decisions arrived within this time, in seconds.
        latency_95: 95 % of the decisions arrived within this time, in seconds.
        latency_99: 99 % of the decisions arrived within this time, in seconds.
        latency_max: All decisions arrived within this time, in seconds.
        failures: The rejected, unknown and error rows, grouped by cause. The largest group comes first.

    Example:
        >>> from loanasync.bulk import Summary
        >>> Summary().rows
        0
    """

    approved: int = 0
    refused: int = 0
    rejected: int = 0
    unknown: int = 0
    error: int = 0
    already_decided: int = 0
    amount_approved: int = 0
    amount_refused: int = 0
    amount_unknown: int = 0
    net_amount: int = 0
    elapsed: float = 0.0
    latency_50: float = 0.0
    latency_95: float = 0.0
    latency_99: float = 0.0
    latency_max: float = 0.0
    failures: tuple[FailureGroup, ...] = ()

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return self.approved + self.refused + self.rejected + self.unknown + self.error

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{getattr(self, status)} {status}"
            for status in _STATUSES
            if getattr(self, status) or status == "approved"
        )
        euro = f"{self.amount_approved / 100:.2f} euro approved"
        half, most = f"{self.latency_50:.3g} s", f"{self.latency_99:.3g} s"
        latency = f"half of the decisions within {half}, 99 % within {most}"
        failures = "; failures: " + self._failures_by_type if self.failures else ""
        return f"<{self._title}: {counts}{self._earlier}; {euro}; {latency}{failures}>"

    @property
    def _earlier(self) -> str:
        return f", {self.already_decided} of them already decided" if self.already_decided else ""

    @property
    def _failures_by_type(self) -> str:
        counts: Counter[str] = Counter()
        for group in self.failures:
            counts[group.cause.partition(":")[0]] += group.count
        return ", ".join(f"{count} × {name}" for name, count in counts.most_common())

    @property
    def _title(self) -> str:
        return "Summary of 1 row" if self.rows == 1 else f"Summary of {self.rows} rows"

    def _repr_html_(self) -> str:
        from loanasync._display import notebook  # noqa: PLC0415  (only notebooks need it)

        lines = [
            (status, getattr(self, status), getattr(self, f"amount_{status}", None)) for status in _STATUSES
        ]
        rows = [(status, number, notebook.euro(cents)) for status, number, cents in lines if number]
        shares = {"half": self.latency_50, "95 %": self.latency_95, "99 %": self.latency_99}
        within = ", ".join(f"{share} within {seconds:.3g} s" for share, seconds in shares.items())
        notes = [
            f"net amount {notebook.euro(self.net_amount)}; {self.elapsed:.3g} s since the first row",
            f"decisions: {within}, all within {self.latency_max:.3g} s",
            *map(str, self.failures[:_MOST_NOTES]),
        ]
        if len(self.failures) > _MOST_NOTES:
            notes.append(f"and {len(self.failures) - _MOST_NOTES} other causes, see failures")
        return notebook.table(self._title + self._earlier, ("status", "rows", "amount"), rows, notes)


class Tally:
    """Counts results as they arrive, in constant memory.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started: float | None = None
        self._counts: dict[Status, int] = {
            "approved": 0, "refused": 0, "rejected": 0, "unknown": 0, "error": 0
        }  # fmt: skip
        self._amounts: dict[Status, int] = dict.fromkeys(self._counts, 0)
        self._already_decided = 0
        self._net = 0
        self._failures = FailureTally()
        self._latencies: dict[int, int] = defaultdict(int)  # number of decisions by logarithmic bucket

    def start(self) -> None:
        """Start the clock, unless it runs already."""
        if self._started is None:
            self._started = self._now()

    def add(self, result: RowResult) -> None:
        """Count a result."""
        status = result.status
        self._counts[status] += 1
        decision = result.decision
        if decision is None:
            self._failures.add(result.error, result.outcome, result.index)
            self._already_decided += result.already_decided
            if status == "unknown" and type(result.request.amount) is int:
                self._amounts[status] += result.request.amount
            return
        self._amounts[status] += decision.amount or result.request.amount
        if isinstance(decision, Approved):
            self._net += decision.net_amount or 0
        elapsed = decision.meta.elapsed or _MIN_LATENCY
        self._latencies[math.ceil(math.log2(elapsed) * _BUCKETS_PER_OCTAVE)] += 1

    def summary(self) -> Summary:
        """Return the summary of all results so far."""
        return Summary(
            **self._counts,
            already_decided=self._already_decided,
            amount_approved=self._amounts["approved"],
            amount_refused=self._amounts["refused"],
            amount_unknown=self._amounts["unknown"],
            net_amount=self._net,
            elapsed=0.0 if self._started is None else self._now() - self._started,
            latency_50=self._quantile(0.50),
            latency_95=self._quantile(0.95),
            latency_99=self._quantile(0.99),
            latency_max=self._quantile(1),
            failures=self._failures.groups(),
        )

    def _quantile(self, share: float) -> float:
        left = share * sum(self._latencies.values())
        for bucket, number in sorted(self._latencies.items()):
            left -= number
            if left <= 0:
                return math.pow(2, bucket / _BUCKETS_PER_OCTAVE)
        return 0.0
