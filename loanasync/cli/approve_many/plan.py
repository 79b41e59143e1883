"""The plan of a run of `approve-many`: what it will do with each row of the input."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from attrs import field, frozen

from loanasync._display.masking import mask
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.bulk import FileRow, InputError, InputRows
from loanasync.cli.approve_many.job import MAY_BE_SENT, FoundRow, Job, Kind
from loanasync.cli.approve_many.problems import ProblemList
from loanasync.cli.approve_many.results import record_of
from loanasync.cli.input import DialectName, rows_of
from loanasync.cli.ledger.open import OpenLedger
from loanasync.ledger import Entry, Ledger, Settlement, State
from loanasync.ledger.keys import Place, places_of
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.resolution import find_entry

Encode: TypeAlias = Callable[[Mapping[str, Any]], bytes]
_BATCH = 64  # customers that are looked up in a ledger together
_KILLED = Settlement(state=State.UNKNOWN, note="in progress when an earlier run ended")


@frozen
class Reading:
    """The input of a run and the options with which it is read. The job keeps them for its exports."""

    file: str
    column: Sequence[str]
    mapping: str | None
    euro: bool
    ignore_unknown: bool
    dialect: DialectName

    def rows(self) -> InputRows:
        """Return the rows of the input.

        Raises:
            InputError: The file or the mapping cannot be used.
        """
        dialect = DialectName(self.dialect)
        return rows_of(
            self.file, self.column, self.mapping, dialect, euro=self.euro, lenient=self.ignore_unknown
        )


@frozen
class Customer:
    """The customer, scope and order that the key of a ledger entry identifies."""

    fiscal_code: str = field(repr=mask)
    scope: str
    order_token: str | None


def customer_of(row: FileRow) -> Customer | None:
    """Return the customer of a row; None for a row with problems."""
    return None if row.problems else Customer(row.fiscal_code, row.scope, row.request.order_token)


@frozen
class Keys:
    """Keys of ledger entries: digests of the shop, the customer and the scope."""

    shop_id: str
    secrets: tuple[bytes, ...]
    policy: LedgerPolicy

    def places(self, customer: Customer) -> tuple[Place, ...]:
        """Return the places of the entry of a customer."""
        code = normalize_fiscal_code(customer.fiscal_code)
        return places_of(self.shop_id, code, self.secrets, self.policy, customer.scope, customer.order_token)

    def keys(self, customer: Customer | None) -> tuple[str, ...]:
        """Return the keys of a customer, the present one first; none for a row with problems."""
        return () if customer is None else tuple(place.key for place in self.places(customer))


@frozen
class Planner:
    """Makes the plan of a run.

    Args:
        job: The job.
        keys: The keys of its ledger.
        ledger: The ledger, if it has entries that concern the plan.
        is_own: The ledger belongs to the job alone, so an entry in flight was left by a killed run.
        writes: False for a plan that is only shown.
    """

    job: Job
    keys: Keys
    ledger: OpenLedger | None
    is_own: bool
    writes: bool

    def read(self, orders: InputRows, problems: ProblemList, encode: Encode) -> dict[str, Customer]:
        """Plan all rows, and return the customers by key."""
        customers: dict[str, Customer] = {}
        rows = iter(orders)
        while batch := tuple(islice(rows, _BATCH)):
            entries = self._entries([customer_of(order) for order in batch])
            for order, entry in zip(batch, entries, strict=True):
                problems.add(order.problems)
                customer = customer_of(order)
                keys = self.keys.keys(customer)
                if customer is not None:
                    customers.update(dict.fromkeys(keys, customer))
                self._plan(order, keys, orders.name, entry, encode)
        return customers

    def _entries(self, customers: Sequence[Customer | None]) -> Sequence[Entry | None]:
        if self.ledger is None:
            return [None] * len(customers)
        found = [self._look_up(self.ledger.ledger, each) for each in customers]
        return self.ledger.run(_gathered(found))

    async def _look_up(self, ledger: Ledger, customer: Customer | None) -> Entry | None:
        if customer is None:
            return None
        entry = await find_entry(ledger, self.keys.places(customer), by_order=False)
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
        found = self.job.find(keys, order.line, row_id)
        # After a rotation of the key, a row keeps the key of its entry.
        key = found.key if found is not None and found.key in keys else next(iter(keys), "")
        place = (order.line, row_id, "" if order.problems else order.scope, key, source)
        if order.problems:
            record = encode(record_of(order, None))
            self.job.plan(found, *place, Kind.REFUSED_LOCALLY, 0, "not_sent", record)
            return
        kind = self._kind(entry, found)
        kept: tuple[str, bytes | None] = ("", None)
        if found is not None and found.key == key and kind is not Kind.FROM_LEDGER:
            kept = found.state, found.record
        if kind is Kind.UNKNOWN and kept[0] != "unknown":
            kept = "", None  # the client reads the outcome from the ledger
        self.job.plan(found, *place, kind, order.request.amount, *kept)

    def _kind(self, entry: Entry | None, found: FoundRow | None) -> Kind:
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
                return Kind.EARLIER if is_decided else Kind.UNKNOWN


async def _gathered(lookups: Sequence[Coroutine[Any, Any, Entry | None]]) -> list[Entry | None]:
    return await asyncio.gather(*lookups)


def customers_of(reading: Reading, keys: Keys) -> dict[str, Customer]:
    """Return the customers of an input by key; none if it can no longer be read."""
    if reading.file == "-":  # a pipe has only one reader
        return {}
    with suppress(InputError):
        found = filter(None, map(customer_of, reading.rows()))
        return {key: customer for customer in found for key in keys.keys(customer)}
    return {}
