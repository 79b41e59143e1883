"""Parsing of a file into rows: JSON lines, or CSV with a header."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import chain
from typing import Any

from attrs import frozen

from loanasync.cli.rows.source import RowProblem, Source, Unreadable

_DELIMITERS = ";,\t|"


@frozen
class ParsedRow:
    """One row as it stands in its file."""

    line: int
    members: Mapping[str, object]
    text: str  # as it may be written to another file, its end included
    wrong: str = ""  # why nothing can be had from it


class Table:
    """The rows of a source; JSON lines or CSV is seen by its first character.

    `head` is what a file of some of its rows begins with.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.head: str = ""
        self.delimiter: str = ","  # of a CSV
        self.columns: Sequence[str] | None = None  # of a CSV
        first = next((line for line in source.lines() if line.strip()), "")
        self._is_csv = not first.lstrip().startswith("{")
        if first.lstrip().startswith("["):
            raise Unreadable("is one JSON array: write an object on each line, as `jq -c '.[]'` does")
        if not first:
            raise Unreadable("is empty: there is no row in it")
        if self._is_csv:
            self._read_head()

    def entries(self) -> Iterator[ParsedRow]:
        """The rows, from the first on; blank lines are passed over.

        Raises:
            Unreadable: From some line on it is no text.
        """
        return self._cells() if self._is_csv else self._objects()

    def problem(self, message: str, line: int = 0, column: str = "", field: str = "") -> RowProblem:
        """Return a problem of a line or a column of the source."""
        return RowProblem(self.source.name, line, column, field, message)

    def _objects(self) -> Iterator[ParsedRow]:
        for number, line in enumerate(self.source.lines(), 1):
            if not line.strip():
                continue
            whole = line if line.endswith("\n") else line + "\n"
            try:
                members = json.loads(line, object_pairs_hook=once)
                wrong = "" if isinstance(members, dict) else "must be a JSON object"
            except Unreadable as error:
                members, wrong = {}, str(error)
            except json.JSONDecodeError as error:
                members, wrong = {}, f"is no JSON from character {error.pos + 1} on"
                if not line.endswith("\n"):
                    wrong = "is cut off: the file ends in the middle of it"
            except (ValueError, RecursionError):
                members, wrong = {}, "is no JSON that could be read"
            yield ParsedRow(number, members if isinstance(members, dict) else {}, whole, wrong)

    def _read_head(self) -> None:
        lines = self._text()
        first = next(lines)
        if first.lower().startswith("sep=") and len(first.strip()) == len("sep=;"):  # Excel's own
            self.delimiter = first[4]
            self._skipped = 1
            first = next(lines, "")
        else:
            self.delimiter = max(_DELIMITERS, key=first.count)
            self._skipped = 0
        reader = csv.reader(chain([first], lines), delimiter=self.delimiter, strict=True)
        try:
            self.columns = [name.strip() for name in next(reader, [])]
        except csv.Error:
            raise Unreadable("has a first line that is no list of names") from None
        self.head = self._written(self.columns)

    def _text(self) -> Iterator[str]:
        """The lines from the first that is not blank on."""
        lines = self.source.lines()
        self._blank = 0
        for line in lines:
            if line.strip():
                yield line
                break
            self._blank += 1
        yield from lines

    def _written(self, cells: Sequence[str]) -> str:
        text = StringIO(newline="")
        csv.writer(text, delimiter=self.delimiter, lineterminator="\n").writerow(cells)
        return text.getvalue()

    def _cells(self) -> Iterator[ParsedRow]:
        columns = self.columns or ()
        last = ""

        def watched() -> Iterator[str]:
            nonlocal last
            for line in self._text():
                last = line
                yield line

        lines = watched()
        for _ in range(self._skipped):
            next(lines)
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        before = self._blank + self._skipped
        next(reader)  # the names
        while True:
            begins = before + reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error:
                wrong = (
                    "is cut off: the file ends within quotes" if next(lines, None) is None else "is no CSV"
                )
                yield ParsedRow(begins, {}, "", wrong)
                return
            if cells is None:
                return
            if not any(cell.strip() for cell in cells):
                continue
            wrong = ""
            if len(cells) != len(columns):
                wrong = f"has {len(cells)} cells, and there are {len(columns)} columns"
                if len(cells) < len(columns) and not last.endswith(("\n", "\r")):
                    wrong = "is cut off: the file ends in the middle of it"
            members = {name: cell.strip() for name, cell in zip(columns, cells, strict=False)}
            yield ParsedRow(begins, members, self._written(cells), wrong)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Parsers keep the last of two members with one name.

    Raises:
        Unreadable: A member is repeated.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unreadable("has a member more than once")
    return members
