"""A pool with a limit on the calls in progress, and on the results that wait to be read.

One task takes the rows (`_take_rows`). When the reader has caught up and the rate allows a call, it takes the
next row and starts a task for its call (`_run_row`), which stores the result for the reader. While nothing
can be sent, rows wait for their turn to try (`Turns`).

A run begins slowly: each decision permits one more call in progress. Rows in sequence that end without a
decision stop the run (`_count`).
"""

import asyncio
import time
import warnings
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, cast

from loanasync._models.decisions import Decision
from loanasync.bulk.next_steps import REFUSED_SHOP, next_step
from loanasync.bulk.options import BulkOptions
from loanasync.bulk.rows import RowLike, RowResult, arguments_of, result_of
from loanasync.bulk.summary import Tally
from loanasync.bulk.turns import Rate, Turns
from loanasync.errors import (
    DecisionForgottenError,
    InFlightError,
    InvalidRequestError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    TransportError,
)

_NO_MORE_ROWS: Any = object()
_FIRST_CALLS = 4  # calls in progress before the first decision: a wrong setting concerns few customers
# Errors that say nothing about the service or the settings. Such rows do not stop a run.
_KNOWN_WITHOUT_SENDING = (
    DecisionForgottenError,
    InFlightError,
    InvalidRequestError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
_REFUSALS = 5  # rows in sequence whose shop is refused; the first row of a run stops it alone
# These exceptions would end the reader's loop or task as if nothing had failed, so `_fail` wraps them in a
# RuntimeError.
_CONTROL_FLOW = (asyncio.CancelledError, GeneratorExit, StopIteration, StopAsyncIteration)


class Pool:
    """Requests the approval of each row, and hands the results to one reader.

    At most ``2 * concurrency`` taken rows have a call in progress or a result that was not read yet. A row is
    taken only when its call can start. Every row that was taken produces a result, even if its task is
    cancelled.

    Args:
        rows: An iterable or an asynchronous iterable.
        approve: Requests one approval.
        options: The options of the run.
        turns: Sends the rows.
        tally: Counts each result as soon as it arrives.
        progress: Called with each result, after the tally has counted it.
    """

    def __init__(
        self,
        rows: Iterable[RowLike] | AsyncIterable[RowLike],
        approve: Callable[..., Coroutine[Any, Any, Decision]],
        options: BulkOptions,
        turns: Turns,
        tally: Tally,
        progress: Callable[[RowResult], object] | None,
    ) -> None:
        # Rows that support both kinds of iteration are read asynchronously, without blocking the event loop.
        self._async_rows: AsyncIterator[RowLike] | None = (
            aiter(rows) if isinstance(rows, AsyncIterable) else None
        )
        self._sync_rows: Iterator[RowLike] = iter(()) if isinstance(rows, AsyncIterable) else iter(rows)
        limits = {"wait": options.wait, "timeout": options.timeout, "retry": options.retry}
        self._approve = partial(approve, **limits)
        self._turns = turns
        self._tally = tally
        self._progress = progress
        self._concurrency = options.concurrency
        self._stop_after = options.stop_after
        self._decided = 0  # number of decisions
        self._failed = 0  # number of rows without a decision since the last decision
        self._refused = 0  # number of rows whose shop was refused, since the last other row
        self._started: dict[int, tuple[float, RowLike]] = {}  # calls in progress: when they began, and rows
        self.stopped: str = ""  # the reason if the pool has stopped the run
        self._rate = None if options.rate is None else Rate(options.rate)
        self.unread: deque[RowResult] = deque()
        self.taken: int = 0  # number of rows
        self.number_read: int = 0  # number of results
        self._is_stopped = False  # no more rows are taken
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # `_take_rows`, and the calls in progress
        self._taking: asyncio.Task[None] | None = None  # the one that takes rows
        self._waiting_taker: asyncio.Future[None] | None = None  # until another row may be taken
        self._context: Context | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting_reader: asyncio.Future[None] | None = None
        # File and line for the warning about unread results; set when the reader is gone.
        self._abandoned: tuple[str, int] | None = None

    @property
    def has_ended(self) -> bool:
        """True if no further result will arrive."""
        return self._is_stopped and not self._tasks

    @property
    def progress_text(self) -> str:
        """The number of calls in progress, and since when the first of them waits."""
        if not self._started:
            return ""
        waiting = time.monotonic() - next(iter(self._started.values()))[0]
        return f"{len(self._started)} in progress" + (f", one for {waiting:.0f} s" if waiting >= 1 else "")

    @property
    def paused(self) -> LoanError | None:
        """The error because of which rows wait, None if they are sent."""
        return self._turns.paused

    async def read(self) -> RowResult:
        """Return the next result. Cancelling this call, or a time limit on it, does not lose a result.

        Raises:
            StopAsyncIteration: All results were read.
            RuntimeError: Another task is already waiting for the next result.
            Exception: The error that the rows or `progress` raised, after all results were read.
        """
        if self._context is None:
            self._loop = asyncio.get_running_loop()
            # All calls run in the context of the first read, as a later read may happen inside another span.
            self._context = copy_context()
        while not self.unread:
            if not self._is_stopped and (self._taking is None or self._taking.done()):
                self._taking = self._start(self._take_rows())  # again, if it was cancelled from outside
            if self.has_ended:
                raise self._end_of_results()
            await self._wait_for_result()
        self.number_read += 1
        self._wake_taker()
        return self.unread.popleft()

    def _end_of_results(self) -> BaseException:
        failure, self._failure = self._failure, None
        if failure is None:
            return StopAsyncIteration()
        failure.add_note(f"rows taken before this error: {self.taken}; all of their results were read")
        return failure

    def abandon(self, created_at: tuple[str, int]) -> None:
        """Stop, because the reader is gone. When all calls have ended, warn of results that were not read.

        Args:
            created_at: File and line that the warning names.
        """
        if self._loop is None or (self.has_ended and not self.unread):
            return
        self._abandoned = created_at
        try:
            # `__del__` calls this, and may run in any thread.
            self._loop.call_soon_threadsafe(self._finish_abandoned)
        except RuntimeError:  # the event loop is closed, so no further result can arrive
            self._finish_abandoned()

    def _finish_abandoned(self) -> None:
        """Stop and, once all calls have ended, warn of results that were not read."""
        self.stop()
        if self._tasks or self._abandoned is None or not self.unread:
            return
        subject = "1 result was" if len(self.unread) == 1 else f"{len(self.unread)} results were"
        message = f"{subject} not read: use `async with` for approve_many, and read all results"
        warnings.warn_explicit(message, RuntimeWarning, *self._abandoned)

    async def drain(self) -> None:
        """Wait until no call is in progress. Call `stop` first."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Take no more rows, and send none that waits. Calls in progress continue."""
        self._is_stopped = True
        if self._taking is not None:
            self._taking.cancel()
        self._turns.stop()

    async def _wait_for_result(self) -> None:
        """Wait until a result is ready, or the last task has ended."""
        if self._waiting_reader is not None:
            raise RuntimeError("another task is already waiting for the next result")
        self._waiting_reader = asyncio.get_running_loop().create_future()
        try:
            await self._waiting_reader
        finally:
            self._waiting_reader = None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, context=cast("Context", self._context).copy())
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if self._tasks:
            return
        if self._abandoned is not None:
            self._finish_abandoned()
        else:
            self._wake_reader()

    def _wake_taker(self) -> None:
        waiting = self._waiting_taker
        if waiting is not None and not waiting.done() and not self._is_full:
            waiting.set_result(None)

    def _wake_reader(self) -> None:
        if self._waiting_reader is not None and not self._waiting_reader.done():
            self._waiting_reader.set_result(None)

    def _fail(self, error: BaseException, source: str = "the rows") -> None:
        """Stop, and keep the first error for the reader."""
        if isinstance(error, _CONTROL_FLOW):
            cause, error = error, RuntimeError(f"{source} raised {type(error).__name__}")
            error.__cause__ = cause
        self._failure = self._failure or error
        self.stop()

    async def _take_rows(self) -> None:
        try:
            while (row := await self._next_row()) is not _NO_MORE_ROWS and not self._is_stopped:
                index = self.taken
                self.taken += 1
                self._started[index] = time.monotonic(), row
                # No argument of a callback may be a row: asyncio prints them.
                self._start(self._run_row(index)).add_done_callback(partial(self._row_ended, index))
                del row  # personal data, not needed while the next row is awaited
                if not self._is_full:
                    await asyncio.sleep(0)  # the call begins before the next row is taken
            self._is_stopped = True
        except BaseException as error:
            if self._is_own_cancellation(error):
                raise
            self._fail(error)

    async def _run_row(self, index: int) -> None:
        outcome: Decision | BaseException
        try:
            outcome = await self._approve_row(index, self._started[index][1])
        except Exception as error:  # noqa: BLE001  (it becomes the error of the result)
            outcome = error
        except BaseException as error:  # cancelled: the row still gets a result
            refusal = error.__cause__  # of `Turns.send`: then the row was not sent
            self._store_result(index, refusal if isinstance(refusal, LoanError) else error)
            raise
        self._store_result(index, outcome)
        if isinstance(outcome, AssertionError):  # of a test
            self._fail(outcome)

    def _row_ended(self, index: int, _: asyncio.Task[None]) -> None:
        if index in self._started:  # its task was cancelled before it began
            self._store_result(index, TransportError("approve", "CancelledError", "not_sent", 0))

    def _count(self, result: RowResult) -> None:
        """Count a result, and stop the run after too many rows without a decision.

        A row that the circuit breaker has counted does not count.
        """
        error, is_counted = result.error, self._turns.is_counted(result.index)
        if self._turns.given_up:
            self._stop_because(self._turns.given_up)
        if result.is_decided:
            self._turns.has_decision = True
            self._decided += 1
            self._failed = self._refused = 0
            return
        if error is None or self._is_stopped or not is_counted or isinstance(error, _KNOWN_WITHOUT_SENDING):
            return
        self._failed += 1
        step = next_step(error)
        self._refused = self._refused + 1 if step == "refused shop" else 0
        if step == "pause":
            self._stop_because(f"stopped: {error}")
        elif self._refused and (self._refused == _REFUSALS or (self._failed == 1 and not self._decided)):
            self._stop_because(f"stopped because {REFUSED_SHOP}")
        elif self._failed == self._stop_after:
            last = f"the last with {type(error).__name__}"
            self._stop_because(f"stopped after {self._failed} rows without a decision, {last}")

    def _stop_because(self, reason: str) -> None:
        self.stopped = self.stopped or reason
        self.stop()

    async def _approve_row(self, index: int, row: RowLike) -> Decision:
        code, request, needed, order_id = arguments_of(row)
        approve = partial(self._approve, code, request, additional_data_needed=needed, order_id=order_id)
        return await self._turns.send(index, approve)

    @property
    def _is_full(self) -> bool:
        """True if no further row may be taken until a call ends or the reader has read a result."""
        is_busy = len(self._started) >= min(self._concurrency, _FIRST_CALLS + self._decided)
        return is_busy or self.taken - self.number_read >= 2 * self._concurrency

    async def _next_row(self) -> Any:  # noqa: ANN401  (a row, or `_NO_MORE_ROWS`)
        """Return the next row, when the reader has caught up and the rate allows a call."""
        while self._is_full:
            self._waiting_taker = asyncio.get_running_loop().create_future()
            await self._waiting_taker
        if self._rate is not None:
            await self._rate.wait()
        if self._async_rows is None:
            return next(self._sync_rows, _NO_MORE_ROWS)
        return await anext(self._async_rows, _NO_MORE_ROWS)

    def _is_own_cancellation(self, error: BaseException) -> bool:
        """Return True if the task was cancelled or closed, False if the rows raised the same exception."""
        if isinstance(error, GeneratorExit):
            return self._loop is None or self._loop.is_closed()
        task = asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)

    def _store_result(self, index: int, outcome: Decision | BaseException) -> None:
        """Pass the result of a row to the reader."""
        result = result_of(index, self._started.pop(index)[1], outcome)
        self.unread.append(result)
        self._wake_reader()
        self._wake_taker()
        self._count(result)
        try:
            self._tally.add(result)  # before `progress`, which may read the summary
            if self._progress is not None:
                self._progress(result)
        except BaseException as error:  # noqa: BLE001  (`read` raises it after the last result)
            self._fail(error, source="progress")
