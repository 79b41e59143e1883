"""The results of `approve_many`: an asynchronous iterator that keeps results when its loop is left early."""

import warnings
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from loanasync._models.classes import LazyModule, caller_line
from loanasync._models.decisions import Decision
from loanasync._models.values import type_name
from loanasync.bulk.notebook import ProgressBar, frame_of, require_pandas
from loanasync.bulk.options import BulkOptions
from loanasync.bulk.pool import Pool
from loanasync.bulk.rows import RowLike, RowResult
from loanasync.bulk.summary import Summary, Tally
from loanasync.bulk.turns import Turns
from loanasync.errors import ConfigurationError, LoanError

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")


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
        options: BulkOptions,
        turns: Turns,
    ) -> None:
        if (wrong := _problem_of_rows(rows)) is not None:
            del rows, approve  # personal: must not be in a traceback
            raise ConfigurationError("rows", wrong)
        self._created_at = caller_line()
        self._tally = Tally()
        self._bar = ProgressBar(rows) if options.progress is True else None
        self._framed: list[RowResult] = []  # results that `to_frame` has read
        self._has_shown_reason = False  # `stopped` was read, or a warning has printed it
        # No callback may be a method of this object: the reference would keep `__del__` from running.
        progress = options.progress if callable(options.progress) else self._bar
        self._pool = Pool(rows, approve, options, turns, self._tally, progress)

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


_HOW_TO_READ = (
    "read the results of approve_many with `async for result in client.approve_many(rows)`, or all of them "
    "with `frame = await client.approve_many(rows).to_frame()`"
)


_DATA_FRAME = (
    "must be rows, not a DataFrame; if its columns have the names of the fields, call it frame, "
    "run this line, which leaves out all other columns, and pass rows: "
    "from loanasync import ApprovalRequest; from loanasync.bulk import Row; "
    'orders = frame.filter(ApprovalRequest.__annotations__).to_dict("records"); '
    "rows = [Row(code, ApprovalRequest(**order), id=number) "
    'for number, code, order in zip(frame.index, frame["fiscal_code"], orders)]'
)


def _problem_of_rows(rows: object) -> str | None:
    """Return why an argument is no rows, or None."""
    if hasattr(rows, "itertuples"):
        return _DATA_FRAME
    if isinstance(rows, Iterable | AsyncIterable) and not isinstance(rows, str | bytes | Mapping):
        return None
    return f"must be an iterable or an asynchronous iterable of rows, not {type_name(rows)}"
