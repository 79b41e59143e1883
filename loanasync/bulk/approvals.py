"""The results of `approve_many`: an asynchronous iterator that keeps results when its loop is left early."""

import asyncio
import math
import warnings
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sized
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

from loanasync._models.classes import LazyModule, caller_line
from loanasync._models.decisions import Decision
from loanasync._models.values import type_name
from loanasync._settings import RetryPolicy, Timeout, problem_of_wait
from loanasync.bulk.frame import frame_of, require_pandas
from loanasync.bulk.pool import Pool
from loanasync.bulk.rate import Rate
from loanasync.bulk.rows import RowLike, RowResult
from loanasync.bulk.summary import Summary, Tally
from loanasync.errors import CircuitOpenError, ConfigurationError, LoanError

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")

Progress: TypeAlias = bool | Callable[[RowResult], object] | None
"""True for a progress bar (needs tqdm), or a function that is called with each result as it arrives."""


class Approvals:
    """The results of `LoanClient.approve_many`, for one reader: iterate it with ``async for``.

    Use it in ``async with``, so that no result is lost. When the block ends, also by an exception, no further
    row is taken and calls in progress finish. Iterate it again to read the results that are left. Cancelling
    the wait for the next result, or a time limit on it, does not lose a result.

    Without ``async with``, leaving the loop early also takes no further row and lets calls in progress
    finish. `LoanClient.aclose` waits for them, and a RuntimeWarning reports how many results were not read.

    Example:
        >>> async def first(rows):
        ...     async with client.approve_many(rows, concurrency=1) as results:
        ...         async for result in results:
        ...             break
        ...     return result, [left async for left in results]
        >>> run(first([(fiscal_code, request)]))
        (<RowResult: approved, id=None, index=0>, [])
    """

    def __init__(
        self,
        approve: Callable[..., Coroutine[Any, Any, Decision]],
        rows: Iterable[RowLike] | AsyncIterable[RowLike],
        *,
        open_circuit: Callable[[], CircuitOpenError | None],
        sleep: Callable[[float], Awaitable[None]],
        concurrency: int = 64,
        stop_after: int | None = 20,
        rate: float | None = None,
        progress: Progress = None,
        wait: float = math.inf,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        wrong = _argument_error(rows, concurrency, stop_after, rate, progress, wait, timeout, retry)
        if wrong is not None:
            del rows, approve  # personal: must not be in a traceback
            raise wrong
        self._created_at = caller_line()
        self._tally = Tally()
        self._bar = _ProgressBar(rows) if progress is True else None
        self._framed: list[RowResult] = []  # results that `to_frame` has read
        self._has_shown_reason = False  # `stopped` was read, or a warning has printed it
        # No callback may be a method of this object: the reference would keep `__del__` from running.
        self._pool = Pool(
            rows,
            partial(approve, wait=wait, timeout=timeout, retry=retry),
            self._tally,
            self._bar if self._bar is not None else progress if callable(progress) else None,
            concurrency=concurrency,
            stop_after=stop_after,
            rate=None if rate is None else Rate(rate),
            open_circuit=open_circuit,
            sleep=sleep,
        )

    @property
    def summary(self) -> Summary:
        """Counts, amounts and durations of all results so far, read or unread.

        Example:
            >>> async def summarize(rows):
            ...     async with client.approve_many(rows) as results:
            ...         async for _ in results:
            ...             pass
            ...     return results.summary.approved, results.summary.amount_approved
            >>> run(summarize([(fiscal_code, request)]))
            (1, 45000)
        """
        return self._tally.summary()

    @property
    def paused(self) -> LoanError | None:
        """The error because of which rows wait and one at a time tries again. None while they are sent.

        It is the `CircuitOpenError` of the client's circuit breaker, or after the first decision an error
        after which nothing was sent, such as a `ConnectError` or a `LedgerUnavailableError`.

        Example:
            >>> client.approve_many([(fiscal_code, request)]).paused is None
            True
        """
        return self._pool.paused

    @property
    def stopped(self) -> str:
        """The reason if the calls were stopped, empty if they were not.

        The reasons are ``stop_after`` rows in sequence without a decision, a shop that the service refuses,
        wrong settings, and an hour in which no row could be sent.

        Example:
            >>> client.approve_many([(fiscal_code, request)]).stopped
            ''
        """
        self._has_shown_reason = True
        return self._pool.stopped

    async def to_frame(self, *, personal: bool = False) -> "pd.DataFrame":
        """Read all results, and return them as a pandas DataFrame: a line for each `RowResult.as_row`.

        Its index is the number of the row, in the order of the rows. Do not also read results in a loop: a
        loop keeps no results. If a cell is interrupted, call it again: results that it has read are not lost.

        Args:
            personal: Add ``fiscal_code`` and ``redirect_url``. Do not save them with a notebook.

        Raises:
            ConfigurationError: pandas is not installed, or a loop has read results.
            Exception: The error that the rows or `progress` raised. Call it again to get the results.

        Example:
            >>> results = client.approve_many([(fiscal_code, request)])
            >>> frame = run(results.to_frame())
            >>> frame[["status", "amount", "net_amount"]]
                     status  amount  net_amount
            index...
            0      approved   45000       43650
        """
        require_pandas()
        if self._pool.number_read != len(self._framed):
            sentence = (
                "a loop has read results, which are not kept; call to_frame() without a loop, "
                "or in the loop collect result.as_row()"
            )
            raise ConfigurationError("to_frame", sentence)
        async for result in self:
            self._framed.append(result)
        return frame_of(self._framed, personal=personal)

    def stop(self) -> None:
        """Take no more rows. Calls in progress finish, and the iteration ends with their results.

        Example:
            >>> async def stop_at_once(rows):
            ...     async with client.approve_many(rows) as results:
            ...         results.stop()
            ...         return [result.status async for result in results]
            >>> run(stop_at_once([(fiscal_code, request)]))
            []
        """
        self._pool.stop()

    async def aclose(self) -> None:
        """Take no more rows and wait for the calls in progress. Their results can still be read.

        Example:
            >>> async def read_first(rows):
            ...     results = client.approve_many(rows)
            ...     first = await anext(results)
            ...     await results.aclose()
            ...     return first.status
            >>> run(read_first([(fiscal_code, request)]))
            'approved'
        """
        self._pool.stop()
        await self._pool.drain()
        self._close_bar()
        self._warn_if_stopped()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowResult:
        self._tally.start()
        if self._bar is not None:
            self._bar.start(self._pool)
        try:
            return await self._pool.read()
        except Exception:  # no further result: the rows have ended or failed
            self._close_bar()
            self._warn_if_stopped()
            raise

    def _warn_if_stopped(self) -> None:
        if self._pool.stopped and not self._has_shown_reason:
            self._has_shown_reason = True
            advice = "correct the cause, and run the rows again"
            message = f"{self._pool.stopped}, after {self._pool.taken} rows; {advice}"
            warnings.warn_explicit(message, RuntimeWarning, *self._created_at)

    def __await__(self) -> NoReturn:
        raise TypeError(_HOW_TO_READ)

    def __iter__(self) -> NoReturn:
        raise TypeError(_HOW_TO_READ)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):  # not set if `__init__` raised
            self._pool.abandon(self._created_at)

    def __repr__(self) -> str:
        if not hasattr(self, "_pool"):  # `__init__` raised, and this object is printed in its traceback
            return "<Approvals: an argument is wrong>"
        return f"<Approvals: {self._pool.taken} rows taken, {len(self._pool.unread)} unread results>"


_BAR_INTERVAL = 1.0  # seconds between two updates of a progress bar while no result arrives
_HOW_TO_READ = (
    "read the results of approve_many with `async for result in client.approve_many(rows)`, or all of them "
    "with `frame = await client.approve_many(rows).to_frame()`"
)


class _ProgressBar:
    """A tqdm progress bar, for a notebook or a terminal.

    Besides the results, it shows the calls in progress: they wait for the service, for another process that
    requests the same customer, or continue after a cell was interrupted.
    """

    def __init__(self, rows: object) -> None:
        total = len(rows) if isinstance(rows, Sized) else None
        self._bar = import_module("tqdm.auto").tqdm(total=total, unit=" rows")
        self._updates: asyncio.Task[None] | None = None

    def start(self, pool: Pool) -> None:
        """Show the calls in progress every second, until the bar is closed."""
        if self._updates is None:
            self._updates = asyncio.create_task(self._update(pool))

    async def _update(self, pool: Pool) -> None:
        while not pool.has_ended:
            self._bar.set_postfix_str(pool.progress_text)
            await asyncio.sleep(_BAR_INTERVAL)

    def __call__(self, _: RowResult) -> None:
        self._bar.update()

    def close(self) -> None:
        if self._updates is not None:
            self._updates.cancel()
        self._bar.close()


_DATA_FRAME = (
    "must be rows, not a DataFrame; if its columns have the names of the fields, call it frame, "
    "run this line, which leaves out all other columns, and pass rows: "
    "from loanasync import ApprovalRequest; from loanasync.bulk import Row; "
    'orders = frame.filter(ApprovalRequest.__annotations__).to_dict("records"); '
    "rows = [Row(code, ApprovalRequest(**order), id=number) "
    'for number, code, order in zip(frame.index, frame["fiscal_code"], orders)]'
)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _argument_error(
    rows: object,
    concurrency: object,
    stop_after: object,
    rate: object,
    progress: object,
    wait: object,
    timeout: object,
    retry: object,
) -> ConfigurationError | None:
    """Return the error of the first wrong argument, or None."""
    is_iterable = isinstance(rows, Iterable | AsyncIterable) and not isinstance(rows, str | bytes | Mapping)
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf
    is_progress = progress is None or isinstance(progress, bool) or callable(progress)
    has_bar = progress is not True or find_spec("tqdm") is not None
    wrong_wait = problem_of_wait(wait)
    checks = (
        (not hasattr(rows, "itertuples"), "rows", _DATA_FRAME),
        (
            is_iterable,
            "rows",
            f"must be an iterable or an asynchronous iterable of rows, not {type_name(rows)}",
        ),
        (_is_count(concurrency), "concurrency", "must be an int of at least 1"),
        (stop_after is None or _is_count(stop_after), "stop_after", "must be None or an int of at least 1"),
        (rate is None or is_rate, "rate", "must be None or a number greater than 0 (calls per second)"),
        (is_progress, "progress", "must be True, False, None, or a function that takes a result"),
        (has_bar, "progress", "True needs tqdm: pip install '.[notebook]' in a checkout"),
        (wrong_wait is None, "wait", wrong_wait),
        (timeout is None or isinstance(timeout, Timeout), "timeout", "must be a Timeout"),
        (retry is None or isinstance(retry, RetryPolicy), "retry", "must be a RetryPolicy"),
    )
    return next(
        (ConfigurationError(name, str(text)) for is_valid, name, text in checks if not is_valid), None
    )
