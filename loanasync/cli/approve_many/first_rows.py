"""The rule that stops a run if its first rows all fail for one cause."""

from attrs import define, field

from loanasync.bulk.causes import FailureTally
from loanasync.errors import Outcome

# If this many rows fail for one cause, before any row succeeds, the cause concerns the whole file. Fewer
# rows could fail by chance. With more, a wrong setting would cost more calls.
_FIRST_ROWS = 20


@define
class FirstRows:
    """The first rows that a run sends, without those that an earlier run has sent.

    Rows that failed before are sent again first, and often fail again for one cause. Each row is counted
    before it is sent, because failures may arrive before successes.
    """

    _sent: int = field(init=False, default=0)
    _failures: FailureTally = field(init=False, factory=FailureTally)

    def add(self) -> bool:
        """Count a row that will be sent. Return True if it is one of the first rows."""
        self._sent += 1
        return self._sent <= _FIRST_ROWS

    def add_failure(self, error: Exception | None, outcome: Outcome) -> None:
        """Count the failure of one of the first rows."""
        self._failures.add(error, outcome, 0)

    @property
    def reason(self) -> str:
        """The reason to stop if all first rows have failed for one cause, otherwise an empty text."""
        groups = self._failures.groups()
        if not groups or groups[0].count < _FIRST_ROWS:
            return ""
        cause = groups[0].cause.partition(":")[0]
        return f"stopped because the first {_FIRST_ROWS} rows all failed for the same cause ({cause})"
