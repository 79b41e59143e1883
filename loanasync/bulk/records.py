"""Records of an input file: the text of a file, and its CSV rows or JSON objects with their lines."""

import codecs
import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from loanasync.bulk.problems import input_error

STANDARD_INPUT = "standard input"
_DELIMITERS = ";,\t|"
_LINE = re.compile("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_LINE_END = re.compile("\r\n|\r|\n")
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # Excel saves "Unicode text" as UTF-16
_EXCEL = "cp1252"
# In cp1252 these are signs that no Italian or English text has, and in other encodings of one byte they are
# à, è or ù. So they mean another encoding.
_NOT_IN_EXCEL = re.compile(b"[\x81-\x91\x93-\x9f]")
_NOT_TEXT = {
    b"PK\x03\x04": "a workbook (.xlsx, .ods) or another zip file",
    b"\xd0\xcf\x11\xe0": "an Excel workbook (.xls)",
    b"PAR1": "a Parquet file",
}
_CANNOT_BE_PARSED = "cannot be parsed as JSON: a number is too long, or brackets are nested too deeply"
_ITEMS_OF_FISCAL_CODE = "[a-z]{6}[0-9l-np-v]{2}[a-z][0-9l-np-v]{2}[a-z][0-9l-np-v]{3}[a-z]"
_FISCAL_CODE = re.compile(_ITEMS_OF_FISCAL_CODE, re.IGNORECASE)  # some of its digits may be letters
_MOST_DIGITS_OF_A_NAME = 5  # a telephone or card number has more


class Records:
    """The records of an input file, which can be read more than once. The file is kept in memory.

    Args:
        path: Path of the file; ``-`` is standard input.
        encoding: Text encoding. None: UTF-8, the encoding of the byte order mark, or that of Excel.

    Raises:
        InputError: The file cannot be read, or has no rows.
    """

    def __init__(self, path: str, encoding: str | None = None) -> None:
        self.name: str = STANDARD_INPUT if path == "-" else path
        self.delimiter: str = ","
        self.columns: Sequence[str] | None = None  # of a CSV file
        self._text = _text(self.name, _content(path), encoding)
        first = next((line for line in self._lines() if line.strip()), "")
        if not first:
            raise input_error(self.name, "contains no rows")
        if first.lstrip().startswith("["):
            raise input_error(
                self.name, "contains a JSON array; write one object per line, as `jq -c '.[]'` does"
            )
        if not first.lstrip().startswith("{"):
            self.columns = [*self._csv_reader()[0]]

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, object], str]]:
        """Yield the line, the members and the problem of each record."""
        return self._json_rows() if self.columns is None else self._csv_rows()

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
            members, problem = parse_object(line)
            if problem and number == 1:
                whole = parse_object(self._text)
                if not whole[1] or line.strip() == "{":  # one object on several lines
                    yield 0, *whole
                    return
            if problem.startswith("invalid JSON") and not line.endswith(("\n", "\r")):
                problem = "incomplete: the file ends in the middle of this row"
            # A file of rejected rows keeps the text of a row that is no object.
            yield number, {"row": line.strip()} if problem else members, problem

    def _csv_reader(self) -> tuple[Sequence[str], Any, int]:
        """Return the header, the reader of the rows, and the number of lines before the reader's first."""
        lines = self._lines()
        skipped = 0
        first = ""
        for first in lines:
            if first.strip():
                break
            skipped += 1
        if first.lower().startswith("sep=") and len(first.rstrip("\r\n")) == len("sep=;"):  # Excel's
            self.delimiter = first[4]
            first = next(lines, "")
            skipped += 1
        else:
            self.delimiter = max(_DELIMITERS, key=first.count)
        reader = csv.DictReader(chain([first], lines), delimiter=self.delimiter, strict=True)
        try:
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        except csv.Error:
            message = "the first line is not a CSV header; write the column names in it"
            raise input_error(self.name, message) from None
        return reader.fieldnames, reader, skipped

    def _csv_rows(self) -> Iterator[tuple[int, Mapping[str, object], str]]:
        columns, reader, skipped = self._csv_reader()
        while True:
            line = reader.line_num + skipped + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                is_open = "unexpected end" in str(error)
                yield line, {}, "incomplete: the file ends inside a quoted cell" if is_open else "invalid CSV"
                continue
            if row is None:
                return
            extra = row.pop(None, ())  # cells beyond the header
            cells = [cell for cell in (*row.values(), *extra) if cell is not None]
            if not any(cell.strip() for cell in cells):
                continue
            line = reader.line_num + skipped - sum(len(_LINE_END.findall(cell)) for cell in cells)
            problem = ""
            if len(cells) != len(columns):
                noun = "cell" if len(cells) == 1 else "cells"
                problem = f"has {len(cells):,} {noun}, but the header has {len(columns):,}"
            members = {name: cell.strip() for name, cell in row.items() if cell is not None}
            # Cells beyond the header have no names. A file of rejected rows keeps them.
            members |= {f"cell {len(columns) + number}": cell for number, cell in enumerate(extra, 1)}
            yield line, members, problem


def parse_object(text: str) -> tuple[dict[str, Any], str]:
    """Return the members of a JSON object, or the problem of the text."""
    try:
        members = json.loads(text, object_pairs_hook=_unique_members)
    except _RepeatedMemberError:
        return {}, "a JSON member appears more than once"
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return {}, f"invalid JSON at {line}character {error.colno}"
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
    """Return the content of a file, a pipe or standard input, unzipped."""
    name = STANDARD_INPUT if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None:
                raise input_error(name, "closed; pipe the rows in, or name a file")
            content = sys.stdin.buffer.read()
        else:
            content = Path(path).read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except IsADirectoryError:
        message = "this is a directory; name a file"
    except FileNotFoundError:
        message = "file not found"
    except (EOFError, zlib.error, gzip.BadGzipFile):
        message = "the gzip data is incomplete or damaged; create or download the file again"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    raise input_error(name, message)


def _text(name: str, content: bytes, encoding: str | None) -> str:
    """Decode a file. Without an encoding, it is UTF-8, or what the byte order mark says, or Excel's."""
    if kind := _NOT_TEXT.get(content[:4]):
        message = (
            f"this is {kind}, not text; open it in the program that wrote it, and save it as CSV (UTF-8)"
        )
        raise input_error(name, message)
    if content.startswith(codecs.BOM_UTF8):  # it says more than a setting
        encoding = "utf-8-sig"
    used = encoding or ("utf-16" if content.startswith(_UTF_16_MARKS) else "utf-8-sig")
    try:
        text = content.decode(used)
    except LookupError:
        raise input_error(
            name, f"unknown text encoding '{used}'; use a name such as utf-8 or cp1252"
        ) from None
    except UnicodeError as error:
        is_utf_8 = encoding is None and used == "utf-8-sig"
        if not is_utf_8 or _NOT_IN_EXCEL.search(content) or b"\0" in content:
            line = content[: getattr(error, "start", 0)].count(b"\n") + 1
            message = (
                f"not valid {used.removesuffix('-sig').upper()} from about this line on; save the file as "
                'UTF-8, or name its encoding in the mapping, such as encoding = "mac_roman"'
            )
            raise input_error(name, message, line) from None
        text = content.decode(_EXCEL)
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise input_error(name, "contains NUL bytes; this is not a text file", line)
    return text
