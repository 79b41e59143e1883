"""Parsing of a file into rows: JSON lines, or CSV with a header."""

import csv
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from io import StringIO
from itertools import chain
from typing import Any

from attrs import frozen

from loanasync.cli.console import counted
from loanasync.cli.rows.source import InputProblem, Source, UnreadableError

_DELIMITERS = ";,\t|"
# Columns or members of dead letters. As input they are skipped, except for the line.
LINE_NAME = "loanasync_line"
REASON_NAME = "loanasync_reason"
OWN_NAMES = (LINE_NAME, REASON_NAME)
_OWN_MEMBER = rf'"(?:{"|".join(OWN_NAMES)})"\s*:\s*(?:[0-9]+(?:\.0)?|"(?:[^"\\]|\\.)*")'
_OWN_FIRST_MEMBERS = re.compile(rf"\{{\s*(?:{_OWN_MEMBER}\s*(?:,\s*|(?=\}})))+")
_LINE_MEMBER = re.compile(rf'"{LINE_NAME}"\s*:\s*([0-9]+)')
_INCOMPLETE = "incomplete: the file ends in the middle of this row"
_LINE_NUMBER = re.compile("([1-9][0-9]{0,11})(?:\\.0)?")  # pandas writes 5.0
# A fiscal code; some of its digits may be letters. A telephone or card number has at least six digits.
_FISCAL_CODE = re.compile("[a-z]{6}[0-9l-np-v]{2}[a-z][0-9l-np-v]{2}[a-z][0-9l-np-v]{3}[a-z]", re.IGNORECASE)
_MOST_DIGITS_OF_A_NAME = 5
CANNOT_BE_PARSED = "cannot be parsed as JSON: a number is too long, or brackets are nested too deeply"


@frozen
class ParsedRow:
    """One row of a file, before conversion."""

    line: int
    members: Mapping[str, object]
    text: str  # the row as it is in the file, with its line end
    problem: str = ""  # set if the row cannot be parsed
    is_open: bool = False  # the file ends inside a quoted CSV cell, which would contain all that follows

    @property
    def first_line(self) -> int:
        """Line of the row in the file of the first run, if this file is one of dead letters."""
        found = _LINE_NUMBER.fullmatch(str(self.members.get(LINE_NAME, "")))
        return int(found[1]) if found else self.line


class _ReadLines:
    """Lines of a source, with the text of those that were read since the last call of `text`."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._text: list[str] = []
        self.number: int = 0  # of the line that was read last
        self.is_at_end: bool = False

    def __iter__(self) -> "_ReadLines":
        return self

    def __next__(self) -> str:
        self.is_at_end = True
        line = next(self._lines)
        self.is_at_end = False
        self.number += 1
        self._text.append(line)
        return line

    def text(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text


class Table:
    """The rows of a source. A first line that begins with ``{`` means JSON lines, anything else CSV.

    Raises:
        UnreadableError: The file is empty, or has no header.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.delimiter: str = ","  # CSV only
        self.columns: Sequence[str] | None = None  # CSV only, without those of dead letters
        self._header = ""  # the text of a CSV header, as it is in the file
        first = next((line for line in source.lines() if line.strip()), "")
        self._line_end = first[len(first.rstrip("\r\n")) :] or "\n"
        self._is_csv = not first.lstrip().startswith("{")
        if first.lstrip().startswith("["):
            raise UnreadableError("contains a JSON array; write one object per line, as `jq -c '.[]'` does")
        if not first:
            raise UnreadableError("contains no rows")
        if self._is_csv:
            self._open_csv()

    def rows(self) -> Iterator[ParsedRow]:
        """Yield all rows from the beginning, without blank lines.

        Raises:
            UnreadableError: A line is not text, or the file is damaged.
        """
        return self._csv_rows() if self._is_csv else self._json_rows()

    def problem(
        self, message: str, line: int = 0, column: str = "", field: str = "", code: str = ""
    ) -> InputProblem:
        """Return a problem of a line or a column of the source."""
        return InputProblem(self.source.name, line, column, field, message, code)

    def _json_rows(self) -> Iterator[ParsedRow]:
        for number, line in enumerate(self.source.lines(), 1):
            if not line.strip():
                continue
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
            if problem:
                found = _LINE_MEMBER.search(line)
                members = {LINE_NAME: found[1]} if found else {}
            yield ParsedRow(number, members, line, problem)

    def _open_csv(self) -> tuple[_ReadLines, Iterator[list[str]], list[str]]:
        """Read the header, and return the lines, their reader, and all columns."""
        lines = _ReadLines(self.source.lines())
        first = next(line for line in lines if line.strip())
        lines.text()
        self._header = ""
        if first.lower().startswith("sep=") and len(first.strip()) == len("sep=;"):  # Excel's delimiter line
            self._header, self.delimiter = first, first[4]
            first = next(lines, "")
        else:
            self.delimiter = max(_DELIMITERS, key=first.count)
        reader = csv.reader(chain([first], lines), delimiter=self.delimiter, strict=True)
        try:
            columns = [name.strip() for name in next(reader, [])]
        except csv.Error:
            raise UnreadableError(
                "the first line is not a CSV header; write the column names in it"
            ) from None
        self._own_columns = [index for index, name in enumerate(columns) if name in OWN_NAMES]
        self.columns = [name for name in columns if name not in OWN_NAMES]
        header = self._without_own_cells((lines.text() or first).rstrip("\r\n"))
        self._header += self._csv_cells(OWN_NAMES) + header + self._line_end
        return lines, reader, columns

    @property
    def dead_letters_header(self) -> str:
        """The text with which a file of dead letters begins."""
        return self.source.byte_order_mark + self._header

    def dead_letter(self, row: ParsedRow, reason: str) -> str:
        """Return a row as it is in the file, with the line and the reason in front."""
        text = row.text.rstrip("\r\n")
        line_end = row.text[len(text) :] or self._line_end
        reason = " ".join(reason.splitlines())
        if self._is_csv:
            return self._csv_cells((str(row.first_line), reason)) + self._without_own_cells(text) + line_end
        text = _without_own_members(row, text.lstrip())
        if not text.startswith("{"):  # not an object, so it cannot have members
            return text + line_end
        own = json.dumps({LINE_NAME: row.first_line, REASON_NAME: reason}).removesuffix("}")
        members = text.removeprefix("{").lstrip()
        return f"{own}{'' if members.startswith('}') else ', '}{members}{line_end}"

    def _csv_cells(self, cells: Collection[str]) -> str:
        text = StringIO(newline="")
        csv.writer(text, delimiter=self.delimiter, lineterminator="").writerow(cells)
        return text.getvalue() + self.delimiter

    def _without_own_cells(self, text: str) -> str:
        if not self._own_columns:
            return text
        end = re.escape(self.delimiter)
        cells = re.findall(f'((?:"(?:[^"]|"")*")?[^{end}]*){end}', text + self.delimiter)
        return self.delimiter.join(cell for index, cell in enumerate(cells) if index not in self._own_columns)

    def _csv_rows(self) -> Iterator[ParsedRow]:
        lines, reader, columns = self._open_csv()
        while True:
            number = lines.number + 1
            try:
                cells = next(reader, None)
            except csv.Error:
                problem = (
                    "incomplete: the file ends inside a quoted cell" if lines.is_at_end else "invalid CSV"
                )
                yield ParsedRow(number, {}, lines.text(), problem, lines.is_at_end)
                continue
            if cells is None:
                return
            text, problem = lines.text(), ""
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                problem = f"has {counted(len(cells), 'cell')}, but the header has {len(columns):,}"
                if len(cells) < len(columns) and not text.endswith(("\n", "\r")):
                    problem = _INCOMPLETE
            members = {name: cell.strip() for name, cell in zip(columns, cells, strict=False)}
            yield ParsedRow(number, members, text, problem)


def check_header(fields: Mapping[str, str | None]) -> None:
    """Raise an error if the first line of a CSV file seems to be a row. Its cells must not be printed.

    Args:
        fields: The field of each column, None if it is unknown.

    Raises:
        UnreadableError: No column is known, or the name of an unknown column looks like personal data.
    """
    if not any(fields.values()):
        raise UnreadableError(
            "no column name is known. If this line is a row, write the column names above it; otherwise map "
            "the names: --column FIELD=NAME",
            1,
        )
    if any(name is None and is_like_value(column) for column, name in fields.items()):
        raise UnreadableError(
            "this is not a header: a name contains @, a fiscal code or more than five digits; write the "
            "column names above the first row",
            1,
        )


def is_like_value(name: str) -> bool:
    """Return True if the name of a column or member looks like an e-mail address, a code or a number."""
    digits = sum(each.isdigit() for each in name)
    return "@" in name or digits > _MOST_DIGITS_OF_A_NAME or bool(_FISCAL_CODE.fullmatch(name.strip()))


def _without_own_members(row: ParsedRow, text: str) -> str:
    """Return the text of a JSON row without the members of dead letters. Write it anew if they are not first.

    Members that are nested, or belong to a row that cannot be parsed, are the user's.
    """
    found = _OWN_FIRST_MEMBERS.match(text)
    cut = "{" + text[found.end() :] if found else text
    if row.problem:
        return cut
    members = {name: value for name, value in row.members.items() if name not in OWN_NAMES}
    if len(members) == len(row.members):
        return text
    return cut if json.loads(cut) == members else json.dumps(members)


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Without this hook, the parser keeps the last of two members with one name.

    Raises:
        UnreadableError: A member is repeated.
    """
    members = dict(pairs)
    names = [name for name, _ in pairs if name not in OWN_NAMES]
    if len(set(names)) != len(names):
        raise UnreadableError("a JSON member appears more than once")
    return members
