"""The client of `approve-many`: it looks up rows, and creates loan requests (spec §1.1, §4.3)."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any, Unpack, cast

from attrs import evolve

from loanasync import (
    ApprovalRequest,
    InFlightError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanClient,
    LoanError,
    UserNotFoundError,
)
from loanasync._client import ClientOptions
from loanasync._models.decisions import Decision
from loanasync._protocol.endpoints import APPROVE, KNOWN
from loanasync._protocol.rules import normalize_fiscal_code
from loanasync.bulk import FileRow, RowResult
from loanasync.bulk.rows import arguments_of, result_of
from loanasync.cli.console import batches
from loanasync.ledger import Entry, Settlement, State
from loanasync.ledger.guard import LedgerGuard
from loanasync.ledger.keys import Approval
from loanasync.ledger.model import CREATED

_CREATED = Settlement(state=State.RELEASED, note=CREATED)
_LEASE = 60.0  # seconds
_BATCH = 64  # rows that are looked up together


class BulkClient(LoanClient):
    """A client whose `approve_many` creates the loan requests of the rows in `bodies` first.

    The specification does not say whether a creation may be repeated. So it is noted in the ledger before it
    is sent. A noted row is approved first, and created only if the service does not know the customer.
    """

    def __init__(self, **options: Unpack[ClientOptions]) -> None:
        super().__init__(**options)
        self.bodies: dict[tuple[str, str], Mapping[str, Any]] = {}  # of creations, by customer and order
        # Customers and orders whose creation this run has noted: a long history of an entry forgets the note.
        self.noted: set[tuple[str, str]] = set()
        # Customers with an order in progress. Another one waits: both could be claimed at the same moment.
        self._busy: set[str] = set()

    @property
    def _guard(self) -> LedgerGuard:
        return cast("LedgerGuard", self._ledger_guard)

    async def look_up_all(
        self, numbered: Iterable[tuple[int, FileRow]], *, ignored: tuple[type[LoanError], ...] = ()
    ) -> AsyncIterator[tuple[int, FileRow, RowResult | None]]:
        """Yield each row with its number and what is known of it; None if it may be sent. Send nothing.

        Args:
            numbered: The rows with their numbers.
            ignored: Errors after which nothing is known of a row.

        Raises:
            LoanError: The ledger cannot be read.
        """

        async def look_up(number: int, row: FileRow) -> RowResult | None:
            with suppress(*ignored):
                return await self._look_up(number, row)
            return None

        for batch in batches(numbered, _BATCH):
            found = await asyncio.gather(*(look_up(*each) for each in batch))
            for (number, row), result in zip(batch, found, strict=True):
                yield number, row, result

    async def _look_up(self, index: int, row: FileRow) -> RowResult | None:
        try:
            code, request, needed, order = arguments_of(row)
        except LoanError as error:
            return result_of(index, row, error)
        found = await self._known(code, request, order, needed=needed)
        return None if found is None else result_of(index, row, found)

    async def _known(
        self, code: str, request: ApprovalRequest, order: str, *, needed: bool
    ) -> Decision | LoanError | None:
        """Return what the ledger answers about an approval; None if the request would be sent.

        Raises:
            LoanError: The ledger cannot be read.
        """
        options = self._options
        call = APPROVE.prepare(
            options, code, request, additional_data_needed=needed, order_id=order, wait=0.0
        )
        if isinstance(call, LoanError):
            return call
        call = evolve(call, endpoint=KNOWN)
        try:
            found = await self._flights.read(
                call, options.timeout, options.retry, lambda _, run: self._guard.look_up(run)
            )
        except (LedgerUnavailableError, LedgerMismatchError):
            raise
        except LoanError as error:
            return error
        return cast("Decision | None", found)

    async def _approve_row(
        self, fiscal_code: str, request: ApprovalRequest, *, order_id: str = "", **options: Any
    ) -> Decision:
        code = normalize_fiscal_code(fiscal_code)
        if code in self._busy:
            raise InFlightError("approve", "")
        self._busy.add(code)
        try:
            return await self._approve(code, request, order_id, **options)
        finally:
            self._busy.discard(code)

    async def _approve(self, code: str, request: ApprovalRequest, order_id: str, **options: Any) -> Decision:
        approve = partial(super()._approve_row, code, request, order_id=order_id, **options)
        body = self.bodies.get((code, order_id))
        needed = options["additional_data_needed"]
        if body is None or await self._known(code, request, order_id, needed=needed) is not None:
            return await approve()
        if is_new := await self._note(code, order_id):
            await self._create(body)
        try:
            return await approve()
        except UserNotFoundError:
            if is_new:
                raise
        await self._create(body)
        return await approve()

    async def _note(self, code: str, order_id: str) -> bool:
        """Note the creation of a loan request. Return False if one may have been sent.

        Raises:
            LoanError: The ledger cannot be used.
        """
        if (code, order_id) in self.noted:
            return False
        write = partial(self._write_note, code, order_id)
        is_new = await self._guard.attempt(write, self._guard.policy.patience)
        if isinstance(is_new, LoanError):
            raise is_new
        if is_new:
            self.noted.add((code, order_id))
        return is_new

    async def _write_note(self, code: str, order_id: str) -> bool:
        ledger, token = self._guard.ledger, token_hex(16)
        place = (await self._guard.places(Approval(self._options.shop.shop_id, code, order_id)))[0]
        found = await ledger.get(place.key)
        if found is not None and CREATED in (found.note, *(each.note for each in found.history)):
            return False
        if found is not None:  # a settlement of another claim would not be accepted
            await ledger.claim(place.key, token=token, payload="", lease=_LEASE, subject=place.subject)
        entry: Entry = await ledger.settle(
            place.key, token=token, payload="", settlement=_CREATED, subject=place.subject
        )
        return entry.token == token

    async def _create(self, body: Mapping[str, Any]) -> None:
        try:
            await self.create_request(body)
        except LoanError as error:
            if error.outcome != "unknown":  # then the approval shows whether the request exists
                raise
