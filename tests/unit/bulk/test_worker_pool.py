"""How many rows are under way and held, in which order they come back, and what ends them."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import pytest

from loanasync import ConfigurationError
from loanasync.bulk import Approvals, Row, RowResult
from support.bulk import DECISION, Desk, at_once, bulk, rows, settled


async def test_every_row_becomes_one_result() -> None:
    for number in (0, 1, 2, 3, 4, 50):
        results = [result async for result in bulk(at_once, rows(number))]
        assert [result.index for result in results] == [result.id for result in results] == [*range(number)]


async def test_so_many_are_under_way_and_no_more() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(10), concurrency=4)
    reading = asyncio.create_task(anext(approvals))
    await settled()
    assert (desk.asked, len(desk.under_way)) == (4, 4)
    desk.answer_all()
    await reading
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(desk.answer_on())
        assert len([result async for result in approvals]) == 9
        answering.cancel()
    assert desk.most == 4


async def test_few_rows_make_few_tasks() -> None:
    before = asyncio.all_tasks()
    desk = Desk()
    approvals = bulk(desk.approve, rows(2), concurrency=1000)
    reading = asyncio.create_task(anext(approvals))
    await settled()
    assert len(asyncio.all_tasks() - before - {reading}) == 2
    desk.answer_all()
    await reading
    assert len(approvals.unread) == 1


async def test_a_reader_who_stands_still_stops_the_sending_and_one_who_reads_on_starts_it_again() -> None:
    desk = Desk()
    taken = []

    def source() -> Iterator[Row]:
        for row in rows(100):
            taken.append(row.id)
            yield row

    for ordered in (False, True):
        taken.clear()
        approvals = bulk(desk.approve, source(), concurrency=3, ordered=ordered)
        answering = asyncio.create_task(desk.answer_on())
        for read in range(1, 100):
            await anext(approvals)
            await settled()
            assert read + 3 <= len(taken) <= read + 6 or len(taken) == 100
        answering.cancel()
        assert len([result async for result in approvals]) == 1


async def test_in_order_a_slow_row_holds_back_those_after_it_and_only_so_many_are_taken() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(20), concurrency=3, ordered=True)
    reading = asyncio.create_task(anext(approvals))
    await settled()
    for number in range(1, 6):
        desk.answer(number)
        await settled()
    assert not reading.done()
    assert desk.asked == 6
    desk.answer(0)
    assert (await reading).index == 0
    answering = asyncio.create_task(desk.answer_on())
    assert [result.index async for result in approvals] == [*range(1, 20)]
    answering.cancel()


async def test_without_order_what_comes_first_is_read_first() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(3))
    reading = asyncio.create_task(anext(approvals))
    await settled()
    desk.answer(2)
    assert (await reading).index == 2
    desk.answer_all()
    assert {result.index async for result in approvals} == {0, 1}


async def test_rows_that_come_one_by_one_are_asked_for_by_one_at_a_time() -> None:
    asking = 0

    async def source() -> AsyncIterator[Row]:
        nonlocal asking
        for row in rows(30):
            asking += 1
            assert asking == 1
            await asyncio.sleep(0)
            asking -= 1
            yield row

    assert len([result async for result in bulk(at_once, source(), concurrency=8)]) == 30


async def read_into(read: list[RowResult], approvals: Approvals) -> None:
    async for result in approvals:
        read.append(result)  # noqa: PERF401  (what was read before an error counts)


async def test_an_error_of_the_rows_comes_after_all_that_was_under_way() -> None:
    def source() -> Iterator[Row]:
        yield from rows(2)
        raise LookupError("the table is gone")

    async def later() -> AsyncIterator[Row]:
        for row in source():
            yield row

    for given in (source(), later()):
        desk = Desk()
        approvals = bulk(desk.approve, given, concurrency=3)
        read: list[RowResult] = []
        task = asyncio.create_task(read_into(read, approvals))
        await settled()
        assert not task.done()
        desk.answer_all()
        with pytest.raises(LookupError, match="the table is gone") as caught:
            await task
        assert [result.decision for result in read] == [DECISION] * 2
        assert caught.value.__notes__ == ["2 rows were taken before; all of their results were read"]
        with pytest.raises(StopAsyncIteration):
            await anext(approvals)


async def test_progress_that_fails_ends_the_sending_and_costs_no_answer() -> None:
    def progress(result: RowResult) -> None:
        raise ArithmeticError(result.index)

    approvals = bulk(at_once, rows(100), progress=progress)
    read: list[RowResult] = []
    with pytest.raises(ArithmeticError):
        await read_into(read, approvals)
    assert [result.index for result in read] == [0]


async def test_progress_is_told_of_a_result_before_it_is_read() -> None:
    told: list[RowResult] = []
    approvals = bulk(at_once, rows(5), progress=told.append)
    first = await anext(approvals)
    assert told[0] is first
    assert approvals.summary.rows == len(told) > 1
    assert [first, *[result async for result in approvals]] == told


async def test_two_readers_at_once_are_told_so() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(2))
    first = asyncio.create_task(anext(approvals))
    await settled()
    with pytest.raises(RuntimeError, match="somebody else is waiting"):
        await anext(approvals)
    desk.answer_all()
    await first
    assert len([result async for result in approvals]) == 1


async def test_a_call_that_is_cancelled_by_itself_ends_neither_the_rows_nor_its_own_result() -> None:
    async def approve(*_: object, **__: object) -> object:
        raise asyncio.CancelledError

    results = [result async for result in bulk(approve, rows(10), concurrency=2)]
    assert [result.status for result in results] == ["unknown"] * 10


async def test_every_call_stands_in_the_context_of_the_first_read() -> None:
    where: ContextVar[str] = ContextVar("where", default="nowhere")
    found = []

    async def approve(*_: object, **__: object) -> object:
        found.append(where.get())
        where.set("a call of another row")
        raise asyncio.CancelledError  # so that the next worker is begun by who reads

    where.set("the first")
    approvals = bulk(approve, rows(5), concurrency=1)
    await anext(approvals)
    where.set("a later one")
    assert len([result async for result in approvals]) == 4
    assert found == ["the first"] * 5


async def test_a_row_that_was_read_is_kept_by_nobody() -> None:
    kept: list[weakref.ref[Row]] = []

    async def source() -> AsyncIterator[Row]:
        yield remembered(kept)
        await asyncio.Event().wait()

    async with bulk(at_once, source()) as results:
        assert (await anext(results)).is_decided
        await settled()
        assert kept[0]() is None


def remembered(kept: "list[weakref.ref[Row]]") -> Row:
    [row] = rows(1)
    kept.append(weakref.ref(row))
    return row


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("concurrency", value) for value in (0, -1, True, 2.0, None)),
        *(("rate", value) for value in (0, -1, float("inf"), float("nan"), True, "5")),
        ("progress", "bar"),
        ("given", 5),
    ],
)
def test_an_argument_that_cannot_work_is_named_at_once(setting: str, value: object) -> None:
    given = {"given": rows(1), setting: value}
    with pytest.raises(ConfigurationError) as caught:
        bulk(at_once, **given)
    assert caught.value.setting == {"given": "rows"}.get(setting, setting)
