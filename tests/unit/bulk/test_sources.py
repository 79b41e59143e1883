"""Errors of the source of the rows: raised after the results of all rows that were taken."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from loanasync.bulk import Approvals, Row, RowResult
from support.bulk import DECISION, HeldCalls, approvals_of, approve_at_once, let_tasks_run, rows


class FailingSync:
    """An iterator that fails after two rows and has more rows after that."""

    def __init__(self, error: BaseException) -> None:
        self._outcomes: Iterator[Row | BaseException] = iter([*rows(2), error, *rows(7)])

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        outcome = next(self._outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class FailingAsync(FailingSync):
    def __aiter__(self) -> AsyncIterator[Row]:
        return self

    async def __anext__(self) -> Row:
        await asyncio.sleep(0)
        return self.__next__()


def sync_generator(error: BaseException) -> Iterator[Row]:
    yield from rows(2)
    raise error


async def async_generator(error: BaseException) -> AsyncIterator[Row]:
    for row in sync_generator(error):
        yield row


SOURCES = [FailingSync, FailingAsync, sync_generator, async_generator]
CONTROL_FLOW = [asyncio.CancelledError, GeneratorExit, StopIteration, StopAsyncIteration]


async def read_all(read: list[RowResult], approvals: Approvals) -> BaseException | None:
    try:
        async with approvals:
            async for result in approvals:
                read.append(result)  # noqa: PERF401  (results read before an error count)
    except BaseException as error:  # noqa: BLE001  (KeyboardInterrupt would end the event loop)
        return error
    return None


@pytest.mark.parametrize("options", [{}, {"rate": 1e6}, {"concurrency": 1}], ids=str)
@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("kind", [*CONTROL_FLOW, KeyboardInterrupt, SystemExit, LookupError])
async def test_source_error_is_raised_after_all_results(
    kind: type[BaseException], make: Any, options: dict[str, Any]
) -> None:
    if (kind, make) in [(StopIteration, FailingSync), (StopAsyncIteration, FailingAsync)]:
        return  # these end the rows
    calls, read = HeldCalls(), list[RowResult]()
    approvals = approvals_of(calls.approve, make(kind("gone")), **options)
    task = asyncio.create_task(read_all(read, approvals))
    await let_tasks_run()
    assert not task.done()
    finishing = asyncio.create_task(calls.keep_finishing())
    error = await task
    finishing.cancel()
    assert isinstance(error, RuntimeError if kind in CONTROL_FLOW else kind)
    assert str(error).endswith(f"raised {kind.__name__}" if kind in CONTROL_FLOW else "gone")
    assert error.__notes__ == ["rows taken before this error: 2; all of their results were read"]
    assert [result.decision for result in read] == [DECISION] * 2
    assert calls.started == 2, "no further row is taken"
    assert [result async for result in approvals] == [], "the error is raised once"


@pytest.mark.parametrize("kind", [*CONTROL_FLOW, KeyboardInterrupt, LookupError])
async def test_first_progress_error_is_raised_after_all_results(kind: type[BaseException]) -> None:
    def progress(result: RowResult) -> None:
        raise kind(f"row {result.index}")

    calls, read = HeldCalls(), list[RowResult]()
    approvals = approvals_of(calls.approve, rows(100), progress=progress)
    reading = asyncio.create_task(read_all(read, approvals))
    await let_tasks_run()
    for index in (1, 0, 2):
        calls.finish(index)
    error = await reading
    assert isinstance(error, RuntimeError if kind in CONTROL_FLOW else kind)
    assert str(error) == (f"progress raised {kind.__name__}" if kind in CONTROL_FLOW else "row 1")
    assert [result.index for result in read] == [1, 0, 2]


async def test_stop_sends_no_further_row_of_any_source() -> None:
    async def ignoring() -> AsyncIterator[Row]:
        for row in rows(9):
            yield row
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    calls = HeldCalls()
    approvals = approvals_of(calls.approve, ignoring())
    reading = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    approvals.stop()
    calls.finish_all()
    assert (await reading).index == 0
    assert [result async for result in approvals] == []
    assert calls.started == 1
    results: list[Approvals] = []

    def stopping() -> Iterator[Row]:
        for row in rows(9):
            if row.id == 2:
                results[0].stop()
            yield row

    results.append(approvals_of(approve_at_once, stopping()))
    assert [result.index async for result in results[0]] == [0, 1]
