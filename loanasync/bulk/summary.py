"""Summary of the results of `approve_many`: counts, sums and durations."""

import math
import time
from collections import defaultdict
from collections.abc import Callable

from attrs import frozen

from loanasync._results import Approved
from loanasync.bulk.rows import RowResult, Status

_KINDS = ("approved", "refused", "rejected", "unknown", "error")
_STEPS = 32  # of latency from each power of two to the next: it is known to 3 %
_SHORTEST = 1e-6  # seconds


@frozen(kw_only=True)
class Summary:
    """What became of the rows until now; nothing personal in it.

    Args:
        approved: Rows that were approved; so `refused`, `rejected`, `unknown` and `error`.
        amount_approved: What was approved, euro cents; so `amount_refused` and `amount_unknown`.
        net_amount: What the shop receives, euro cents, as far as the service said so.
        elapsed: Seconds since the first row.
        latency_50: Seconds in which half of the decisions came, to 3 %.
        latency_95: So, 95 % of them.
        latency_99: So, 99 % of them.
        latency_max: So, all of them.

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
    amount_approved: int = 0
    amount_refused: int = 0
    amount_unknown: int = 0
    net_amount: int = 0
    elapsed: float = 0.0
    latency_50: float = 0.0
    latency_95: float = 0.0
    latency_99: float = 0.0
    latency_max: float = 0.0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.approved + self.refused + self.rejected + self.unknown + self.error

    def __repr__(self) -> str:
        kinds = ", ".join(
            f"{getattr(self, kind)} {kind}" for kind in _KINDS if getattr(self, kind) or kind == "approved"
        )
        euro = f"{self.amount_approved / 100:.2f} euro approved"
        half, most = f"{self.latency_50:.3g} s", f"{self.latency_99:.3g} s"
        told = f"half of the decisions within {half}, 99 % within {most}"
        return f"<Summary of {self.rows} rows: {kinds}; {euro}; {told}>"

    def _repr_html_(self) -> str:
        from loanasync._display import notebook  # noqa: PLC0415  (in a notebook only)

        lines = [(kind, getattr(self, kind), getattr(self, f"amount_{kind}", None)) for kind in _KINDS]
        rows = [(kind, number, notebook.euro(cents)) for kind, number, cents in lines if number]
        shares = {"half": self.latency_50, "95 %": self.latency_95, "99 %": self.latency_99}
        within = ", ".join(f"{share} within {seconds:.3g} s" for share, seconds in shares.items())
        notes = [
            f"net amount {notebook.euro(self.net_amount)}; {self.elapsed:.3g} s since the first row",
            f"of the decisions {within}, all within {self.latency_max:.3g} s",
        ]
        return notebook.table(f"Summary of {self.rows} rows", ("status", "rows", "amount"), rows, notes)


class Tally:
    """Counts results as they come, in memory that does not grow with them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started: float | None = None
        self._counts: dict[Status, int] = {
            "approved": 0, "refused": 0, "rejected": 0, "unknown": 0, "error": 0
        }  # fmt: skip
        self._amounts: dict[Status, int] = dict.fromkeys(self._counts, 0)
        self._net = 0
        self._latencies: dict[int, int] = defaultdict(int)

    def begin(self) -> None:
        """Time runs from the first of these on."""
        if self._started is None:
            self._started = self._now()

    def add(self, result: RowResult) -> None:
        """Count one."""
        status = result.status
        self._counts[status] += 1
        decision = result.decision
        if decision is None:
            if status == "unknown" and type(result.request.amount) is int:
                self._amounts[status] += result.request.amount
            return
        self._amounts[status] += decision.amount or result.request.amount
        if isinstance(decision, Approved):
            self._net += decision.net_amount or 0
        elapsed = decision.meta.elapsed or _SHORTEST
        self._latencies[math.ceil(math.log2(elapsed) * _STEPS)] += 1

    def summary(self) -> Summary:
        """All until now."""
        return Summary(
            **self._counts,
            amount_approved=self._amounts["approved"],
            amount_refused=self._amounts["refused"],
            amount_unknown=self._amounts["unknown"],
            net_amount=self._net,
            elapsed=0.0 if self._started is None else self._now() - self._started,
            latency_50=self._within(0.50),
            latency_95=self._within(0.95),
            latency_99=self._within(0.99),
            latency_max=self._within(1),
        )

    def _within(self, share: float) -> float:
        left = share * sum(self._latencies.values())
        for step, times in sorted(self._latencies.items()):
            left -= times
            if left <= 0:
                return math.pow(2, step / _STEPS)
        return 0.0
