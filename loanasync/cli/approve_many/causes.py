"""Messages about rows, grouped by their cause."""

import re

from attrs import define, field

from loanasync.cli.console import counted, listed_lines, print_message

_EXAMPLES = 3  # rows that are kept of each cause
_KEPT = 1_000  # causes whose text is kept; messages of further ones are only counted
_MOST = 20  # causes that are printed; one row can have a problem in each field
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
        self.rows = sorted((*self.rows, row))[:_EXAMPLES]

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
        if key in self._causes or len(self._causes) < _KEPT:
            self._causes.setdefault(key, _Cause(kind, parts)).add(parts, row)
        self.count += 1

    def print(self) -> bool:
        """Print a line for each of the most frequent causes. Return False if some rows are not shown."""
        causes = sorted(self._causes.values(), key=lambda cause: -cause.count)
        for cause in causes[:_MOST]:
            print_message(str(cause))
        if left := self.count - sum(cause.count for cause in causes[:_MOST]):
            print_message(f"and {counted(left, 'other')}")
        return not left and all(cause.count == len(cause.rows) for cause in causes)
