"""Parsing of a file into rows: JSON lines, or CSV with a header."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import chain
from typing import Any

from attrs import frozen

from loanasync.cli.console import counted
from loanasync.cli.rows.source import InputProblem, Source, UnreadableError

_DELIMITERS = ";,\t|"
_INCOMPLETE = "incomplete: the file ends in the middle of this row"
CANNOT_BE_PARSED = "cannot be parsed as JSON: a number is too long, or brackets are nested too deeply"


@frozen
class ParsedRow:
    """One row of a file, before conversion."""

    line: int
    members: Mapping[str, object]
    text: str  # the row with its line end, to be copied to another file
    problem: str = ""  # set if the row cannot be parsed


class Table:
    """The rows of a source. A first line that begins with ``{`` means JSON lines, anything else CSV.

    `header` is the header line of a CSV file, and empty for JSON lines.

    Raises:
        UnreadableError: The file is empty, or has no header.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.header: str = ""
        self.delimiter: str = ","  # CSV only
        self.columns: Sequence[str] | None = None  # CSV only
        first = next((line for line in source.lines() if line.strip()), "")
        self._is_csv = not first.lstrip().startswith("{")
        if first.lstrip().startswith("["):
            raise UnreadableError("contains a JSON array; write one object per line, as `jq -c '.[]'` does")
        if not first:
            raise UnreadableError("contains no rows")
        if self._is_csv:
            self._read_header()

    def rows(self) -> Iterator[ParsedRow]:
        """Yield all rows from the beginning, without blank lines.

        Raises:
            UnreadableError: A line is not text, or the file is damaged.
        """
        return self._csv_rows() if self._is_csv else self._json_rows()

    def problem(self, message: str, line: int = 0, column: str = "", field: str = "") -> InputProblem:
        """Return a problem of a line or a column of the source."""
        return InputProblem(self.source.name, line, column, field, message)

    def _json_rows(self) -> Iterator[ParsedRow]:
        for number, line in enumerate(self.source.lines(), 1):
            if not line.strip():
                continue
            text = line if line.endswith("\n") else line + "\n"
            try:
                members = json.loads(line, object_pairs_hook=unique_members)
                problem = "" if isinstance(members, dict) else "must be a JSON object"
            except UnreadableError as error:
                members, problem = {}, str(error)
            except json.JSONDecodeError as error:
                members, problem = {}, f"invalid JSON at character {error.pos + 1}"
                if not line.endswith("\n"):
                    problem = _INCOMPLETE
            except (ValueError, RecursionError):
                members, problem = {}, CANNOT_BE_PARSED
            yield ParsedRow(number, members if isinstance(members, dict) else {}, text, problem)

    def _read_header(self) -> None:
        lines = self._lines_from_header()
        first = next(lines)
        if first.lower().startswith("sep=") and len(first.strip()) == len("sep=;"):  # Excel's delimiter line
            self.delimiter = first[4]
            self._delimiter_lines = 1
            first = next(lines, "")
        else:
            self.delimiter = max(_DELIMITERS, key=first.count)
            self._delimiter_lines = 0
        reader = csv.reader(chain([first], lines), delimiter=self.delimiter, strict=True)
        try:
            self.columns = [name.strip() for name in next(reader, [])]
        except csv.Error:
            raise UnreadableError(
                "the first line is not a CSV header; write the column names in it"
            ) from None
        self.header = self._csv_line(self.columns)

    def _lines_from_header(self) -> Iterator[str]:
        """Yield the lines, beginning with the first one that is not blank."""
        lines = self.source.lines()
        self._blank_lines = 0
        for line in lines:
            if line.strip():
                yield line
                break
            self._blank_lines += 1
        yield from lines

    def _csv_line(self, cells: Sequence[str]) -> str:
        text = StringIO(newline="")
        csv.writer(text, delimiter=self.delimiter, lineterminator="\n").writerow(cells)
        return text.getvalue()

    def _csv_rows(self) -> Iterator[ParsedRow]:
        columns = self.columns or ()
        last_line = ""

        def lines_with_last() -> Iterator[str]:
            nonlocal last_line
            for line in self._lines_from_header():
                last_line = line
                yield line

        lines = lines_with_last()
        for _ in range(self._delimiter_lines):
            next(lines)
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        lines_before = self._blank_lines + self._delimiter_lines
        next(reader)  # the header
        while True:
            number = lines_before + reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error:
                is_end = next(lines, None) is None
                problem = "incomplete: the file ends inside a quoted cell" if is_end else "invalid CSV"
                yield ParsedRow(number, {}, "", problem)
                return
            if cells is None:
                return
            if not any(cell.strip() for cell in cells):
                continue
            problem = ""
            if len(cells) != len(columns):
                problem = f"has {counted(len(cells), 'cell')}, but the header has {len(columns):,}"
                if len(cells) < len(columns) and not last_line.endswith(("\n", "\r")):
                    problem = _INCOMPLETE
            members = {name: cell.strip() for name, cell in zip(columns, cells, strict=False)}
            yield ParsedRow(number, members, self._csv_line(cells), problem)


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Without this hook, the parser keeps the last of two members with one name.

    Raises:
        UnreadableError: A member is repeated.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise UnreadableError("a JSON member appears more than once")
    return members
