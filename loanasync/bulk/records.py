"""Records of an input file: its CSV rows or JSON objects with their lines, and its problems.

A problem names the file, the line and the column, and contains no value of the file.
"""

import codecs
import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

STANDARD_INPUT = "standard input"
_SHOWN = 20  # problems in the text of an error
_DELIMITERS = ";,\t|"
_LINE = re.compile("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_NOT_TEXT = {
    b"PK\x03\x04": "a workbook (.xlsx, .ods) or another zip file",
    b"\xd0\xcf\x11\xe0": "an Excel workbook (.xls)",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a compressed file (.gz)",
}
_CANNOT_BE_PARSED = "cannot be parsed as JSON: a number is too long, or brackets are nested too deeply"
_ITEMS_OF_FISCAL_CODE = "[a-z]{6}[0-9l-np-v]{2}[a-z][0-9l-np-v]{2}[a-z][0-9l-np-v]{3}[a-z]"
_FISCAL_CODE = re.compile(_ITEMS_OF_FISCAL_CODE, re.IGNORECASE)  # some of its digits may be letters
_MOST_DIGITS_OF_A_NAME = 5  # a telephone or card number has more


@frozen
class InputProblem:
    """A problem of one line or one column of an input file. It contains no value of the file.

    Args:
        file: Name of the file.
        line: Number of the line; 0 for the whole file.
        column: Column or JSON member, empty if it has the name of the field.
        field: Field of the request, such as ``postal_code``; empty for a problem of the whole row.
        message: The rule that is broken, and a correction.
        code: Code of the rule, as in `Problem.code`; empty if the value could not be converted.

    Example:
        >>> from loanasync.bulk import InputProblem
        >>> print(InputProblem("orders.csv", 3, "column 'CAP'", "postal_code", "must be five digits"))
        orders.csv: line 3, column 'CAP': postal_code: must be five digits
    """

    file: str
    line: int
    column: str
    field: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.column)))
        return ": ".join(filter(None, (self.file, where, self.field, self.message)))


class InputError(ValueError):
    """An input file or a mapping cannot be used. The text has a line for each of the first problems.

    Args:
        problems: The problems.

    Example:
        >>> from loanasync.bulk import InputError, read
        >>> try:
        ...     read("missing.csv")
        ... except InputError as error:
        ...     print(error)
        missing.csv: file not found
    """

    def __init__(self, problems: tuple[InputProblem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        lines = [*map(str, self.problems[:_SHOWN])]
        if (others := len(self.problems) - _SHOWN) > 0:
            lines.append(f"and {others:,} more; see InputError.problems")
        return "\n".join(lines)


def input_error(file: str, message: str, line: int = 0) -> InputError:
    """Return an error with one problem."""
    return InputError((InputProblem(file, line, "", "", message),))


class Records:
    """The records of an input file, which can be read more than once. The file is kept in memory.

    Args:
        path: Path of the file; ``-`` is standard input.
        encoding: Text encoding. UTF-8 may have a byte order mark.

    Raises:
        InputError: The file cannot be read, or has no rows.
    """

    def __init__(self, path: str, encoding: str = "utf-8") -> None:
        self.name: str = STANDARD_INPUT if path == "-" else path
        self.columns: Sequence[str] | None = None  # of a CSV file
        self._text = _text(self.name, _content(path), encoding)
        first = next((line for line in self._lines() if line.strip()), "")
        self.delimiter: str = max(_DELIMITERS, key=first.count)
        if not first:
            raise input_error(self.name, "contains no rows")
        if first.lstrip().startswith("["):
            raise input_error(
                self.name, "contains a JSON array; write one object per line, as `jq -c '.[]'` does"
            )
        if not first.lstrip().startswith("{"):
            _, header, problem = next(self._cells())
            if problem:
                message = "the first line is not a CSV header; write the column names in it"
                raise input_error(self.name, message)
            self.columns = [name.strip() for name in header]

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, object], str]]:
        """Yield the line, the members and the problem of each record."""
        return self._json_rows() if self.columns is None else self._csv_rows(self.columns)

    def check_header(self, fields: Mapping[str, str | None], advice: str) -> None:
        """Raise an error if the first line of a CSV file seems to be a row. Its cells must not be printed.

        Args:
            fields: The field of each column, None if it is unknown.
            advice: Advice for a header with other names.

        Raises:
            InputError: No column is known, or the name of an unknown column looks like personal data.
        """
        if not any(fields.values()):
            message = (
                "no column name is known. If this line is a row, write the column names above it; otherwise "
                + advice
            )
            raise input_error(self.name, message, 1)
        if any(name is None and is_like_value(column) for column, name in fields.items()):
            message = (
                "this is not a header: a name contains @, a fiscal code or more than five digits; write the "
                "column names above the first row"
            )
            raise input_error(self.name, message, 1)

    def _lines(self) -> Iterator[str]:
        return (found[0] for found in _LINE.finditer(self._text))

    def _json_rows(self) -> Iterator[tuple[int, Mapping[str, object], str]]:
        for number, line in enumerate(self._lines(), 1):
            if not line.strip():
                continue
            members, problem = _parse_object(line)
            if problem.startswith("invalid JSON") and not line.endswith(("\n", "\r")):
                problem = "incomplete: the file ends in the middle of this row"
            # A file of rejected rows keeps the text of a row that is no object.
            yield number, {"row": line.strip()} if problem else members, problem

    def _cells(self) -> Iterator[tuple[int, Sequence[str], str]]:
        """Yield the line, the cells and the problem of the header and of each row of a CSV file."""
        reader = csv.reader(self._lines(), delimiter=self.delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                is_open = "unexpected end" in str(error)
                yield line, (), "incomplete: the file ends inside a quoted cell" if is_open else "invalid CSV"
                continue
            if cells is None:
                return
            if any(cell.strip() for cell in cells):
                yield line, cells, ""

    def _csv_rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, object], str]]:
        rows = self._cells()
        next(rows)  # the header
        for line, cells, problem in rows:
            # Cells beyond the header have no names. A file of rejected rows keeps them.
            beyond = (f"cell {number}" for number in range(len(columns) + 1, len(cells) + 1))
            members = dict(zip((*columns, *beyond), map(str.strip, cells), strict=False))
            if not problem and len(cells) != len(columns):
                noun = "cell" if len(cells) == 1 else "cells"
                problem = f"has {len(cells):,} {noun}, but the header has {len(columns):,}"  # noqa: PLW2901  (complete from here on)
            yield line, members, problem


def _parse_object(text: str) -> tuple[dict[str, Any], str]:
    """Return the members of a JSON object, or the problem of the text."""
    try:
        members = json.loads(text, object_pairs_hook=_unique_members)
    except _RepeatedMemberError:
        return {}, "a JSON member appears more than once"
    except json.JSONDecodeError as error:
        return {}, f"invalid JSON at character {error.colno}"
    except (ValueError, RecursionError):
        return {}, _CANNOT_BE_PARSED
    return (members, "") if isinstance(members, dict) else ({}, "must be a JSON object")


class _RepeatedMemberError(ValueError):
    """Two members have one name. Without the hook, the parser would keep the last one."""


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RepeatedMemberError
    return members


def is_like_value(name: str) -> bool:
    """Return True if the name of a column or member looks like an e-mail address, a code or a number."""
    digits = sum(each.isdigit() for each in name)
    return "@" in name or digits > _MOST_DIGITS_OF_A_NAME or bool(_FISCAL_CODE.fullmatch(name.strip()))


def _content(path: str) -> bytes:
    """Return the content of a file, a pipe or standard input."""
    name = STANDARD_INPUT if path == "-" else path
    try:
        if path != "-":
            return Path(path).read_bytes()
        if sys.stdin is None:
            raise input_error(name, "closed; pipe the rows in, or name a file")
        return sys.stdin.buffer.read()
    except IsADirectoryError:
        message = "this is a directory; name a file"
    except FileNotFoundError:
        message = "file not found"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    raise input_error(name, message)


def _text(name: str, content: bytes, encoding: str) -> str:
    """Decode a file strictly."""
    kind = next((kind for begin, kind in _NOT_TEXT.items() if content.startswith(begin)), "")
    if kind:
        message = f"this is {kind}, not text; open it, and save it as CSV (UTF-8)"
        raise input_error(name, message)
    is_utf_8 = content.startswith(codecs.BOM_UTF8) or encoding.lower() in ("utf-8", "utf8")
    used = "utf-8-sig" if is_utf_8 else encoding
    try:
        text = content.decode(used)
    except LookupError:
        raise input_error(
            name, f"unknown text encoding '{used}'; use a name such as utf-8 or cp1252"
        ) from None
    except UnicodeError as error:
        line = content[: getattr(error, "start", 0)].count(b"\n") + 1
        message = (
            f"not valid {used.removesuffix('-sig').upper()} from this line on; save the whole file as UTF-8, "
            "or name its encoding: --encoding cp1252"
        )
        raise input_error(name, message, line) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise input_error(name, "contains NUL bytes; this is not a text file", line)
    return text
