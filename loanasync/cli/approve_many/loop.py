"""The loop that requests each row once, records each result in the job, and stops at limits and signals."""

import asyncio
import sqlite3
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

from attrs import define, evolve, field, frozen

from loanasync import (
    CircuitOpenError,
    ConfigurationError,
    DecisionNotRecordedError,
    LedgerUnavailableError,
)
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.bulk import Approvals, FileRow, InputRows, Row, RowResult
from loanasync.cli.approve_many.creation import CreatingClient, Creation
from loanasync.cli.approve_many.export import JobRecords
from loanasync.cli.approve_many.job import CREATED, Counts, Job, Kind, Target
from loanasync.cli.approve_many.plan import Keys
from loanasync.cli.approve_many.report import UpdateProgress
from loanasync.cli.approve_many.results import record_of
from loanasync.cli.console import ABORT_TIMEOUT, counted, interruptible, print_message
from loanasync.cli.exit_codes import Exit

_UPDATE_INTERVAL = 0.2  # seconds between two writes to the job, and updates of the progress display


@frozen
class _Pending:
    order: FileRow
    key: str
    target: Target
    creation: Creation | None = None


@define
class RequestLoop:
    """One run over the rows of a file.

    Args:
        client: The client that requests the approvals.
        orders: The rows.
        job: The job, which contains the plan.
        keys: The keys of its rows.
        records: Writes the records.
        counts: The counts of the plan. Each result changes them.
        member_columns: The column by member of the creation's body. None: create no request.
    """

    _client: CreatingClient
    _orders: InputRows
    _job: Job
    _keys: Keys
    _records: JobRecords
    _counts: Counts
    _member_columns: Mapping[str, str] | None
    stopped: str = field(init=False, default="")  # the reason why the run ended early
    code: Exit = field(init=False, default=Exit.FAILED)  # the exit code of that reason
    unrecorded: int = field(init=False, default=0)  # decisions that the ledger could not record
    finished: int = field(init=False, default=0)
    repeatable: int = field(init=False, default=0)  # failed rows that the next run sends again
    elapsed: float = field(init=False, default=0.0)
    is_aborted: bool = field(init=False, default=False)
    _results: list[tuple[Kind, str, bytes, int]] = field(init=False, factory=list)
    _marks: set[int] = field(init=False, factory=set)  # numbers of rows whose creation is about to be sent
    _saving: asyncio.Lock = field(init=False, factory=asyncio.Lock)
    _is_paused: bool = field(init=False, default=False)
    _approvals: Approvals = field(init=False)
    _closing: asyncio.Future[None] = field(init=False)

    async def run(self, update: UpdateProgress, deadline: float | None, **options: Any) -> None:
        """Request all rows that need a result.

        Args:
            update: Updates the progress display.
            deadline: Seconds after which no further row is sent.
            options: Options of `LoanClient.approve_many`.
        """
        self._approvals = approvals = self._client.approve_many(
            self._rows(), progress=self._record_result, **options
        )
        updates = asyncio.create_task(self._update_regularly(update))
        timer = None
        if deadline is not None:
            reason = f"stopped by --deadline ({deadline:g} s)"
            timer = asyncio.get_running_loop().call_later(deadline, self._stop, reason, Exit.DEADLINE)
        try:
            with self._interruptible(), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of the stop, which this command prints
                async with approvals:
                    async for _ in approvals:
                        pass
        finally:
            updates.cancel()
            if timer is not None:
                timer.cancel()
            await self._save()
        if self.is_aborted:
            await self._closing
        if approvals.stopped and not self.stopped:
            self.stopped = f"{approvals.stopped}; to send the other rows anyway, add --stop-after 0"
        self.elapsed = approvals.summary.elapsed
        update(self.finished)

    async def _update_regularly(self, update: UpdateProgress) -> None:
        while True:
            await asyncio.sleep(_UPDATE_INTERVAL)
            update(self.finished)
            self._check_circuit()
            await asyncio.shield(self._save())

    async def _save(self) -> None:
        """Write new results to the job. A kill before that loses nothing: the ledger has the decisions."""
        async with self._saving:
            if not self._results:
                return
            results, self._results = self._results, []
            try:
                await asyncio.to_thread(self._job.finish, results)
            except sqlite3.Error as error:
                self._results = [*results, *self._results]
                self._stop(f"{self._job.path} cannot be written ({error})", Exit.FAILED)
            else:
                for *_, number in results:
                    self._records.unsaved.pop(number, None)

    def _check_circuit(self) -> None:
        """Print when the run pauses and continues."""
        error = self._approvals.paused
        if (error is not None) is self._is_paused:
            return
        self._is_paused = error is not None
        if error is None:
            print_message("continuing: rows are sent again")
        else:
            print_message(f"paused: {error}; one row at a time tries again")

    async def _rows(self) -> AsyncIterator[Row]:
        """Yield the rows for `approve_many`, which takes one when its call can start."""
        for pending in self._pending():
            if self._member_columns is not None and pending.target.kind is Kind.TO_BE_SENT:
                found = {name: pending.order.members.get(each) for name, each in self._member_columns.items()}
                body = {name: value for name, value in found.items() if value not in (None, "")}
                code = normalize_fiscal_code(pending.order.fiscal_code)
                mark = partial(self._mark_created, pending)
                creation = Creation({"fiscalCode": code, **body}, mark, pending.target.may_exist)
                self._client.creations[code] = creation
                pending = evolve(pending, creation=creation)  # noqa: PLW2901  (complete from here on)
            yield evolve(pending.order, id=pending)

    async def _mark_created(self, pending: _Pending) -> None:
        """Write that the creation of a row may have been sent. Rows that wait are written together."""
        number = pending.target.number

        async def mark() -> None:
            async with self._saving:
                if number in self._marks:
                    marks = tuple(self._marks)
                    await asyncio.to_thread(self._job.mark_created, marks)
                    self._marks.difference_update(marks)

        self._marks.add(number)
        try:
            await asyncio.shield(mark())  # a cancelled call must not leave the job to two threads
        except sqlite3.Error as error:
            self._marks.discard(number)
            self._stop(f"{self._job.path} cannot be written ({error})", Exit.FAILED)
            raise LedgerUnavailableError("create_request", pending.key, type(error).__name__) from None

    def _pending(self) -> Iterator[_Pending]:
        """Yield the rows that need a result. Those in progress in another command come last: they wait."""
        targets = self._job.targets()
        busy: list[_Pending] = []
        for order in self._orders:
            key = next((key for key in self._keys.keys(order) if key in targets), None)
            if key is None:  # it has a result, or was added to the file after the plan
                continue
            pending = _Pending(order, key, targets.pop(key))
            if pending.target.kind is Kind.IN_PROGRESS:
                busy.append(pending)
            else:
                yield pending
        if busy:
            rows = counted(len(busy), "row")
            print_message(f"waiting for {rows} claimed by another process, which may have died")
        yield from busy

    def _record_result(self, result: RowResult) -> None:
        if isinstance(result.error, CircuitOpenError):  # the run has ended, and the next run sends the row
            return
        pending = cast("_Pending", result.id)
        number, kind = pending.target.number, _kind_of(result)
        record = record_of(pending.order, result, pending.key)
        state: str = (
            "failed"
            if result.status in ("failed", "not_sent") and not _may_be_sent(result)
            else result.outcome
        )
        if (creation := pending.creation) is not None:
            code = normalize_fiscal_code(pending.order.fiscal_code)
            if self._client.creations.get(code) is creation:  # not that of the customer's next order
                del self._client.creations[code]
            state = CREATED if creation.may_exist and _may_be_sent(result) else state
        self._records.unsaved[number] = record
        self._results.append((kind, state, self._records.encode(record), number))
        if kind is not pending.target.kind:
            self._counts.move(pending.target.kind, kind, pending.target.cents)
        self.finished += pending.target.kind is not Kind.UNKNOWN
        self.repeatable += _may_be_sent(result)
        self.unrecorded += isinstance(result.error, DecisionNotRecordedError)
        if isinstance(result.error, LedgerUnavailableError):  # no other row could be claimed either
            self._stop(f"the ledger is not available ({result.error.cause_type})", Exit.FAILED)
        if isinstance(result.error, ConfigurationError):  # it concerns every row
            self._stop(str(result.error), Exit.FAILED)
        if self._is_paused:  # the run may end before the next update
            self._check_circuit()

    def _stop(self, reason: str, code: Exit) -> None:
        if not self.stopped:
            self.stopped, self.code = reason, code
        self._approvals.stop()

    def _interruptible(self) -> AbstractContextManager[None]:
        """Return a context in which the first signal stops the run, and the second aborts its calls."""

        def stop() -> None:
            self._stop("interrupted", Exit.INTERRUPTED)
            print_message(
                "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel "
                "them: their outcomes become unknown"
            )

        def abort() -> None:
            self.is_aborted = True
            self._closing = asyncio.ensure_future(self._client.aclose(ABORT_TIMEOUT))

        return interruptible(stop, abort)


def _may_be_sent(result: RowResult) -> bool:
    return result.outcome in ("not_sent", "not_evaluated")


def _kind_of(result: RowResult) -> Kind:
    if result.is_decided:
        return Kind(result.status) if result.sent else Kind.FROM_LEDGER
    return Kind.UNKNOWN if result.status == "unknown" else Kind.FAILED
