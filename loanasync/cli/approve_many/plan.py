"""The plan of a run of `approve-many`: what it will do with each row of the input."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from attrs import field, frozen

from loanasync._display.masking import mask
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.bulk import FileRow, InputError, InputRows
from loanasync.cli.approve_many.job import CREATED, MAY_BE_SENT, Counts, Job, JobRow, Kind
from loanasync.cli.approve_many.problems import ProblemList
from loanasync.cli.approve_many.results import is_withdrawn, record_of
from loanasync.cli.input import Reading, source_of
from loanasync.cli.ledger.open import OpenLedger
from loanasync.ledger import Entry, Ledger, Settlement, State
from loanasync.ledger.keys import Approval, Place, find_entry, places_of
from loanasync.ledger.policy import LedgerPolicy

Encode: TypeAlias = Callable[[Mapping[str, Any]], bytes]
_BATCH = 64  # customers that are looked up in a ledger together
_KILLED = Settlement(state=State.UNKNOWN, note="in progress when an earlier run ended")


def check_rows(orders: InputRows, rejected: str | None) -> Counts:
    """Print the problems of the rows, and count valid and invalid rows.

    Args:
        orders: The rows.
        rejected: The file of rejected rows.
    """
    problems, counts = ProblemList(), Counts()
    for order in orders:
        problems.add(order.problems)
        if order.problems:
            counts.add(Kind.REFUSED_LOCALLY, 0)
        else:
            counts.add(Kind.TO_BE_SENT, order.request.amount)
    problems.print(rejected)
    return counts


@frozen
class Keys:
    """Keys of ledger entries: digests of the shop, the customer and the order."""

    shop_id: str
    secrets: tuple[bytes, ...] = field(repr=mask)
    policy: LedgerPolicy

    def places(self, row: FileRow) -> tuple[Place, ...]:
        """Return the places of the entry of a row; none for a row with problems."""
        if row.problems:
            return ()
        code = normalize_fiscal_code(row.fiscal_code)
        approval = Approval(self.shop_id, code, row.order_id, row.request.order_token)
        return places_of(approval, self.secrets)

    def keys(self, row: FileRow) -> tuple[str, ...]:
        """Return the keys of a row, the present one first; none for a row with problems."""
        return tuple(place.key for place in self.places(row))

    def fiscal_codes(self, reading: Reading) -> dict[str, str]:
        """Return the fiscal codes of an input by key; none if it can no longer be read."""
        codes: dict[str, str] = {}
        with suppress(InputError):
            for row in () if reading.file == "-" else reading.rows():  # a pipe has only one reader
                codes.update(dict.fromkeys(self.keys(row), row.fiscal_code))
        return codes


@frozen
class Planner:
    """Makes the plan of a run.

    Args:
        job: The job.
        keys: The keys of its ledger.
        ledger: The ledger; None if it is new and has no entries.
        is_own: The ledger belongs to the job alone, so an entry in flight was left by a killed run.
        writes: False for a plan that is only shown.
    """

    job: Job
    keys: Keys
    ledger: OpenLedger | None
    is_own: bool
    writes: bool

    def plan(self, orders: InputRows, encode: Encode) -> dict[str, str]:
        """Plan all rows, and return the fiscal codes by key."""
        codes: dict[str, str] = {}
        rows = iter(orders)
        while batch := tuple(islice(rows, _BATCH)):
            entries: Sequence[Entry | None] = [None] * len(batch)
            if self.ledger is not None:
                entries = self.ledger.run(self._entries(self.ledger.ledger, batch))
            for order, entry in zip(batch, entries, strict=True):
                keys = self.keys.keys(order)
                codes.update(dict.fromkeys(keys, order.fiscal_code))
                self._plan(order, keys, source_of(orders.name), entry, encode)
        return codes

    async def _entries(self, ledger: Ledger, rows: Sequence[FileRow]) -> Sequence[Entry | None]:
        return await asyncio.gather(*(self._look_up(ledger, row) for row in rows))

    async def _look_up(self, ledger: Ledger, row: FileRow) -> Entry | None:
        if row.problems:
            return None
        entry = await find_entry(ledger, self.keys.places(row))
        if not isinstance(entry, Entry):
            return None
        if entry.state is State.INFLIGHT and self.is_own and self.writes:
            key, token, payload = entry.key, entry.token, entry.payload
            return await ledger.settle(key, token=token, payload=payload, settlement=_KILLED)
        return entry

    def _plan(
        self, order: FileRow, keys: Sequence[str], source: str, entry: Entry | None, encode: Encode
    ) -> None:
        row_id = json.dumps(order.id, default=str)
        found = self.job.find(keys, order.line, row_id, source)
        # After a rotation of the key, a row keeps the key of its entry.
        key = found.key if found is not None and found.key in keys else next(iter(keys), "")
        created = ""
        if found is not None and found.state == CREATED:
            is_same = found.key == key or "" in (found.key, key)  # a row with problems has no key
            created = CREATED if is_same else ""
        place = (order.line, row_id, key, source)
        if order.problems:
            record = encode(record_of(order, None))
            self.job.plan(found, *place, Kind.REFUSED_LOCALLY, 0, created or "not_sent", record)
            return
        kind = self._kind(entry, found)
        kept: tuple[str, bytes | None] = (created, None)
        if found is not None and found.key == key and kind is not Kind.FROM_LEDGER:
            kept = found.state, found.record
        if kind is Kind.UNKNOWN and kept[0] != "unknown":
            kept = created, None  # the client reads the outcome from the ledger
        self.job.plan(found, *place, kind, order.request.amount, *kept)

    def _kind(self, entry: Entry | None, found: JobRow | None) -> Kind:
        known = "" if found is None or found.record is None else found.state
        is_decided = known in ("approved", "refused")
        match None if entry is None else entry.state:
            case State.APPROVED | State.REFUSED as state:
                return Kind.EARLIER if known == state.value else Kind.FROM_LEDGER
            case State.RELEASED:
                return Kind.TO_BE_SENT
            case None if known in MAY_BE_SENT:
                return Kind.TO_BE_SENT
            case State.INFLIGHT if not is_decided and not self.is_own:
                return Kind.IN_PROGRESS
            case None if known == "failed":
                return Kind.FAILED
            case _:  # the ledger lacks a decision of the job: it could not be recorded, or was purged
                is_kept = is_decided and (entry is None or not is_withdrawn(entry, known))
                return Kind.EARLIER if is_kept else Kind.UNKNOWN
