"""Approvals of many rows: a window of calls, a result for each, and nothing lost when the loop is left."""

import math
import warnings
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sized
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeAlias

from loanasync._lifecycle import line_outside
from loanasync._models.requests import ApprovalRequest
from loanasync._results import Decision
from loanasync._settings import RetryPolicy, Timeout
from loanasync.bulk.rate import Pace
from loanasync.bulk.rows import Row, RowLike, RowResult, is_pair, no_row, result_of
from loanasync.bulk.summary import Summary, Tally
from loanasync.bulk.worker_pool import Window
from loanasync.errors import ConfigurationError

Progress: TypeAlias = "bool | Callable[[RowResult], object] | None"


class Approve(Protocol):
    """`LoanClient.approve`."""

    def __call__(
        self,
        fiscal_code: str,
        request: ApprovalRequest,
        *,
        additional_data_needed: bool,
        timeout: Timeout | None,
        retry: RetryPolicy | None,
    ) -> Coroutine[Any, Any, Decision]:
        """Request one approval."""


class Approvals:
    """The results of `LoanClient.approve_many`, for one reader; ``async for`` takes them as they come.

    Within ``async with`` nothing can be lost: however the block is left, no further row is taken, what is
    under way is waited for, and `unread` has the results that the loop did not take. Without it, a loop that
    is left by ``break`` or by an exception drops this object, and that is heard of: no further row is taken,
    what is under way goes on to its end, `LoanClient.aclose` waits for it, and a RuntimeWarning says how
    many answers nobody read. Cancelling a wait for the next result, or a time limit on it, loses none.

    Example:
        >>> async def first(rows):
        ...     async with client.approve_many(rows, concurrency=1) as results:
        ...         async for result in results:
        ...             break
        ...     return result, results.unread
        >>> run(first([(fiscal_code, request)]))
        (RowResult(index=0, row=***, status='approved', decision=Approved(...), error=None), ())
    """

    def __init__(
        self,
        approve: Approve,
        rows: Iterable[RowLike] | AsyncIterable[RowLike],
        *,
        concurrency: int = 64,
        rate: float | None = None,
        ordered: bool = False,
        progress: Progress = None,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        _require(rows, concurrency, rate, progress)
        self._made_at = line_outside()
        self._tally = Tally()
        self._bar = _bar(rows) if progress is True else None
        self._window: Window[RowLike, Decision, RowResult] = Window(
            rows,
            _asking(partial(approve, timeout=timeout, retry=retry)),
            result_of,
            _telling(self._tally, progress if self._bar is None else self._bar),
            places=concurrency,
            pace=None if rate is None else Pace(rate),
            ordered=ordered,
        )

    @property
    def summary(self) -> Summary:
        """What has come until now, whether it was read or not.

        Example:
            >>> async def asked(rows):
            ...     async with client.approve_many(rows) as results:
            ...         async for _ in results:
            ...             pass
            ...     return results.summary.approved, results.summary.amount_approved
            >>> run(asked([(fiscal_code, request)]))
            (1, 45000)
        """
        return self._tally.summary()

    @property
    def unread(self) -> tuple[RowResult, ...]:
        """The results that have come and were not read.

        Example:
            >>> async def asked(rows):
            ...     async with client.approve_many(rows) as results:
            ...         pass
            ...     return results.unread
            >>> run(asked([(fiscal_code, request)]))
            ()
        """
        return self._window.show()

    def stop(self) -> None:
        """Take no more rows; the iteration goes on with what is under way, and ends with it.

        Example:
            >>> async def asked(rows):
            ...     async with client.approve_many(rows) as results:
            ...         results.stop()
            ...         return [result.status async for result in results]
            >>> run(asked([(fiscal_code, request)]))
            []
        """
        self._window.stop()

    def abort(self) -> None:
        """Take no more rows and give up what is under way: its outcome is ``unknown``, and it may be read.

        Example:
            >>> async def asked(rows):
            ...     async with client.approve_many(rows) as results:
            ...         async for result in results:
            ...             results.abort()
            ...     return result.status
            >>> run(asked([(fiscal_code, request)]))
            'approved'
        """
        self._window.abort()

    async def aclose(self) -> None:
        """Take no more rows and wait for what is under way; what has come may still be read.

        Example:
            >>> async def asked(rows):
            ...     results = client.approve_many(rows)
            ...     first = await anext(results)
            ...     await results.aclose()
            ...     return first.status
            >>> run(asked([(fiscal_code, request)]))
            'approved'
        """
        self._window.stop()
        await self._window.drained()
        self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowResult:
        self._tally.begin()
        try:
            return await self._window.read()
        except Exception:  # there is no more to come
            self._close_bar()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_window"):  # its arguments were right
            self._window.leave(partial(_warn, *self._made_at))

    def __repr__(self) -> str:
        return f"<Approvals: {self._window.taken} rows taken, {len(self._window.unread)} results to be read>"


def _asking(approve: Callable[..., Coroutine[Any, Any, Decision]]) -> Callable[[RowLike], Any]:
    def ask(row: RowLike) -> Coroutine[Any, Any, Decision]:
        if isinstance(row, Row):
            needed = row.additional_data_needed
            return approve(row.fiscal_code, row.request, additional_data_needed=needed)
        if is_pair(row):
            return approve(*row)
        raise no_row(row)

    return ask


def _telling(tally: Tally, progress: "_Bar | Progress") -> Callable[[RowResult], object]:
    """Count first: whoever is told of a result finds it in the summary."""
    if not callable(progress):
        return tally.add

    def tell(result: RowResult) -> None:
        tally.add(result)
        progress(result)

    return tell


class _Bar:
    """tqdm's, of the kind that suits a notebook or a terminal."""

    def __init__(self, total: int | None) -> None:
        self._bar = import_module("tqdm.auto").tqdm(total=total, unit=" rows")

    def __call__(self, _: RowResult) -> None:
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


def _bar(rows: object) -> _Bar:
    if find_spec("tqdm") is None:
        raise ConfigurationError("progress", "True needs tqdm: pip install 'loanasync[notebook]'")
    return _Bar(len(rows) if isinstance(rows, Sized) else None)


def _warn(file: str, line: int, unread: int) -> None:
    told = f"{unread} answers came that nobody read: use `async with` on approve_many, and read its unread"
    warnings.warn_explicit(told, RuntimeWarning, file, line)


def _require(rows: object, concurrency: object, rate: object, progress: object) -> None:
    if not isinstance(rows, Iterable | AsyncIterable):
        raise ConfigurationError("rows", "must be an iterable of rows, or an asynchronous one")
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigurationError("concurrency", "must be an int of at least 1")
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf
    if rate is not None and not is_rate:
        raise ConfigurationError("rate", "must be a number of calls in a second, above 0, or None")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise ConfigurationError("progress", "must be True, or be called with each result")
