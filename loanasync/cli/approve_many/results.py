"""The results file: a line of JSON or CSV for each row, written as soon as its response arrives."""

import csv
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from loanasync import ServiceError, TransportError, UnexpectedResponseError
from loanasync.bulk import RowResult
from loanasync.cli.rows.append import STANDARD_OUTPUT, Appending, has_content, lines
from loanasync.cli.rows.orders import Order

_COLUMNS = (
    *("line", "id", "fiscal_code", "entry", "status", "outcome", "repeatable", "at"),
    *("amount", "net_amount", "instalments", "redirect_url", "error", "message", "problems"),
    *("status_code", "attempts", "elapsed", "trace_id"),
)
_WORDS = {"true": True, "false": False}


class Format:
    """Writes records as JSON lines, and reads them again. `head` is the first line of a new file."""

    head = ""

    def line(self, record: Mapping[str, Any]) -> str:
        """Return a record as one line, with its end."""
        return json.dumps(record, ensure_ascii=False) + "\n"

    def record(self, line: str) -> Mapping[str, Any]:
        """Return the record of a line.

        Raises:
            ValueError: The line has another format.
        """
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("no object")  # noqa: TRY004  (as of all else that cannot be read)
        return found


class _Csv(Format):
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
        return Format()
    if not has_content(path):
        return _Csv(delimiter)
    return _Csv(next(lines(path), "")[len(_COLUMNS[0]) :][:1] or delimiter)


class NotWrittenError(Exception):
    """No file takes it; its text is what was to be written."""


class Results:
    """Results of rows, written to a file; and elsewhere when that takes no more.

    Args:
        path: Where to; ``-`` is standard output.
        form: How.
    """

    def __init__(self, path: str, form: Format) -> None:
        self._format = form
        self._file = Appending(path)
        self._is_standard_output = path == STANDARD_OUTPUT
        self._elsewhere: Appending | None = None
        self.told: str = ""  # why, and where what was not taken is
        if form.head and not has_content(path):
            self._put(form.head)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one.

        Raises:
            NotWrittenError: Neither this file nor another took it.
        """
        self._put(self._format.line(record))

    def _put(self, line: str) -> None:
        try:
            if self._elsewhere is None:
                self._file.add(line)
                return
        except OSError as error:
            self.told = f"{self._file.name} takes no more ({error.strerror})"
        try:
            if self._elsewhere is None:
                self._elsewhere = self._another()
            self._elsewhere.add(line)
        except OSError as error:
            self.told = f"no file takes more ({error.strerror}): what came since was printed"
            raise NotWrittenError(line) from None

    def _another(self) -> Appending:
        suffix = "".join(Path(self._file.name).suffixes[-2:]) or ".jsonl"
        handle, path = tempfile.mkstemp(prefix="loanasync-results-", suffix=suffix)
        os.close(handle)
        self.told += f": what came since is in {path}"
        if not self._is_standard_output:
            self.told += f", add it to the end of {self._file.name}"
        return Appending(path)

    def close(self) -> None:
        """Done with it."""
        self._file.close()
        if self._elsewhere is not None:
            self._elsewhere.close()


def line_of(order: Order, result: RowResult | None, entry: str | None = None) -> dict[str, Any]:
    """Return the line of a row; a row without a result was not sent, because of its problems.

    ``outcome`` and ``repeatable`` are those of `RowResult`; ``entry`` is the start of the key of the ledger
    entry. A row that was not sent has no ``fiscal_code``.
    """
    found: dict[str, Any] = {"line": order.line or None}  # none of a file with one customer
    if order.row is not None and order.row.id is not None:
        found["id"] = order.row.id
    if result is None:
        wrong = [{"field": each.field, "message": each.message} for each in order.problems]
        return {**found, **_outcome("rejected", "not_sent"), "problems": wrong}
    found |= {"fiscal_code": result.fiscal_code, "entry": entry}
    found |= _outcome(result.status, result.outcome, repeatable=result.repeatable)
    decision = result.decision
    if decision is not None:
        found |= {
            "amount": decision.amount if decision.amount is not None else result.request.amount,
            "net_amount": decision.net_amount,
            "instalments": decision.instalments,
            "redirect_url": getattr(decision, "redirect_url", None),
        }
        if decision.approved and "body" in decision.meta.unread:
            found["message"] = "approved without a redirect: ask the service where to send the customer"
    meta = None if decision is None else decision.meta
    error = result.error
    if error is not None:
        found |= {"error": type(error).__name__, "message": str(error)}
        if problems := getattr(error, "problems", ()):
            found["problems"] = [{"field": each.field, "message": each.message} for each in problems]
        if isinstance(error, ServiceError | UnexpectedResponseError):
            meta = error.meta
        elif isinstance(error, TransportError):
            found["attempts"] = error.attempts
    if meta is not None:
        found |= {
            "status_code": meta.status, "attempts": meta.attempts,
            "elapsed": round(meta.elapsed, 6), "trace_id": meta.trace_id,
        }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _outcome(status: str, outcome: str, *, repeatable: bool = False) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"status": status, "outcome": outcome, "repeatable": repeatable, "at": at}
