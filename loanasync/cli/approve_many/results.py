"""The results of a run, and its rejected rows, as lines of their files."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from io import StringIO
from typing import Any

from loanasync._models.decisions import Approved, described, printable
from loanasync.bulk import FileRow, InputRows, RowResult
from loanasync.bulk.columns import REASON_NAME
from loanasync.cli.approve_many.files import STANDARD_OUTPUT, write_whole
from loanasync.cli.approve_many.report import Counts
from loanasync.cli.console import print_message
from loanasync.cli.ledger.open import short
from loanasync.errors import DecisionNotRecordedError

COLUMNS = (
    *("line", "id", "order_id", "fiscal_code", "entry", "status", "outcome", "repeatable", "sent", "at"),
    *("amount_cents", "net_amount_cents", "instalments", "redirect_url", "error", "message", "problems"),
    *("status_code", "attempts", "elapsed", "trace_id"),
)
_MARK = "\ufeff"  # Excel, and `read`, then read the file as UTF-8
_NO_REDIRECT = "approved without a redirect: ask the service where to send the customer"


class Results:
    """The line of each row of a run, and their counts. The files are written when the run ends.

    Args:
        path: Path of the results: CSV if it ends in ``.csv``, otherwise JSON lines; ``-`` is standard output.
        rows: The rows.
    """

    def __init__(self, path: str, rows: InputRows) -> None:
        self.counts: Counts = Counts()
        self.unrecorded: list[int] = []  # rows whose decision the ledger lacks
        self._path = path
        self._rows = rows
        self._is_csv = path.lower().endswith(".csv")
        self._lines: dict[int, str] = {}  # by the number of the row
        self._reasons: dict[int, str] = {}  # of rejected and failed rows

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, number: int) -> bool:
        return number in self._lines

    def add(self, number: int, row: FileRow, result: RowResult | None, reason: str = "") -> None:
        """Add the result of a row; without one, the reason why it was not sent."""
        record = record_of(row, result, reason)
        self.counts.add(record)
        if self._is_csv:
            self._lines[number] = csv_line(record.values(), self._rows.delimiter)
        else:
            self._lines[number] = json.dumps(record, ensure_ascii=False) + "\n"
        if record["status"] in ("rejected", "failed"):
            self._reasons[number] = " ".join(reason_of(record).splitlines())
        if result is not None and isinstance(result.error, DecisionNotRecordedError):
            self.unrecorded.append(number)

    def write(self, rejected: str | None) -> Iterator[str]:
        """Write the results, and the rejected rows if they have a file. Yield messages about failures."""
        header = [csv_line(COLUMNS, self._rows.delimiter)] if self._is_csv else []
        try:
            write_whole(self._path, [*header, *(self._lines[number] for number in sorted(self._lines))])
        except OSError as error:
            name = "standard output" if self._path == STANDARD_OUTPUT else self._path
            yield (
                f"{name} cannot be written ({error.strerror}), and is unchanged. The ledger has the "
                "decisions: free some space, then run the same command again"
            )
            # Personal data on the screen are better than a lost decision.
            for number in self.unrecorded:
                print_message(self._lines[number].rstrip("\n"))
        if rejected is None:
            return
        try:
            write_whole(rejected, rejected_lines(self._rows, lambda number, _: self._reasons.get(number, "")))
        except OSError as error:
            yield f"{rejected} could not be written ({error.strerror}); the results are not affected"


def csv_line(cells: Iterable[object], delimiter: str) -> str:
    """Return a line of a CSV file, with its line end."""
    text = StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(map(_cell, cells))
    return text.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = problems_text(value)
    return "" if value is None else " ".join(str(value).splitlines())  # a record is one line


def problems_text(problems: Iterable[Mapping[str, str]]) -> str:
    """Return problems as one text."""
    return "; ".join(": ".join(filter(None, (each["field"], each["message"]))) for each in problems)


def record_of(row: FileRow, result: RowResult | None, reason: str = "") -> dict[str, Any]:
    """Return the record of a row: all `COLUMNS`, with None for what is not known.

    Args:
        row: The row.
        result: Its result; None if it was not sent.
        reason: Why it was not sent.
    """
    own = {"line": row.line, "id": row.id, "order_id": row.order_id or None}
    own |= {"fiscal_code": row.fiscal_code or None}
    record: dict[str, Any] = dict.fromkeys(COLUMNS) | own
    if result is None:
        amount = row.request.amount if type(row.request.amount) is int else None
        record |= {"status": "not_sent", "outcome": "not_sent", "repeatable": True, "sent": False}
        return record | {"amount_cents": amount, "at": _time(datetime.now(UTC)), "message": reason}
    found = result.as_row(personal=True)
    record |= {name: found[name] for name in COLUMNS if name in found and name not in own}
    decision, error = result.decision, result.error
    entry = found["entry"] or getattr(error, "entry", None)
    meta = getattr(error if decision is None else decision, "meta", None)
    problems = [
        {"field": each.field, "message": described(each), "code": each.code}
        for each in map(printable, getattr(error, "problems", ()))
    ]
    record |= {
        "amount_cents": found["amount"], "net_amount_cents": found["net_amount"],
        "status": result.status, "at": _time(result.at), "problems": problems or None,
        "entry": None if entry is None or result.status == "not_sent" else short(entry),
        "status_code": getattr(meta, "status", None) or None,
        "elapsed": None if found["elapsed"] is None else round(found["elapsed"], 6),
    }  # fmt: skip
    if isinstance(decision, Approved) and error is None and not decision.redirect_url:
        record["message"] = _NO_REDIRECT
    return record


def _time(at: datetime) -> str:
    """Return a time in UTC as Excel reads it."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def reason_of(record: Mapping[str, Any]) -> str:
    """Return the reason for a record without a decision, as one text."""
    text = problems_text(record["problems"]) if record["problems"] else record["message"]
    is_own = record["error"] in (None, "InvalidRequestError")
    return str(text) if is_own else f"{record['error']}: {text}"


def rejected_lines(rows: InputRows, reason_of: Callable[[int, FileRow], str]) -> Iterator[str]:
    """Yield the lines of the file of rejected rows: a header, and each row as it is, after its reason.

    Args:
        rows: All rows.
        reason_of: Returns the reason by the number of a row, and the row; empty if it is not rejected.
    """
    if rows.columns is not None:
        columns = (name for name in rows.columns if name != REASON_NAME)
        yield _MARK + csv_line((REASON_NAME, *columns), rows.delimiter)
    for number, row in enumerate(rows):
        reason = reason_of(number, row)
        if reason and rows.columns is None:
            yield json.dumps({REASON_NAME: reason, **row.members}, ensure_ascii=False) + "\n"
        elif reason:
            yield csv_line((reason, *row.members.values()), rows.delimiter)
