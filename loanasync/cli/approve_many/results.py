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

from loanasync import Meta, ServiceError, TransportError, UnexpectedResponseError
from loanasync._results import described, printable
from loanasync.bulk import RowResult
from loanasync.cli.rows.append import STANDARD_OUTPUT, AppendFile, has_content, read_lines
from loanasync.cli.rows.orders import Order

_COLUMNS = (
    *("line", "id", "fiscal_code", "entry", "status", "outcome", "repeatable", "at"),
    *("amount", "net_amount", "instalments", "redirect_url", "error", "message", "problems"),
    *("status_code", "attempts", "elapsed", "trace_id"),
)
DECIDED = ("approved", "refused", "created")  # statuses that no later run changes
_BOOLEANS = {"true": True, "false": False}


class Format:
    """Writes records as JSON lines and reads them again. `header` is the first line of a new file."""

    header = ""

    def line(self, record: Mapping[str, Any]) -> str:
        """Return a record as one line, with its line end."""
        return json.dumps(record, ensure_ascii=False) + "\n"

    def record(self, line: str) -> Mapping[str, Any]:
        """Return the record of a line.

        Raises:
            ValueError: The line has another format.
        """
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("not an object")  # noqa: TRY004  (JSON errors are ValueErrors, too)
        return found


class _CsvFormat(Format):
    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self.header = self._csv_line(_COLUMNS)

    def line(self, record: Mapping[str, Any]) -> str:
        return self._csv_line(_cell(record.get(name)) for name in _COLUMNS)

    def record(self, line: str) -> Mapping[str, Any]:
        cells = next(csv.reader([line], delimiter=self._delimiter), [])
        if len(cells) != len(_COLUMNS):
            raise ValueError("other columns")
        return {name: _BOOLEANS.get(cell, cell) for name, cell in zip(_COLUMNS, cells, strict=True) if cell}

    def _csv_line(self, cells: Iterable[str]) -> str:
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
            return _problems_text(value)
        case _:
            # A record is one line, so that an incomplete record is noticed.
            return " ".join(str(value).splitlines())


def format_of(path: str, delimiter: str) -> Format:
    """Return the format of a results file, which follows from its name.

    Args:
        path: Path of the results.
        delimiter: Delimiter of a new CSV file. A file that exists keeps its own delimiter.
    """
    if not path.lower().removesuffix(".gz").endswith(".csv"):
        return Format()
    if not has_content(path):
        return _CsvFormat(delimiter)
    return _CsvFormat(next(read_lines(path), "")[len(_COLUMNS[0]) :][:1] or delimiter)


class NotWrittenError(Exception):
    """A line that neither the results file nor the fallback file took. Its text is the line."""


class ResultsFile:
    """The results file. When it can no longer be written, results go to a fallback file.

    Args:
        path: Path of the file; ``-`` is standard output.
        form: Format of the lines.
    """

    def __init__(self, path: str, form: Format) -> None:
        self._format = form
        self._file = AppendFile(path)
        self._is_standard_output = path == STANDARD_OUTPUT
        self._fallback: AppendFile | None = None
        self.failure: str = ""  # the reason why the file cannot be written, and where later results are
        if form.header and not has_content(path):
            self._write(form.header)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record.

        Raises:
            NotWrittenError: Neither the results file nor the fallback file took it.
        """
        self._write(self._format.line(record))

    def _write(self, line: str) -> None:
        try:
            if self._fallback is None:
                self._file.add(line)
                return
        except OSError as error:
            self.failure = f"{self._file.name} cannot be written ({error.strerror})"
        try:
            if self._fallback is None:
                self._fallback = self._open_fallback()
            self._fallback.add(line)
        except OSError as error:
            self.failure = f"no file can be written ({error.strerror}): later results were printed above"
            raise NotWrittenError(line) from None

    def _open_fallback(self) -> AppendFile:
        suffix = "".join(Path(self._file.name).suffixes[-2:]) or ".jsonl"
        handle, path = tempfile.mkstemp(prefix="loanasync-results-", suffix=suffix)
        os.close(handle)
        self.failure += f": later results are in {path}"
        if not self._is_standard_output:
            self.failure += f", append that file to {self._file.name}"
        return AppendFile(path)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._fallback is not None:
            self._fallback.close()


def record_of(order: Order, result: RowResult | None, entry: str | None = None) -> dict[str, Any]:
    """Return the record of a row in the results file.

    Args:
        order: The row.
        result: Its result; None for a row with problems, which was not sent. Its record has no fiscal code.
        entry: The start of the key of its ledger entry.
    """
    record: dict[str, Any] = {"line": order.line or None}  # no line for `loanasync approve`
    if order.id is not None:
        record["id"] = order.id
    if result is None:
        problems = [
            {"field": each.field, "message": each.message, "code": each.code} for each in order.problems
        ]
        return {**record, **outcome_members("rejected", "not_sent"), "problems": problems}
    record |= {"fiscal_code": result.fiscal_code, "entry": entry}
    record |= outcome_members(result.status, result.outcome, repeatable=result.repeatable)
    decision = result.decision
    if decision is not None:
        record |= {
            "amount": decision.amount if decision.amount is not None else result.request.amount,
            "net_amount": decision.net_amount,
            "instalments": decision.instalments,
            "redirect_url": getattr(decision, "redirect_url", None),
        }
        if decision.approved and "body" in decision.meta.unread:
            record["message"] = "approved without a redirect: ask the service where to send the customer"
    if decision is not None:
        record |= _meta_members(decision.meta)
    if result.error is not None:
        record |= error_members(result.error)
    return {name: value for name, value in record.items() if value is not None}


def error_members(error: Exception) -> dict[str, Any]:
    """Return the members of a record that describe an error."""
    members: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    if found := getattr(error, "problems", ()):
        members["problems"] = [
            {"field": each.field, "message": described(each), "code": each.code}
            for each in map(printable, found)
        ]
    if isinstance(error, ServiceError | UnexpectedResponseError):
        members |= _meta_members(error.meta)
    elif isinstance(error, TransportError):
        members["attempts"] = error.attempts
    return members


def _meta_members(meta: Meta) -> dict[str, Any]:
    return {
        "status_code": meta.status, "attempts": meta.attempts,
        "elapsed": round(meta.elapsed, 6), "trace_id": meta.trace_id,
    }  # fmt: skip


def reason_of(record: Mapping[str, Any]) -> str:
    """Return the reason for a record without a decision, as one text."""
    found = record.get("problems")
    text = _problems_text(found) if found else record["message"]
    return f"{record['error']}: {text}" if "error" in record else text


def _problems_text(problems: Iterable[Mapping[str, str]]) -> str:
    return "; ".join(": ".join(filter(None, (each["field"], each["message"]))) for each in problems)


def outcome_members(status: str, outcome: str, *, repeatable: bool = False) -> dict[str, Any]:
    """Return the members of a record that each row has, with the current time."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"status": status, "outcome": outcome, "repeatable": repeatable, "at": at}
