"""The problems of a file's rows: printed in groups, and listed completely in a file."""

from typing import TypeAlias

from attrs import define, field

from loanasync.cli.causes import Cause, CauseTally
from loanasync.cli.console import counted, listed_lines, print_message
from loanasync.cli.files import create_private, write_whole
from loanasync.cli.rows.orders import Order
from loanasync.cli.rows.source import InputProblem

_MOST_GROUPS = 20  # groups that are printed; one row can have a problem in each field
_Place: TypeAlias = tuple[str, str, str]  # file, column and field


@define
class ProblemList:
    """The problems of an input file.

    Args:
        path: File for the whole list, from ``--problems``. Only its owner may read it. None: no file.

    Raises:
        OSError: The file cannot be created.
    """

    _path: str | None
    _lines: list[str] = field(init=False, factory=list)
    _tally: CauseTally[_Place] = field(init=False, factory=CauseTally)
    count: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        if self._path is not None:
            create_private(self._path)

    def add_row(self, order: Order) -> None:
        """Add the problems of a row."""
        for problem in order.problems:
            self.add(problem)

    def add(self, problem: InputProblem) -> None:
        """Add a problem."""
        self.count += 1
        self._tally.add((problem.file, problem.column, problem.field), problem.message, problem.line)
        if self._path is not None:
            self._lines.append(f"{problem}\n")

    def print(self) -> None:
        """Print a line for each group, and write the whole list.

        Raises:
            OSError: The file cannot be written.
        """
        if self._path is not None:
            write_whole(self._path, self._lines)
        causes = self._tally.causes()
        for cause in causes[:_MOST_GROUPS]:
            print_message(_line_of(cause))
        others = causes[_MOST_GROUPS:]
        if others:
            print_message(f"and {counted(sum(each.count for each in others), 'other problem')}")
        if self._path is not None and self.count:
            print_message(f"{counted(self.count, 'problem')}, listed in {self._path}")
        elif others or any(cause.count > len(cause.rows) for cause in causes):
            print_message(f"to list all {self.count:,} problems, add --problems FILE")


def _line_of(cause: Cause[_Place]) -> str:
    file, column, name = cause.kind
    if cause.count == 1:
        return str(InputProblem(file, cause.rows[0], column, name, cause.text))
    place = name if name and column.endswith(f" {name!r}") else ", ".join(filter(None, (name, column)))
    message = f"{place}: {cause.text}" if place else cause.text
    return f"{file}: {cause.count:,} × {message} ({listed_lines(cause.rows, cause.count)})"
