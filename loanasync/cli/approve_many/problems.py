"""The problems of a file's rows, printed in groups."""

from collections.abc import Iterable
from typing import TypeAlias

from attrs import define, field

from loanasync.bulk import InputProblem
from loanasync.cli.causes import Cause, CauseTally
from loanasync.cli.console import counted, print_message

_MOST_GROUPS = 20  # groups that are printed; one row can have a problem in each field
_Place: TypeAlias = tuple[str, str, str]  # file, column and field


@define
class ProblemList:
    """The problems of an input file."""

    _tally: CauseTally[_Place] = field(init=False, factory=CauseTally)
    count: int = field(init=False, default=0)

    def add(self, problems: Iterable[InputProblem]) -> None:
        """Add the problems of a row."""
        for problem in problems:
            self.count += 1
            self._tally.add((problem.file, problem.column, problem.field), problem.message, problem.line)

    def print(self, rejected: str | None = None) -> None:
        """Print a line for each group.

        Args:
            rejected: The file of rejected rows, which has all problems.
        """
        causes = self._tally.causes()
        for cause in causes[:_MOST_GROUPS]:
            print_message(_line_of(cause))
        others = causes[_MOST_GROUPS:]
        if others:
            print_message(f"and {counted(sum(each.count for each in others), 'other problem')}")
        if others or any(cause.count > len(cause.rows) for cause in causes):
            number = counted(self.count, "problem")
            print_message(
                f"to list all {number} with their rows, add --rejected FILE"
                if rejected is None
                else f"all {number} with their rows are listed in {rejected}"
            )


def _line_of(cause: Cause[_Place]) -> str:
    file, column, name = cause.kind
    if cause.count == 1:
        return str(InputProblem(file, cause.rows[0], column, name, cause.text))
    place = name if name and column.endswith(f" {name!r}") else ", ".join(filter(None, (name, column)))
    message = f"{place}: {cause.text}" if place else cause.text
    return f"{file}: {cause.line(message)}"
