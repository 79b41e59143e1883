"""The problems of a file's rows: printed in groups, and listed completely in a file."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from attrs import define, field

from loanasync.bulk.causes import Cause, CauseTally
from loanasync.cli.approve_many.results import Format, record_of
from loanasync.cli.console import counted, listed_lines, print_message
from loanasync.cli.rows.append import AppendFile, has_content, read_lines
from loanasync.cli.rows.orders import Order
from loanasync.cli.rows.source import InputProblem

_MOST_GROUPS = 20  # groups that are printed; one row can have a problem in each field
_Place: TypeAlias = tuple[str, str, str]  # file, column and field


@define
class ProblemList:
    """The problems of an input file.

    Args:
        path: File for the whole list, from ``--problems``. Only its owner may read it. None: no file.
        results: Name of the results.

    Raises:
        OSError: The file cannot be created.
    """

    _path: str | None
    _results: str
    _file: AppendFile | None = field(init=False, default=None)
    _tally: CauseTally[_Place] = field(init=False, factory=CauseTally)
    count: int = field(init=False, default=0)
    _known: int = field(init=False, default=0)
    # Returns True for a row whose problems are in the results of an earlier run.
    is_known: Callable[[Order], bool] = field(init=False, default=lambda _: False)

    def __attrs_post_init__(self) -> None:
        if self._path is not None:
            self._file = AppendFile(self._path, overwrite_with="")

    def add_row(self, order: Order) -> None:
        """Add the problems of a row."""
        is_known = bool(order.problems) and self.is_known(order)
        self._known += is_known
        for problem in order.problems:
            self.add(problem, is_printed=not is_known)

    def add(self, problem: InputProblem, *, is_printed: bool = True) -> None:
        """Add a problem. Write it to the file at once.

        Raises:
            OSError: The file cannot be written.
        """
        self.count += 1
        if is_printed:
            self._tally.add((problem.file, problem.column, problem.field), problem.message, problem.line)
        if self._file is not None:
            try:
                self._file.add(f"{problem}\n")
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from None

    def print(self) -> None:
        """Print a line for each group, and the place of the whole list."""
        causes = self._tally.causes()
        for cause in causes[:_MOST_GROUPS]:
            print_message(_line_of(cause))
        others = causes[_MOST_GROUPS:]
        if others:
            print_message(f"and {counted(sum(each.count for each in others), 'other problem')}")
        if self._known:
            rows = counted(self._known, "row")
            print_message(f"{rows} rejected as in an earlier run; the problems are in {self._results}")
        if self._path is not None and self.count:
            print_message(f"{counted(self.count, 'problem')}, listed in {self._path}")
        elif others or any(cause.count > len(cause.rows) for cause in causes):
            print_message(f"to list all {self.count:,} problems, add --problems FILE")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _line_of(cause: Cause[_Place]) -> str:
    file, column, name = cause.kind
    if cause.count == 1:
        return str(InputProblem(file, cause.rows[0], column, name, cause.text))
    place = name if name and column.endswith(f" {name!r}") else ", ".join(filter(None, (name, column)))
    message = f"{place}: {cause.text}" if place else cause.text
    return f"{file}: {cause.count:,} × {message} ({listed_lines(cause.rows, cause.count)})"


def known_rows(out: str, form: Format) -> Callable[[Order], bool]:
    """Return a function that returns True for a row that the results have with the same problems.

    Args:
        out: Path of the results.
        form: Their format.
    """
    found: set[tuple[str, str]] | None = None

    def is_known(order: Order) -> bool:
        nonlocal found
        if found is None:
            found = set(_rejected_lines(read_lines(out), form)) if has_content(out) else set()
        return not found.isdisjoint(_rejected_lines([form.line(record_of(order, None))], form))

    return is_known


def _rejected_lines(lines: Iterable[str], form: Format) -> Iterable[tuple[str, str]]:
    """Yield line and problems of the records of rows that were not sent."""
    header = form.header.rstrip("\n")
    for line in lines:
        if line != header:
            record = form.record(line)
            if "fiscal_code" not in record:
                yield str(record.get("line")), str(record.get("problems"))
