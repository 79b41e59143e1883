"""A bounded worker pool: at most `concurrency` calls in progress and as many results waiting to be read."""

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import Context, copy_context
from typing import Any, cast

from loanasync._results import Decision
from loanasync.bulk.rate import Rate
from loanasync.bulk.rows import RowLike, RowResult, arguments_of, result_of
from loanasync.bulk.summary import Tally

_END: Any = object()
_ENDINGS = (asyncio.CancelledError, GeneratorExit, StopIteration, StopAsyncIteration)


class WorkerPool:
    """Requests the approval of each row, at most `concurrency` at once, for one reader of the results.

    At most twice as many rows are taken and not yet read: those in progress, and as many results that wait
    for the reader. A worker takes a row when its call can begin, so that no row is taken in vain. Each row
    that is taken becomes a result, also when its worker is cancelled.

    Args:
        rows: An iterable, or an asynchronous one, read by one worker at a time.
        approve: Requests one approval.
        tally: Counts each result as soon as it is there.
        progress: Called with each result after that.
        concurrency: Calls at once.
        rate: Rate at which calls begin.
        ordered: Hand results out in the order of their rows.
    """

    def __init__(
        self,
        rows: Iterable[RowLike] | AsyncIterable[RowLike],
        approve: Callable[..., Coroutine[Any, Any, Decision]],
        tally: Tally,
        progress: Callable[[RowResult], object] | None,
        *,
        concurrency: int,
        rate: Rate | None,
        ordered: bool,
    ) -> None:
        # Rows that are both are read asynchronously, which does not block the event loop.
        self._later: AsyncIterator[RowLike] | None = aiter(rows) if isinstance(rows, AsyncIterable) else None
        self._at_once: Iterator[RowLike] = iter(()) if isinstance(rows, AsyncIterable) else iter(rows)
        self._approve = approve
        self._tally = tally
        self._progress = progress
        self._concurrency = concurrency
        self._rate = rate
        self._early: dict[int, RowResult] | None = {} if ordered else None
        self._done: deque[RowResult] = deque()
        self._taken = 0
        self._read = 0
        self._ended = False
        self._failure: BaseException | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._parked: deque[asyncio.Future[None]] = deque()
        self._coming = False  # a worker was called and has not begun
        self._asking: set[asyncio.Task[None]] = set()  # for a row: these may be stopped
        self._turn = asyncio.Lock()
        self._context: Context | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: asyncio.Future[None] | None = None
        self._left_at: tuple[str, int] | None = None
        self._shown: tuple[RowResult, ...] = ()

    @property
    def taken(self) -> int:
        """Number of rows that were taken."""
        return self._taken

    @property
    def unread(self) -> tuple[RowResult, ...]:
        """The results that nobody has read yet."""
        return (*self._done, *(self._early or {}).values())

    def show(self) -> tuple[RowResult, ...]:
        """`unread`, for somebody who looks at them without reading on."""
        self._shown = self.unread
        return self._shown

    async def read(self) -> RowResult:
        """The next result. Who is cancelled here, or gives up waiting, loses none.

        Raises:
            StopAsyncIteration: All were read.
            RuntimeError: Somebody else is waiting already.
            Exception: Whatever the items raised, once all results were read.
        """
        if self._context is None:
            self._loop = asyncio.get_running_loop()
            self._context = copy_context()  # whoever asks later may stand in a span of their own
            self._invite()
        while not self._done:
            if not self._workers:
                if self._ended:
                    raise self._end()
                self._invite()  # each was cancelled by somebody else
            await self._wait()
        self._read += 1
        if not self._coming and self._taken - self._read <= self._concurrency:
            self._invite()
        return self._done.popleft()

    def _end(self) -> BaseException:
        failure, self._failure = self._failure, None
        if failure is None:
            return StopAsyncIteration()
        failure.add_note(f"{self._taken} rows were taken before; all of their results were read")
        return failure

    def leave(self, made_at: tuple[str, int]) -> None:
        """Stop, because the reader is gone; warn of unseen results when all calls have ended.

        Args:
            made_at: File and line that the warning names.
        """
        if self._loop is None or (self._ended and not self._workers and not self._done):
            return
        self._left_at = made_at
        try:
            self._loop.call_soon_threadsafe(self._be_left)  # where objects are collected is not known
        except RuntimeError:  # it is closed: nothing more comes
            self._be_left()

    def _be_left(self) -> None:
        self.stop()
        if self._workers or self._left_at is None:
            return
        shown = set(map(id, self._shown))
        if unseen := sum(id(result) not in shown for result in self.unread):
            warnings.warn_explicit(_UNREAD.format(unseen), RuntimeWarning, *self._left_at)

    async def drained(self) -> None:
        """Wait until nothing is under way any more; `stop` it first."""
        while self._workers:
            await asyncio.wait(self._workers)

    def stop(self) -> None:
        """Take no more items; what is under way goes on."""
        self._ended = True
        while self._parked:
            self._wake_worker()
        for task in self._asking:
            task.cancel()

    def abort(self) -> None:
        """Take no more items, and cancel what is under way."""
        self.stop()
        for task in self._workers:
            task.cancel()

    async def _wait(self) -> None:
        if self._reader is not None:
            raise RuntimeError("somebody else is waiting for the next result already")
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _invite(self) -> None:
        """Let one more worker begin, if there is room; it invites the next before it begins its own call."""
        if self._ended or self._is_full:
            return
        if self._parked:
            self._wake_worker()
        elif len(self._workers) < self._concurrency and self._context is not None:
            self._coming = True
            task = asyncio.create_task(self._work(), context=self._context.copy())
            self._workers.add(task)
            task.add_done_callback(self._left)

    def _wake_worker(self) -> None:
        worker = self._parked.popleft()
        if not worker.done():  # it may have been cancelled
            self._coming = True
            worker.set_result(None)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if self._workers:
            return
        if self._left_at is not None:
            self._be_left()
        elif self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _fail(self, error: BaseException, by: str = "the rows") -> None:
        if isinstance(error, _ENDINGS):
            # Raised as it is, it would end the reader's loop or task as if nothing had failed.
            cause, error = error, RuntimeError(f"{by} raised {type(error).__name__}")
            error.__cause__ = cause
        self._failure = self._failure or error
        self.stop()

    async def _work(self) -> None:
        self._coming = False
        in_turn = self._rate is not None or self._later is not None
        while not self._ended:
            if not in_turn and self._is_full:
                await self._park()
                continue
            try:
                row = await self._in_turn() if in_turn else next(self._at_once, _END)
            except BaseException as error:
                if self._is_cancelled(error):
                    raise
                self._fail(error)
                return
            if row is _END or self._ended:  # rows may go on after they were stopped
                self.stop()
                return
            index = self._taken
            self._taken += 1
            if not self._coming:
                self._invite()
            try:
                answer: Decision | Exception = await self._request(row)
            except Exception as error:  # noqa: BLE001  (the result says what it was)
                answer = error
            except BaseException as error:  # cancelled: what was taken becomes a result all the same
                self._came(result_of(index, row, error))
                raise
            self._came(result_of(index, row, answer))
            del row, answer  # personal, and not needed while waiting for the next

    async def _request(self, row: RowLike) -> Decision:
        code, request, needed = arguments_of(row)
        return await self._approve(code, request, additional_data_needed=needed)

    @property
    def _is_full(self) -> bool:
        return self._taken - self._read >= 2 * self._concurrency

    async def _in_turn(self) -> Any:  # noqa: ANN401  (a row, or the end of them)
        """Return the next row when it is this worker's turn; `stop` ends the wait."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._asking.add(task)
        try:
            async with self._turn:
                while self._is_full and not self._ended:
                    await self._park()
                if self._rate is not None:
                    await self._rate.turn()
                if self._ended:
                    return _END
                return next(self._at_once, _END) if self._later is None else await anext(self._later, _END)
        finally:
            self._asking.discard(task)

    def _is_cancelled(self, error: BaseException) -> bool:
        """Return True if a worker was cancelled or closed. Rows that raise the same have failed."""
        if isinstance(error, GeneratorExit):
            return self._loop is None or self._loop.is_closed()
        task = asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)

    async def _park(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._parked.append(place)
        try:
            await place
        finally:
            self._coming = False

    def _came(self, result: RowResult) -> None:
        if self._early is None:
            self._done.append(result)
        else:
            self._early[result.index] = result
            while (following := self._read + len(self._done)) in self._early:
                self._done.append(self._early.pop(following))
        if self._reader is not None and self._done and not self._reader.done():
            self._reader.set_result(None)
        try:
            self._tally.add(result)  # first, so that `progress` finds the result in the summary
            if self._progress is not None:
                self._progress(result)
        except BaseException as error:  # noqa: BLE001  (raised once all results were read)
            self._fail(error, by="progress")


_UNREAD = "{} answers came that nobody read: use `async with` on approve_many, and read its unread"
