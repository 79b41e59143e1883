"""The loop that requests each row once, writes each result at once, and stops at limits and signals."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

from attrs import define, evolve, field, frozen
from rich.console import Console

from loanasync import (
    CircuitOpenError,
    ConfigurationError,
    DecisionNotRecordedError,
    Dialect,
    LedgerUnavailableError,
    LoanClient,
)
from loanasync.bulk import Approvals, FailureGroup, Row, RowResult, Summary
from loanasync.bulk.causes import FailureTally
from loanasync.cli.approve_many.first_rows import FirstRows
from loanasync.cli.approve_many.report import UpdateProgress
from loanasync.cli.approve_many.results import NotWrittenError, ResultsFile, reason_of, record_of
from loanasync.cli.approve_many.resume import PastRequests, PastStatus
from loanasync.cli.console import ABORT_TIMEOUT, counted, interruptible
from loanasync.cli.exit_codes import Exit
from loanasync.cli.rows.append import AppendFile
from loanasync.cli.rows.orders import Order, Orders
from loanasync.errors import CircuitReason

_UPDATE_INTERVAL = 0.2  # seconds between two updates of the progress display
_OUTAGES: dict[CircuitReason, str] = {
    "unknown": "the service responds only with errors or not at all",
    "denied": "the service denies this shop; check LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN",
}


@frozen(kw_only=True)
class RunOptions:
    """The options of the command, except those that concern the reading of rows."""

    out: str | None
    ledger: str | None
    cipher: str | None
    orphan_folder: Path | None
    dead_letters: str | None
    report: Path | None
    problems: str | None
    concurrency: int
    rate: float | None
    canary: int
    max_errors: int | None
    deadline: float | None
    dialect: Dialect
    skip_invalid: bool
    validate_only: bool
    dry_run: bool
    sandbox: bool


@define
class RunResult:
    """The result of a run. Messages are empty if they do not apply."""

    summary: Summary = field(factory=Summary)
    interrupted: str = ""  # the reason if a signal, a deadline or a failing file or ledger stopped the run
    interrupt_code: Exit = Exit.INTERRUPTED
    stopped: str = ""  # the reason if failed rows stopped the run
    dead_letters_failure: str = ""
    used_fallback: bool = False  # the results file could not be written
    invalid: int = 0
    decided: int = 0  # requests of this run that the service has approved or refused
    unrecorded: int = 0  # decisions that the ledger could not record
    unknown_lines: list[int] = field(factory=list)
    failures: tuple[FailureGroup, ...] = ()  # their `rows` are line numbers

    def reasons(self, unsent: int) -> list[str]:
        """Return why the run ended early. A limit that is reached after the last row stops nothing.

        Args:
            unsent: Number of rows that were not sent.
        """
        is_deadline = self.interrupt_code is Exit.DEADLINE
        reasons = (self.interrupted if unsent or not is_deadline else "", self.stopped if unsent else "")
        return [reason for reason in reasons if reason]

    @property
    def repeatable(self) -> int:
        """Number of failed rows that the next run sends again."""
        return sum(each.count for each in self.failures if each.outcome in ("not_sent", "not_evaluated"))


@frozen
class _Pending:
    """A row in progress.

    Args:
        order: The row.
        is_new: False for a row whose result the client only reads from the ledger.
        is_first: One of the `FirstRows`.
    """

    order: Order
    is_new: bool
    is_first: bool


@define
class RequestLoop:
    """One run over the rows of a file.

    Args:
        options: The options.
        client: The client that requests the approvals.
        orders: The rows.
        planned: Number of rows in the plan. Rows that were added to the file since then are ignored.
        earlier: The customers that were requested before.
        results: The results file.
        dead_letters: The file of rows that may be sent again, if there is one.
        console: Standard error, for messages.
    """

    _options: RunOptions
    _client: LoanClient
    _orders: Orders
    _planned: int
    _earlier: PastRequests
    _results: ResultsFile
    _dead_letters: AppendFile | None
    _console: Console
    _result: RunResult = field(init=False, factory=RunResult)
    _finished: int = field(init=False, default=0)
    _failed: int = field(init=False, default=0)
    _failures: FailureTally = field(init=False, factory=FailureTally)
    _first_rows: FirstRows = field(init=False, factory=FirstRows)
    # A row with an open quote: as input, it would contain all rows after it, so it is written last.
    _last_letter: tuple[Order, Mapping[str, Any]] | None = field(init=False, default=None)
    _is_aborted: bool = field(init=False, default=False)
    _is_paused: bool = field(init=False, default=False)
    _unsent: int = field(init=False, default=0)  # rows that waited for the circuit breaker when the run ended
    _canary_is_done: asyncio.Event = field(init=False, factory=asyncio.Event)
    _approvals: Approvals = field(init=False)

    async def run(self, update_progress: UpdateProgress) -> RunResult:
        """Request all rows, except those that were requested before."""
        options = self._options
        # `progress` writes each result as soon as it arrives: a result that waited for the reader would be
        # lost if the process were killed.
        self._approvals = approvals = self._client.approve_many(
            self._rows(), concurrency=options.concurrency, rate=options.rate, progress=self._record_result
        )
        updates = asyncio.create_task(self._update_regularly(update_progress))
        try:
            with self._interruptible(), self._until_deadline():
                async with approvals:
                    async for _ in approvals:
                        pass
        finally:
            updates.cancel()
        if self._last_letter is not None:
            self._write_dead_letter(*self._last_letter)
        if self._is_aborted:
            await self._client.with_options(timeout=ABORT_TIMEOUT).aclose()
        summary = approvals.summary
        self._result.summary = evolve(summary, error=summary.error - self._unsent)
        update_progress(self._result.summary)
        self._result.failures = self._failures.groups()
        return self._result

    async def _update_regularly(self, update_progress: UpdateProgress) -> None:
        """Update the progress display also while no result arrives, and print when the run pauses."""
        while True:
            await asyncio.sleep(_UPDATE_INTERVAL)
            update_progress(self._approvals.summary)
            self._check_circuit()

    def _check_circuit(self) -> None:
        """Print when the circuit breaker opens and closes. If nothing was decided before, stop the run."""
        refusal, result = self._approvals.open_circuit, self._result
        if (refusal is not None) is self._is_paused:
            return
        self._is_paused = refusal is not None
        if refusal is None:
            self._print("continuing: the service decides again")
        elif self._options.max_errors is None and not result.decided and not result.stopped:
            result.stopped = (
                f"stopped because {_OUTAGES[refusal.reason]}, and no row was decided before; "
                "to wait for the service, add --max-errors N"
            )
            self._approvals.stop()
        else:
            self._print(f"paused because {_OUTAGES[refusal.reason]}; one row at a time tries again")

    async def _rows(self) -> AsyncIterator[Row]:
        """Yield the rows for `approve_many`, which takes one when its call can start."""
        sent = 0
        for order, row, status in self._selected_rows():
            if status == "new":
                if self._options.canary and sent == self._options.canary:
                    await self._canary_is_done.wait()
                    if self._result.stopped:
                        return
                if self._options.sandbox:
                    await self._client.create_request({"fiscalCode": order.code})
            is_new = status == "new"
            is_first = is_new and not self._earlier.has_result(order.code) and self._first_rows.add()
            sent += is_new
            yield evolve(row, id=_Pending(order, is_new, is_first))

    def _selected_rows(self) -> Iterator[tuple[Order, Row, PastStatus]]:
        """Yield the rows that need a result. Those in progress in another command come last: they wait."""
        busy: list[tuple[Order, Row, PastStatus]] = []
        for order in islice(self._orders.read(), self._planned):
            if order.row is None:
                self._result.invalid += 1
                record = record_of(order, None)
                self._write(record)
                if order.parsed.is_open:
                    self._last_letter = order, record
                else:
                    self._write_dead_letter(order, record)
                continue
            status = self._earlier.status(order.code)
            if status == "busy":
                busy.append((order, order.row, status))
            elif status == "new" or not self._earlier.is_reported(order.code):
                yield order, order.row, status
        if busy:
            rows = counted(len(busy), "row")
            self._print(f"waiting for {rows} claimed by another process, which may have died")
        yield from busy

    def _record_result(self, row_result: RowResult) -> None:
        if isinstance(
            row_result.error, CircuitOpenError
        ):  # the run has ended, and the next run sends the row
            self._unsent += 1
            return
        pending = cast("_Pending", row_result.id)
        order, result = pending.order, self._result
        record = record_of(order, row_result, self._earlier.entry_key(order.code))
        self._write(record)
        result.unrecorded += isinstance(row_result.error, DecisionNotRecordedError)
        if not row_result.is_decided:
            self._failures.add(row_result.error, row_result.outcome, order.line)
        if row_result.status == "unknown":
            result.unknown_lines.append(order.line)
        if row_result.outcome in ("not_sent", "not_evaluated"):
            self._write_dead_letter(order, record)
        if isinstance(row_result.error, LedgerUnavailableError):  # no other row could be claimed either
            self._stop(f"the ledger is not available ({row_result.error.cause_type})")
        if isinstance(row_result.error, ConfigurationError):  # it concerns every row
            self._stop(str(row_result.error))
        if self._results.failure:
            result.used_fallback = True
            self._stop(self._results.failure)
        if pending.is_new:
            self._finished += 1
            result.decided += row_result.is_decided
            self._failed += not row_result.is_decided
            if pending.is_first and not row_result.is_decided:
                self._first_rows.add_failure(row_result.error, row_result.outcome)
            self._check_limits()

    def _check_limits(self) -> None:
        if self._is_paused:  # the run may end before the next update
            self._check_circuit()
        options, result = self._options, self._result
        if options.max_errors is None:
            if (reason := self._first_rows.reason) and not result.stopped:
                result.stopped = f"{reason}; to send the other rows anyway, add --max-errors N"
                self._approvals.stop()
        elif self._failed >= options.max_errors:
            others = self._failed - options.max_errors
            after = f" ({others:,} of them while the calls in progress finished)" if others else ""
            result.stopped = f"stopped by --max-errors: {counted(self._failed, 'row')} failed{after}"
            self._approvals.stop()
        if self._finished == options.canary:
            if self._failed and not result.stopped:
                rows = counted(self._finished, "row")
                result.stopped = f"stopped by --canary: of the first {rows}, {self._failed:,} failed"
            self._canary_is_done.set()

    def _stop(self, reason: str, code: Exit = Exit.INTERRUPTED) -> None:
        self._result.interrupted = reason
        self._result.interrupt_code = code
        self._approvals.stop()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._results.add(record)
        except (
            NotWrittenError
        ) as error:  # a result with personal data on the screen is better than a lost one
            self._console.file.write(str(error))

    def _write_dead_letter(self, order: Order, record: Mapping[str, Any]) -> None:
        if self._dead_letters is None:
            return
        try:
            self._dead_letters.add(self._orders.table.dead_letter(order.parsed, reason_of(record)))
        except OSError as error:  # not fatal: the results name the line of the row
            self._result.dead_letters_failure = (
                f"some dead letters could not be written to {self._dead_letters.name} ({error.strerror}); "
                "the results name the lines of these rows"
            )

    def _print(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def _interruptible(self) -> AbstractContextManager[None]:
        """Return a context in which the first signal stops the run, and the second aborts its calls."""

        def stop() -> None:
            self._stop("interrupted")
            self._print(
                "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel "
                "them: their outcomes become unknown"
            )

        def abort() -> None:
            self._is_aborted = True
            self._approvals.abort()

        return interruptible(stop, abort)

    @contextmanager
    def _until_deadline(self) -> Iterator[None]:
        deadline = self._options.deadline
        if deadline is None:
            yield
            return

        def stop() -> None:
            if not self._result.interrupted:  # another reason explains more
                self._stop(f"stopped by --deadline ({deadline:g} s)", Exit.DEADLINE)

        timer = asyncio.get_running_loop().call_later(deadline, stop)
        try:
            yield
        finally:
            timer.cancel()
