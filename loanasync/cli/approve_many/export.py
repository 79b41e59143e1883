"""The exports of a job: results, rejected rows and report. Each file is written as a whole."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import define, field

from loanasync.bulk import FileRow, InputRows
from loanasync.cli.approve_many.job import MAY_BE_SENT, Counts, Job
from loanasync.cli.approve_many.plan import Customer, Keys, customer_of
from loanasync.cli.approve_many.results import DECIDED, Format, members_of_entry, reason_of
from loanasync.cli.causes import Cause, CauseTally
from loanasync.cli.console import listed_lines
from loanasync.cli.input import rejected_header, rejected_line
from loanasync.cli.ledger.display import decrypted
from loanasync.cli.ledger.open import OpenLedger, UnusableError, short
from loanasync.ledger import Cipher, Entry, State

_BATCH = 64  # entries that are read together
_ADVICE = {
    "not_sent": "correct the cause, then send these rows again",
    "not_evaluated": "correct the cause, then send these rows again",
    "unknown": "ask the service for the outcomes; do not send these rows again",
}
_OTHER_ADVICE = "the customers were decided before; do not send these rows again"
_OWN_MEMBERS = (
    "line",
    "id",
    "fiscal_code",
    "entry",
)  # members of a record that the table has, or must not have


@define
class Records:
    """Writes the records of a job, and reads them.

    Args:
        job: The job.
        cipher: The cipher of the ledger's responses, which also encrypts the records.
        customers: The customers by key. The job does not contain their fiscal codes.
        unsaved: Records that could not be written to the job, by the number of the row.
    """

    job: Job
    cipher: Cipher | None
    customers: Mapping[str, Customer] = field(factory=dict)
    unsaved: Mapping[int, Mapping[str, Any]] = field(factory=dict)

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return a record as the job stores it: without the fiscal code."""
        members = {name: value for name, value in record.items() if name not in _OWN_MEMBERS}
        text = json.dumps(members).encode()
        return text if self.cipher is None else self.cipher.encrypt(text)

    def _decode(self, stored: bytes | None) -> dict[str, Any]:
        if stored is None:
            return {}
        text = stored if self.cipher is None else self.cipher.decrypt(stored)
        members: dict[str, Any] = json.loads(text)
        return members

    def read(
        self, ledger: OpenLedger | None, *, must_answer: bool = False, unsaved_only: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the record of each row that was sent or refused, in the order of the lines.

        Args:
            ledger: Where decisions are that arrived, or were corrected, after the row was written.
            must_answer: Raise an error if the ledger is not available. Otherwise, do without it.
            unsaved_only: Leave out the records that the job has.

        Raises:
            UnusableError: The ledger is not available.
        """
        rows = self.job.rows()
        while batch := tuple(islice(rows, _BATCH)):
            # The run that holds the job has read the entries of its rows already.
            keys = ["" if row.is_current and row.record is not None else row.key for row in batch]
            entries: Sequence[Entry | None] = [None] * len(keys)
            try:
                entries = entries if ledger is None else ledger.run(_entries(ledger, keys))
            except UnusableError:
                if must_answer:
                    raise
                ledger = None
            for row, entry in zip(batch, entries, strict=True):
                record = dict(self.unsaved.get(row.number) or self._decode(row.record))
                if entry is not None and _is_newer(entry, record):
                    record = members_of_entry(decrypted(entry, self.cipher))
                if record and (row.number in self.unsaved or not unsaved_only):
                    customer = self.customers.get(row.key)
                    own = {
                        "line": row.line,
                        "id": json.loads(row.id),
                        "fiscal_code": None if customer is None else customer.fiscal_code,
                        "entry": short(row.key) or None,
                    }
                    yield {
                        name: value for name, value in {**own, **record, **own}.items() if value is not None
                    }

    def rejected(self, rows: InputRows, keys: Keys) -> Iterator[str]:
        """Yield the text of each row of the input that may be sent again after a correction."""
        yield rejected_header(rows)
        found = {row.key: row for row in self.job.rows() if row.key and row.state in MAY_BE_SENT[1:]}
        for row in rows:
            sent = next((found[key] for key in keys.keys(customer_of(row)) if key in found), None)
            if sent is not None:
                record = self.unsaved.get(sent.number) or self._decode(sent.record)
                yield rejected_line(rows, row, reason_of(record))
            elif row.problems:
                yield rejected_line(rows, row, _problems(row))


def _problems(order: FileRow) -> str:
    return reason_of(
        {"problems": [{"field": each.field, "message": each.message} for each in order.problems]}
    )


async def _entries(ledger: OpenLedger, keys: Iterable[str]) -> list[Entry | None]:
    async def find(key: str) -> Entry | None:
        return await ledger.ledger.get(key) if key else None

    return await asyncio.gather(*map(find, keys))


def _is_newer(entry: Entry, record: Mapping[str, Any]) -> bool:
    """Return True if the ledger knows more about a row than its record."""
    if entry.state.is_decided:
        return record.get("outcome") != entry.state.value
    return not record and entry.state is not State.RELEASED


@define
class Failures:
    """The causes of rows without a decision, by outcome, and the lines of unknown rows."""

    tally: CauseTally[str] = field(factory=CauseTally)
    unknown_lines: list[int] = field(factory=list)

    def seen(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records, and note the failures among them."""
        for record in records:
            if record["status"] not in DECIDED and "error" in record:
                self.tally.add(record["outcome"], f"{record['error']}: {record['message']}", record["line"])
            if record["status"] == "unknown":
                self.unknown_lines.append(record["line"])
            yield record


def failure_line(cause: Cause[str]) -> str:
    """Return a line with the number of rows, the cause, and the first lines."""
    return f"{cause.count:,} × {cause.text} ({listed_lines(cause.rows, cause.count)})"


def report_of(counts: Counts, failures: Failures) -> dict[str, Any]:
    """Return the report of a run as JSON members."""
    return {
        "rows": counts.total,
        "counts": counts.members(),
        "failures": [
            {
                "cause": cause.text,
                "count": cause.count,
                "outcome": cause.kind,
                "lines": cause.rows,
                "advice": _ADVICE.get(cause.kind, _OTHER_ADVICE),
            }
            for cause in failures.tally.causes()
        ],
        "unknown_lines": failures.unknown_lines,
    }


def result_lines(form: Format, records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a results file."""
    if form.header:
        yield form.header
    yield from map(form.line, records)
