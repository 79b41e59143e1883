"""The client's door to `loanasync.bulk`, which is loaded with the first bulk only."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from loanasync._models.requests import ApprovalRequest
from loanasync._results import Decision
from loanasync._settings import RetryPolicy, Timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

    from loanasync.bulk import Approvals, Progress, RowLike


class AsksMany(ABC):
    """Who can ask for one customer's approval can ask for many."""

    __slots__ = ()

    @abstractmethod
    async def approve(
        self,
        fiscal_code: str,
        request: ApprovalRequest,
        *,
        additional_data_needed: bool = False,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> Decision:
        """Ask for the approval of one customer."""

    def approve_many(
        self,
        rows: "Iterable[RowLike] | AsyncIterable[RowLike]",
        *,
        concurrency: int = 64,
        rate: float | None = None,
        ordered: bool = False,
        progress: "Progress" = None,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> "Approvals":
        """Ask for the approval of many customers; a result for each row, whatever becomes of it.

        Memory stays flat, however many rows there are: a row is taken when its call begins, and at most
        twice `concurrency` are taken and not read, so that a slow reader stops the sending. What rows or
        `progress` raise ends the sending; it is raised when all that was under way has been read. A
        CancelledError, GeneratorExit, StopIteration or StopAsyncIteration is raised as a RuntimeError.

        Args:
            rows: Pairs ``(fiscal_code, ApprovalRequest)``, or a `loanasync.bulk.Row` with more; any iterable,
                or an asynchronous one. Rows that break rules are not sent.
            concurrency: Calls at once; more than ``max_concurrency`` of the client wait for each other.
            rate: Calls that begin in a second, evenly spread; retries after a 500 are not counted.
            ordered: Results in the order of the rows. One that takes long holds back those after it.
            progress: True shows a bar (extra ``notebook``); or a function that is called with each
                `loanasync.bulk.RowResult` as soon as its answer has come.
            timeout: Of each call, instead of the client's.
            retry: Of each call, instead of the client's.

        Returns:
            `loanasync.bulk.Approvals`: iterate it with ``async for``, best within ``async with``.

        Raises:
            ConfigurationError: An argument cannot work; it is named.

        Example:
            >>> async def ask_all(rows):
            ...     async with client.approve_many(rows, concurrency=8) as results:
            ...         return [(result.index, result.status) async for result in results]
            >>> run(ask_all([(fiscal_code, request), ("RSSMRA", request)]))
            [(1, 'rejected'), (0, 'approved')]
        """
        from loanasync.bulk import Approvals  # noqa: PLC0415  (who asks for one customer needs none of it)

        return Approvals(
            self.approve,
            rows,
            concurrency=concurrency,
            rate=rate,
            ordered=ordered,
            progress=progress,
            timeout=timeout,
            retry=retry,
        )
