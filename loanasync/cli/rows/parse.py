"""How a result is written, and read again by the next run: as JSON, or as CSV for a spreadsheet."""

import csv
import json
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, Protocol

from loanasync.cli.rows.append import has_content, lines

_COLUMNS = (
    *("line", "id", "fiscal_code", "entry", "status", "outcome", "repeatable", "at"),
    *("amount", "net_amount", "instalments", "redirect_url", "error", "message", "problems"),
    *("status_code", "attempts", "elapsed", "trace_id"),
)
_WORDS = {"true": True, "false": False}


class Format(Protocol):
    """Writes a record as one line, and reads it."""

    head: str

    def line(self, record: Mapping[str, Any]) -> str:
        """With its end."""

    def record(self, line: str) -> Mapping[str, Any]:
        """What was written.

        Raises:
            ValueError: This was not.
        """


class _Json:
    head = ""

    def line(self, record: Mapping[str, Any]) -> str:
        return json.dumps(record, ensure_ascii=False) + "\n"

    def record(self, line: str) -> Mapping[str, Any]:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("no object")  # noqa: TRY004  (as of all else that cannot be read)
        return found


class _Csv:
    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self.head = self._written(_COLUMNS)

    def line(self, record: Mapping[str, Any]) -> str:
        return self._written(_cell(record.get(name)) for name in _COLUMNS)

    def record(self, line: str) -> Mapping[str, Any]:
        cells = next(csv.reader([line], delimiter=self._delimiter), [])
        if len(cells) != len(_COLUMNS):
            raise ValueError("other columns")
        return {name: _WORDS.get(cell, cell) for name, cell in zip(_COLUMNS, cells, strict=True) if cell}

    def _written(self, cells: Iterable[str]) -> str:
        text = StringIO(newline="")
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerow(cells)
        return text.getvalue()


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list():
            return "; ".join(f"{each['field']}: {each['message']}" for each in value)
        case _:
            return " ".join(str(value).splitlines())  # a result is one line, so that half of one is seen


def format_of(path: str, delimiter: str) -> Format:
    """Return the format of a file by its name.

    Args:
        path: Path of the results.
        delimiter: Delimiter of a new CSV file; a file that exists keeps its own delimiter.
    """
    if not path.lower().removesuffix(".gz").endswith(".csv"):
        return _Json()
    if not has_content(path):
        return _Csv(delimiter)
    return _Csv(next(lines(path), "")[len(_COLUMNS[0]) :][:1] or delimiter)
