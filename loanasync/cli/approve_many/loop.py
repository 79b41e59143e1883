"""The loop that requests each row once, writes each result at once, and stops at limits and signals."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

from attrs import define, evolve, field, frozen
from rich.console import Console

from loanasync import DecisionNotRecordedError, Dialect, LedgerUnavailableError, LoanClient
from loanasync.bulk import Approvals, Row, RowResult, Summary
from loanasync.cli.approve_many.report import Ticker
from loanasync.cli.approve_many.results import NotWrittenError, Results, line_of
from loanasync.cli.approve_many.resume import Past, PastRequests
from loanasync.cli.console import HASTE, interruptible
from loanasync.cli.rows.append import Appending
from loanasync.cli.rows.orders import Order, Orders

_TICK = 0.2  # seconds between two looks at the summary


@frozen(kw_only=True)
class RunOptions:
    """The options of the command, except those of the rows."""

    out: str | None
    ledger: str | None
    dead_letters: str | None
    report: Path | None
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
    """The end of a run; sentences are empty if they do not apply.

    `interrupted`: from outside, so that the same command goes on; `stopped`: by what the rows came to.
    """

    summary: Summary = field(factory=Summary)
    interrupted: str = ""
    stopped: str = ""
    unburied: str = ""
    is_elsewhere: bool = False  # results that their file did not take
    invalid: int = 0
    unrecorded: int = 0
    unknown_lines: list[int] = field(factory=list)


@frozen
class _Pending:
    """A row that is under way; one that the ledger knows is asked about for its result alone."""

    order: Order
    is_new: bool


@define
class RequestLoop:
    """One run over the rows of a file.

    Args:
        wanted: The options.
        client: The client that requests.
        orders: The rows.
        rows: Number of rows in the plan; the file may have grown since.
        earlier: The customers that were requested before.
        results: The file of results.
        dead_letters: The file of rows that may be given again, if there is one.
        console: Standard error, for messages.
    """

    _wanted: RunOptions
    _client: LoanClient
    _orders: Orders
    _planned: int
    _earlier: PastRequests
    _results: Results
    _dead_letters: Appending | None
    _console: Console
    _ended: RunResult = field(init=False, factory=RunResult)
    _answered: int = field(init=False, default=0)
    _failed: int = field(init=False, default=0)
    _is_given_up: bool = field(init=False, default=False)
    _canary_is_over: asyncio.Event = field(init=False, factory=asyncio.Event)
    _approvals: Approvals = field(init=False)

    async def run(self, tick: Ticker) -> RunResult:
        """Request all rows, except those that were requested before."""
        wanted = self._wanted
        # Each result is written by `progress`, as soon as it is there: a result that waits for the reader
        # would be lost if the process were killed.
        self._approvals = approvals = self._client.approve_many(
            self._rows(), concurrency=wanted.concurrency, rate=wanted.rate, progress=self._came
        )
        ticked = time.monotonic()
        with self._interruptible(), self._until_deadline():
            async with approvals:
                async for _ in approvals:
                    if time.monotonic() - ticked > _TICK:
                        ticked = time.monotonic()
                        tick(approvals.summary)
        if self._is_given_up:
            await self._client.with_options(timeout=HASTE).aclose()
        tick(approvals.summary)
        self._ended.summary = approvals.summary
        return self._ended

    async def _rows(self) -> AsyncIterator[Row]:
        """Yield each row when it is to be sent."""
        sent = 0
        for order, row, past in self._to_come():
            if past == "new":
                if self._wanted.canary and sent == self._wanted.canary:
                    await self._canary_is_over.wait()
                    if self._ended.stopped:
                        return
                if self._wanted.sandbox:
                    await self._client.create_request({"fiscalCode": order.code})
                sent += 1
            yield evolve(row, id=_Pending(order, is_new=past == "new"))

    def _to_come(self) -> Iterator[tuple[Order, Row, Past]]:
        """Yield the rows that get a result; last those that another command requests now, since they wait."""
        busy: list[tuple[Order, Row, Past]] = []
        for order in islice(self._orders.read(), self._planned):
            if order.row is None:
                self._ended.invalid += 1
                self._write(line_of(order, None))
                self._bury(order)
                continue
            past = self._earlier.past(order.code)
            if past == "busy":
                busy.append((order, order.row, past))
            elif past == "new" or not self._earlier.is_reported(order.code):
                yield order, order.row, past
        if busy:
            told = f"waiting for {len(busy):,} rows that another command asks for, or asked for when it died"
            self._console.print(told, highlight=False)
        yield from busy

    def _came(self, result: RowResult) -> None:
        asked = cast("_Pending", result.id)
        order, ended = asked.order, self._ended
        self._write(line_of(order, result, self._earlier.entry(order.code)))
        ended.unrecorded += isinstance(result.error, DecisionNotRecordedError)
        if result.status == "unknown":
            ended.unknown_lines.append(order.line)
        if result.outcome in ("not_sent", "not_evaluated"):
            self._bury(order)
        if isinstance(result.error, LedgerUnavailableError):  # nor could any other row be claimed
            self._end(f"the ledger cannot be used ({result.error.cause_type})")
        if self._results.told:
            ended.is_elsewhere = True
            self._end(self._results.told)
        if asked.is_new:
            self._answered += 1
            self._failed += not result.is_decided
            self._keep_limits()

    def _keep_limits(self) -> None:
        wanted, ended = self._wanted, self._ended
        if wanted.max_errors is not None and self._failed >= wanted.max_errors and not ended.stopped:
            ended.stopped = f"stopped after {self._failed} rows that failed (--max-errors)"
            self._approvals.stop()
        if self._answered == wanted.canary:
            if self._failed:
                told = f"{self._failed} of the first {self._answered} rows failed (--canary)"
                ended.stopped = f"stopped: {told}"
            self._canary_is_over.set()

    def _end(self, why: str) -> None:
        self._ended.interrupted = why
        self._approvals.stop()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._results.add(record)
        except NotWrittenError as error:  # better in the open than lost
            sys.stderr.write(str(error))

    def _bury(self, order: Order) -> None:
        if self._dead_letters is None or not order.entry.text:
            return
        try:
            self._dead_letters.add(order.entry.text)
        except OSError as error:  # what became of the row stands in the results, too
            self._ended.unburied = f"{self._dead_letters.name} has not all dead letters ({error.strerror})"

    def _interruptible(self) -> AbstractContextManager[None]:
        """The first signal lets what is under way end, the second gives it up."""

        def wait() -> None:
            self._end("interrupted")
            self._console.print("no further row is sent; waiting for answers, Ctrl-C gives them up")

        def give_up() -> None:
            self._is_given_up = True
            self._approvals.abort()

        return interruptible(wait, give_up)

    @contextmanager
    def _until_deadline(self) -> Iterator[None]:
        deadline = self._wanted.deadline
        if deadline is None:
            yield
            return
        over = f"{deadline:g} seconds are over (--deadline)"
        timer = asyncio.get_running_loop().call_later(deadline, self._end, over)
        try:
            yield
        finally:
            timer.cancel()
