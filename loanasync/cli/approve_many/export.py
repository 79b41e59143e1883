"""The exports of a job: results, rejected rows and report. Each file is written as a whole."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import define, field

from loanasync.bulk import FileRow
from loanasync.bulk.records import STANDARD_INPUT
from loanasync.cli.approve_many.job import MAY_BE_SENT, Counts, Job, JobRow, Kind
from loanasync.cli.approve_many.plan import Keys
from loanasync.cli.approve_many.rejected import keep_earlier, rejected_lines
from loanasync.cli.approve_many.results import (
    DECIDED,
    fiscal_codes_in,
    is_withdrawn,
    members_of_entry,
    reason_of,
    result_lines,
)
from loanasync.cli.console import counted, print_message
from loanasync.cli.files import check_distinct_files, write_whole
from loanasync.cli.input import Reading
from loanasync.cli.ledger.display import decrypted
from loanasync.cli.ledger.open import OpenLedger, UnusableError, open_ledger, short
from loanasync.ledger import Cipher, Entry, State
from loanasync.ledger.header import check_cipher

OTHER_LEDGER = (
    "was begun with another ledger: use the same --ledger as in the first run, or none if it had none"
)
_BATCH = 64  # entries that are read together
_OWN_MEMBERS = ("line", "id", "fiscal_code", "entry")  # which the table has, or must not have


@define
class JobRecords:
    """Writes the records of a job, and reads them.

    Args:
        job: The job.
        cipher: The cipher of the ledger's responses, which also encrypts the records.
        codes: The fiscal codes by key. The job does not contain them.
        earlier_codes: The fiscal codes of the present results, by the start of the key.
        unsaved: Records that could not be written to the job, by the number of the row.
        counts: The counts of the rows that were read.
        uncoded: The input of each row that was read and whose fiscal code is not known, by key.
    """

    job: Job
    cipher: Cipher | None
    codes: dict[str, str] = field(factory=dict, repr=False)
    earlier_codes: dict[str, str] = field(factory=dict, repr=False)
    unsaved: dict[int, Mapping[str, Any]] = field(factory=dict, repr=False)
    uncoded: dict[str, str] = field(init=False, factory=dict)
    counts: Counts = field(init=False, factory=Counts)

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return a record as the job stores it: without the fiscal code."""
        members = {name: value for name, value in record.items() if name not in _OWN_MEMBERS}
        text = json.dumps(members).encode()
        return text if self.cipher is None else self.cipher.encrypt(text)

    def _record(self, number: int, stored: bytes | None) -> Mapping[str, Any]:
        if number in self.unsaved or stored is None:
            return self.unsaved.get(number, {})
        text = stored if self.cipher is None else self.cipher.decrypt(stored)
        members: dict[str, Any] = json.loads(text)
        return members

    def read(
        self, ledger: OpenLedger, *, must_answer: bool = False, unsaved_only: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the record of each row that was sent or refused, in the order of the lines.

        Args:
            ledger: Where decisions are that arrived, or were corrected, after the row was written.
            must_answer: Raise an error if the ledger is not available. Otherwise, do without it.
            unsaved_only: Leave out the records that the job has.

        Raises:
            UnusableError: The ledger is not available.
        """
        rows, answers = self.job.rows(), True
        while batch := tuple(islice(rows, _BATCH)):
            # The run that holds the job has read the entries of its rows already.
            keys = ["" if row.is_current and row.record is not None else row.key for row in batch]
            entries: Sequence[Entry | None] = [None] * len(keys)
            try:
                entries = ledger.run(_entries(ledger, keys)) if answers else entries
            except UnusableError:
                if must_answer:
                    raise
                answers = False
            for row, entry in zip(batch, entries, strict=True):
                record = self._record(row.number, row.record)
                if entry is not None and _is_newer(entry, record):
                    # A released row is to be sent, and has no record.
                    is_released = entry.state is State.RELEASED
                    record = {} if is_released else members_of_entry(decrypted(entry, self.cipher))
                self.counts.add(_kind_of(row, record), row.cents)
                if not record or (unsaved_only and row.number not in self.unsaved):
                    continue
                code = self.codes.get(row.key) or self.earlier_codes.get(short(row.key))
                if code is None and row.key:
                    self.uncoded[row.key] = row.source
                values = (row.line, json.loads(row.id), code, short(row.key) or None)
                own = dict(zip(_OWN_MEMBERS, values, strict=True))
                members = {**own, **record, **own}
                yield {name: value for name, value in members.items() if value is not None}

    def uncoded_message(self) -> str:
        """Return the message about rows that were read and have no fiscal code; empty if all have one."""
        if not self.uncoded:
            return ""
        export = f"loanasync export {self.job.path}"
        export += " (with the same --ledger)" if self.job.members["ledger"] else ""
        names = sorted(set(self.uncoded.values()))
        if STANDARD_INPUT in names:
            advice = "run approve-many with the same rows again"
        else:
            advice = f"put the file back under its name, then run: {export}"
        number = counted(len(self.uncoded), "result")
        return f"{number} without a fiscal code: {', '.join(names)} cannot be read or has changed; {advice}"

    def reasons(self, keys: Keys) -> Callable[[FileRow], str | None]:
        """Return a function that returns why a row was not evaluated; None for all other rows."""
        found = {
            row.key: row
            for row in self.job.rows()
            if row.key and row.record is not None and row.state in MAY_BE_SENT
        }

        def reason(row: FileRow) -> str | None:
            sent = next((found[key] for key in keys.keys(row) if key in found), None)
            return None if sent is None else reason_of(self._record(sent.number, sent.record))

        return reason


def export_job(file: str, results: str, ledger: str | None, rejected: str | None) -> Counts:
    """Write the results, and the other exports, of a job. Return its counts.

    Raises:
        UnusableError: The job or its ledger cannot be read.
        OSError: The results cannot be written.
    """
    if not Path(file).is_file():
        raise UnusableError(f"{file}: file not found")
    with ExitStack() as stack:
        job = stack.enter_context(closing(Job(Path(file))))
        if not job.members:
            raise UnusableError(f"{file} contains no rows: run approve-many")
        shared = job.members["ledger"]
        if shared and ledger is None:
            raise UnusableError(f"the ledger of {file} is {shared}: name it with --ledger")
        use = stack.enter_context(open_ledger(ledger if shared and ledger is not None else file))
        header = use.run(use.ledger.header())
        if header.id != job.members["ledger_id"]:
            raise UnusableError(f"{file} {OTHER_LEDGER}")
        check_cipher(header, use.policy)
        keys = Keys(job.members["shop_id"], use.secrets(), use.policy)
        inputs = [Reading(**each) for each in job.members["inputs"]]
        files = (name for each in inputs for name in (each.file, each.mapping))
        check_distinct_files((results, rejected), (file, ledger, *files))
        codes = {key: code for each in inputs for key, code in keys.fiscal_codes(each).items()}
        delimiter = job.members["delimiter"]
        out = file.removesuffix(".ledger")
        earlier_codes = fiscal_codes_in(out, delimiter) | fiscal_codes_in(results, delimiter)
        records = JobRecords(job, use.policy.encrypt, codes, earlier_codes)
        found = records.read(use, must_answer=True)
        write_whole(results, result_lines(results, delimiter, found))
        if message := records.uncoded_message():
            print_message(message, "bold")
        if rejected is not None:
            rows = inputs[-1].rows()
            keep_earlier(rejected, rows)
            write_whole(rejected, rejected_lines(rows, records.reasons(keys)))
        return records.counts


async def _entries(ledger: OpenLedger, keys: Iterable[str]) -> list[Entry | None]:
    async def find(key: str) -> Entry | None:
        return await ledger.ledger.get(key) if key else None

    return await asyncio.gather(*map(find, keys))


def _kind_of(row: JobRow, record: Mapping[str, Any]) -> Kind:
    if not record:
        return Kind.TO_BE_SENT
    if not row.key:
        return Kind.REFUSED_LOCALLY
    status = record["status"]
    return Kind(status) if status in (*DECIDED, "unknown") else Kind.FAILED


def _is_newer(entry: Entry, record: Mapping[str, Any]) -> bool:
    """Return True if the ledger knows more about a row than its record."""
    if entry.state.is_decided:
        return record.get("outcome") != entry.state.value
    is_unknown = not record and entry.state is not State.RELEASED
    return is_unknown or is_withdrawn(entry, record.get("outcome"))
