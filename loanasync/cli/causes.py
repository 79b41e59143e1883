"""Messages about rows, grouped by their cause."""

import re
from collections.abc import Hashable
from typing import Generic, TypeVar

from attrs import define, field

from loanasync.cli.console import listed_lines

_EXAMPLES = 3  # rows that are kept of each group
_MAX_CAUSES = 1_000  # of one tally, which must not grow with the number of rows
_OTHER = "other causes"
# Numbers, dates, ids and keys: everything that contains a digit. A match begins at the start of a word, so
# that a long word without a digit is searched only once.
_VARYING = re.compile(r"((?<![\w-])[\w-]*\d[\w-]*)")

Kind = TypeVar("Kind", bound=Hashable)


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

    def line(self, text: str) -> str:
        """Return a line of output: the number of rows, a text, and the first rows."""
        return f"{self.count:,} × {text} ({listed_lines(self.rows, self.count)})"

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
