"""The results of `approve_many`: an asynchronous iterator that loses none when its loop is left."""

import math
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sized
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeAlias

from loanasync._lifecycle import caller_line
from loanasync._models.requests import ApprovalRequest
from loanasync._results import Decision
from loanasync._settings import RetryPolicy, Timeout
from loanasync.bulk.rate import Rate
from loanasync.bulk.rows import RowLike, RowResult
from loanasync.bulk.summary import Summary, Tally
from loanasync.bulk.worker_pool import WorkerPool
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
        self._made_at = caller_line()
        self._tally = Tally()
        self._bar = _bar(rows) if progress is True else None
        # A callback of this object would keep it from being dropped, which `__del__` waits for.
        self._pool = WorkerPool(
            rows,
            partial(approve, timeout=timeout, retry=retry),
            self._tally,
            self._bar if self._bar is not None else progress if callable(progress) else None,
            concurrency=concurrency,
            rate=None if rate is None else Rate(rate),
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
        return self._pool.show()

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
        self._pool.stop()

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
        self._pool.abort()

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
        self._pool.stop()
        await self._pool.drained()
        self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowResult:
        self._tally.begin()
        try:
            return await self._pool.read()
        except Exception:  # there is no more to come
            self._close_bar()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):  # its arguments were right
            self._pool.leave(self._made_at)

    def __repr__(self) -> str:
        return f"<Approvals: {self._pool.taken} rows taken, {len(self._pool.unread)} results to be read>"


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
