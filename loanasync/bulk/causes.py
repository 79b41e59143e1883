"""Failed rows, grouped by the cause of their failure."""

import re
from collections.abc import Hashable
from typing import Generic, TypeVar

from attrs import define, field, frozen

from loanasync.errors import Outcome

_EXAMPLES = 3  # rows that are kept of each group
_MAX_CAUSES = 1_000  # of one tally, which must not grow with the number of rows
_OTHER = "other causes"
# Numbers, dates, ids and keys: everything that contains a digit. A match begins at the start of a word, so
# that a long word without a digit is searched only once.
_VARYING = re.compile(r"((?<![\w-])[\w-]*\d[\w-]*)")

Kind = TypeVar("Kind", bound=Hashable)


@frozen
class FailureGroup:
    """Rows of `LoanClient.approve_many` that failed for the same cause. It contains no personal data.

    Args:
        cause: Type and message of the error. Numbers and ids that differ between the rows are shown as "…".
        count: Number of rows.
        outcome: The rows' `RowResult.outcome`: rows with ``not_sent`` or ``not_evaluated`` may be sent again
            after the cause was corrected.
        rows: Indexes of the first rows, at most three.

    Example:
        >>> async def summarize(rows):
        ...     async with client.approve_many(rows) as results:
        ...         return [result async for result in results] and results.summary
        >>> (group,) = run(summarize([("TSTBRN00A00A000B", request), ("TSTBRN00A00A000C", request)])).failures
        >>> print(group)
        2 × UserNotFoundError: approve failed with status 400 (fiscal_code: User not found): check the fi...
        >>> group.outcome, group.rows
        ('not_evaluated', (0, 1))
    """

    cause: str
    count: int
    outcome: Outcome
    rows: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.count:,} × {self.cause}"


@define
class Cause(Generic[Kind]):
    """A message that is the same for some rows, except for its numbers and ids."""

    kind: Kind
    _parts: list[str]
    count: int = 0
    rows: list[int] = field(factory=list)  # the lowest numbers, in order

    @property
    def text(self) -> str:
        """The message, with "…" for numbers and ids that differ between the rows."""
        return "".join(self._parts)

    def add(self, parts: list[str], row: int) -> None:
        """Count a row."""
        self._parts = [own if own == other else "…" for own, other in zip(self._parts, parts, strict=True)]
        self.count += 1
        self.rows = sorted((*self.rows, row))[:_EXAMPLES]


class CauseTally(Generic[Kind]):
    """Counts messages. Messages of one kind that differ only in numbers and ids are one cause.

    After 1,000 causes, all further ones of a kind are counted as one, ``other causes``.
    """

    def __init__(self) -> None:
        self._causes: dict[Hashable, Cause[Kind]] = {}

    def add(self, kind: Kind, message: str, row: int) -> None:
        """Count a message of a row."""
        parts = _VARYING.split(message)
        key = (kind, *parts[::2])  # every other part is a number or an id
        if key not in self._causes and len(self._causes) >= _MAX_CAUSES:
            parts = [_OTHER]
            key = (kind, _OTHER)
        if key not in self._causes:
            self._causes[key] = Cause(kind, parts)
        self._causes[key].add(parts, row)

    def causes(self) -> list[Cause[Kind]]:
        """Return the causes, the most frequent one first."""
        return sorted(self._causes.values(), key=lambda cause: -cause.count)


class FailureTally:
    """Counts failed rows by cause."""

    def __init__(self) -> None:
        self._tally: CauseTally[tuple[Outcome, object]] = CauseTally()

    def add(self, error: Exception | None, outcome: Outcome, row: int) -> None:
        """Count a failed row.

        Args:
            error: Its error.
            outcome: Its outcome.
            row: The number of the row to keep as an example.
        """
        # A number that makes a difference: the status of a response, the errno of a connection.
        detail = getattr(error, "status", None) or getattr(error, "cause_type", None)
        self._tally.add((outcome, detail), f"{type(error).__name__}: {error}", row)

    def groups(self) -> tuple[FailureGroup, ...]:
        """Return the groups, the largest one first."""
        return tuple(
            FailureGroup(cause.text, cause.count, cause.kind[0], tuple(cause.rows))
            for cause in self._tally.causes()
        )
