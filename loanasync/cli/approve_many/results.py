"""The records of the results: a line of JSON or CSV for each row."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from loanasync import Meta, ServiceError, TransportError, UnexpectedResponseError
from loanasync._results import described, printable
from loanasync.bulk import FileRow, RowResult
from loanasync.cli.ledger.display import response_members
from loanasync.ledger import Entry
from loanasync.ledger.model import SERVICE

_COLUMNS = (
    *("line", "id", "fiscal_code", "entry", "status", "outcome", "repeatable", "at"),
    *("amount", "net_amount", "instalments", "redirect_url", "error", "message", "problems"),
    *("status_code", "attempts", "elapsed", "trace_id"),
)
DECIDED = ("approved", "refused")
_NO_REDIRECT = "approved without a redirect: ask the service where to send the customer"


def result_lines(path: str, delimiter: str, records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a results file, with their line ends. The format follows from the name.

    Args:
        path: Path of the results.
        delimiter: Delimiter of a CSV file.
        records: The records.
    """
    if not _is_csv(path):
        yield from (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        return
    yield csv_line(_COLUMNS, delimiter)
    for record in records:
        cells = {**record, "problems": _problems_text(record.get("problems", ()))}
        yield csv_line((_cell(cells.get(name)) for name in _COLUMNS), delimiter)


def fiscal_codes_in(path: str, delimiter: str) -> dict[str, str]:
    """Return the fiscal codes of a results file by the start of the entry's key; none of another file."""
    codes: dict[str, str] = {}
    if not Path(path).is_file():
        return codes
    opened = gzip.open if path.endswith(".gz") else open
    with (
        suppress(ValueError, csv.Error, OSError, EOFError, zlib.error),
        opened(path, "rt", encoding="utf-8", newline="") as file,
    ):
        records = csv.DictReader(file, delimiter=delimiter) if _is_csv(path) else map(json.loads, file)
        for each in records:
            if isinstance(each, dict) and each.get("fiscal_code"):
                codes[str(each.get("entry"))] = str(each["fiscal_code"])
    return codes


def _is_csv(path: str) -> bool:
    return path.lower().removesuffix(".gz").endswith(".csv")


def csv_line(cells: Iterable[str], delimiter: str) -> str:
    """Return a line of a CSV file, with its line end."""
    text = StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case _:
            return " ".join(str(value).splitlines())  # a record is one line


def record_of(order: FileRow, result: RowResult | None, entry: str | None = None) -> dict[str, Any]:
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
        members = outcome_members("rejected", "not_sent", datetime.now(UTC))
        return {**record, **members, "problems": problems}
    record |= {"fiscal_code": result.fiscal_code, "entry": entry}
    record |= outcome_members(result.status, result.outcome, result.at, repeatable=result.repeatable)
    decision = result.decision
    if decision is not None:
        record |= {
            "amount": decision.amount if decision.amount is not None else result.request.amount,
            "net_amount": decision.net_amount if decision.approved else None,
            "instalments": decision.instalments,
            "redirect_url": getattr(decision, "redirect_url", None),
        }
        if decision.approved and "body" in decision.meta.unread:
            record["message"] = _NO_REDIRECT
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


def outcome_members(status: str, outcome: str, at: datetime, *, repeatable: bool = False) -> dict[str, Any]:
    """Return the members of a record that each row has."""
    time = at.isoformat(timespec="milliseconds")
    return {"status": status, "outcome": outcome, "repeatable": repeatable, "at": time}


def is_withdrawn(entry: Entry, outcome: str | None) -> bool:
    """Return True if a person has stated a decision, and then that the outcome is another one or unknown."""
    stated = (each.state.value for each in entry.history if each.source != SERVICE)
    return outcome in DECIDED and entry.state.value != outcome and outcome in stated


def members_of_entry(entry: Entry) -> dict[str, Any]:
    """Return the members of a record for a decision that only the ledger has, or for an unknown outcome."""
    state = entry.state.value if entry.state.is_decided else "unknown"
    members = outcome_members(state, state, datetime.fromtimestamp(entry.changed, UTC))
    if not entry.state.is_decided:
        return {**members, "message": f"the ledger has the state {entry.state.value}"}
    response = response_members(entry, reveal=True) or {}
    names = {"amount": "amount", "instalments": "instalments", "installments": "instalments"}
    if state == "approved":
        names |= {"netAmount": "net_amount", "redirectUrl": "redirect_url"}
        if not response.get("redirectUrl"):
            members["message"] = _NO_REDIRECT
    return {**members, **{names[name]: value for name, value in response.items() if name in names}}
