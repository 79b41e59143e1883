"""Rows whose source fails: the error is raised once all rows that were taken have their results."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from loanasync.bulk import Approvals, Row, RowResult
from support.bulk import DECISION, Desk, at_once, bulk, rows, settled


class Failing:
    """An iterator, synchronous or not, that fails after two rows and has more rows after that."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._taken = 0
        self._rows = rows(9)

    def _next(self) -> Row:
        self._taken += 1
        if self._taken == 3:
            raise self._error
        return next(self._rows)


class Now(Failing):
    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return self._next()


class Later(Failing):
    def __aiter__(self) -> AsyncIterator[Row]:
        return self

    async def __anext__(self) -> Row:
        await asyncio.sleep(0)
        return self._next()


def generator(error: BaseException) -> Iterator[Row]:
    yield from rows(2)
    raise error


async def later_generator(error: BaseException) -> AsyncIterator[Row]:
    for row in rows(2):
        yield row
    raise error


SOURCES = [Now, Later, generator, later_generator]
ENDINGS = [asyncio.CancelledError, GeneratorExit, StopIteration, StopAsyncIteration]


async def read_all(read: list[RowResult], approvals: Approvals) -> BaseException | None:
    try:
        async with approvals:
            async for result in approvals:
                read.append(result)  # noqa: PERF401  (what was read before an error counts)
    except BaseException as error:  # noqa: BLE001  (KeyboardInterrupt would end the event loop)
        return error
    return None


@pytest.mark.parametrize("options", [{}, {"rate": 1e6}, {"ordered": True}, {"concurrency": 1}], ids=str)
@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("kind", [*ENDINGS, KeyboardInterrupt, SystemExit, LookupError])
async def test_source_that_fails_is_raised_after_all_results(
    kind: type[BaseException], make: Any, options: dict[str, Any]
) -> None:
    if (kind, make) in [(StopIteration, Now), (StopAsyncIteration, Later)]:
        return  # these end the rows
    desk, read = Desk(), list[RowResult]()
    task = asyncio.create_task(read_all(read, bulk(desk.approve, make(kind("gone")), **options)))
    await settled()
    assert not task.done()
    answering = asyncio.create_task(desk.answer_on())
    error = await task
    answering.cancel()
    assert isinstance(error, RuntimeError if kind in ENDINGS else kind)
    assert str(error).endswith(f"raised {kind.__name__}" if kind in ENDINGS else "gone")
    assert error.__notes__ == ["2 rows were taken before; all of their results were read"]
    assert [result.decision for result in read] == [DECISION] * 2
    assert desk.asked == 2, "no further row is taken"


@pytest.mark.parametrize("kind", [*ENDINGS, KeyboardInterrupt, LookupError])
async def test_progress_that_fails_is_raised_after_all_results(kind: type[BaseException]) -> None:
    def progress(_: RowResult) -> None:
        raise kind("gone")

    read = list[RowResult]()
    error = await read_all(read, bulk(at_once, rows(100), progress=progress))
    assert isinstance(error, RuntimeError if kind in ENDINGS else kind)
    assert str(error) == (f"progress raised {kind.__name__}" if kind in ENDINGS else "gone")
    assert [result.index for result in read] == [0]


async def test_source_that_goes_on_after_a_stop_has_no_row_sent() -> None:
    async def source() -> AsyncIterator[Row]:
        for row in rows(9):
            yield row
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    desk = Desk()
    approvals = bulk(desk.approve, source())
    reading = asyncio.create_task(anext(approvals))
    await settled()
    approvals.stop()
    desk.answer_all()
    assert (await reading).index == 0
    assert [result async for result in approvals] == []
    assert desk.asked == 1


async def test_source_that_stops_the_results_itself_has_no_row_sent() -> None:
    results: list[Approvals] = []

    def source() -> Iterator[Row]:
        for row in rows(9):
            if row.id == 2:
                results[0].stop()
            yield row

    results.append(bulk(at_once, source()))
    assert [result.index async for result in results[0]] == [0, 1]
