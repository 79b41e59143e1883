"""However a loop over results is left, what was sent is waited for and its answer is kept."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator

import pytest

from loanasync.bulk import Approvals, Row, RowResult
from support.bulk import DECISION, Desk, at_once, bulk, rows, settled
from support.canned_server import APPROVAL, serving


async def read_two(approvals: Approvals) -> None:
    async with approvals:
        async for result in approvals:
            if result.index == 1:
                break


async def test_a_block_that_is_left_waits_for_what_is_under_way_and_hands_it_over() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(100), concurrency=3)
    task = asyncio.create_task(read_two(approvals))
    await settled()
    desk.answer(0)
    desk.answer(1)
    await settled()
    asked = desk.asked
    assert not task.done(), "others are under way"
    desk.answer_all()
    await task
    assert desk.asked == asked < 10, "none was taken after the break"
    left = approvals.unread
    assert sorted(result.index for result in left) == [*range(2, asked)]
    assert {result.decision for result in left} == {DECISION}
    assert [result async for result in approvals] == [*left], "they can be read on, too"
    assert approvals.unread == ()


async def test_a_block_that_is_cancelled_waits_and_keeps_what_comes() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(100), concurrency=3)
    task = asyncio.create_task(read_two(approvals))
    await settled()
    task.cancel()
    await settled()
    assert not task.done()
    assert len(desk.under_way) == 3, "what was sent is not cancelled"
    desk.answer_all()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {result.index for result in approvals.unread} == {0, 1, 2}


async def test_who_has_seen_what_was_left_is_not_told_of_it() -> None:
    async with bulk(at_once, rows(3)) as approvals:
        await anext(approvals)
    assert len(approvals.unread) == 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del approvals
        await settled()
    assert caught == []


async def test_who_has_seen_some_of_what_was_left_is_told_of_the_others() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(3), concurrency=3)
    reading = asyncio.create_task(anext(approvals))
    await settled()
    desk.answer(0)
    desk.answer(1)
    await reading
    assert len(approvals.unread) == 1
    desk.answer(2)
    await settled()
    assert "2 results to be read" in repr(approvals), "which shows none of them"
    del approvals
    with pytest.warns(RuntimeWarning, match="^1 answers came that nobody read"):
        await settled()


async def test_a_wait_that_is_given_up_loses_nothing_and_stops_nothing() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(5), concurrency=2)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(approvals), 0.001)
    answering = asyncio.create_task(desk.answer_on())
    assert {result.index async for result in approvals} == {*range(5)}
    answering.cancel()


async def test_a_loop_left_by_break_alone_is_heard_of() -> None:
    desk = Desk()
    answers: list[RowResult] = []

    async def first() -> RowResult:
        async for result in bulk(desk.approve, rows(100), concurrency=3, progress=answers.append):
            return result
        raise AssertionError

    before = asyncio.all_tasks()
    task = asyncio.create_task(first())
    await settled()
    desk.answer(1)
    assert (await task).index == 1
    await settled()
    asked = desk.asked
    desk.answer_all()
    with pytest.warns(RuntimeWarning, match=f"^{asked - 1} answers came that nobody read") as caught:
        await settled()
    assert caught[0].filename == bulk.__code__.co_filename, "where it was made"
    assert desk.asked == asked == len(answers), "nothing was taken, everything was answered"
    assert asyncio.all_tasks() == before


async def test_the_client_waits_for_what_a_left_loop_has_under_way() -> None:
    async with serving(None) as server:
        client = server.client()
        answers: list[RowResult] = []

        async def read() -> None:
            async for _ in client.approve_many(rows(9), concurrency=2, progress=answers.append):
                pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.05)
        closing = asyncio.create_task(client.aclose())
        await settled()
        assert not closing.done()
        server.answer_all(APPROVAL)
        with pytest.warns(RuntimeWarning, match="^2 answers came"):
            await closing
        assert [result.status for result in answers] == ["approved"] * 2
        assert server.requests == 2


async def test_a_loop_that_reads_everything_leaves_nothing_to_be_heard_of() -> None:
    before = asyncio.all_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async for _ in bulk(at_once, rows(10)):
            pass
        bulk(at_once, rows(10))
        gc.collect()
        await settled()
    assert asyncio.all_tasks() == before


def test_a_loop_that_ended_with_its_event_loop_is_heard_of() -> None:
    kept: list[Approvals] = []

    async def main() -> None:
        kept.append(bulk(at_once, rows(100)))
        await anext(kept[0])

    asyncio.run(main())
    with pytest.warns(RuntimeWarning, match="answers came that nobody read"):
        kept.clear()


def test_what_is_under_way_when_the_event_loop_ends_is_unknown() -> None:
    desk = Desk()
    kept: list[Approvals] = []
    answers: list[RowResult] = []

    async def main() -> None:
        kept.append(bulk(desk.approve, rows(100), progress=answers.append))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(kept[0]), 0.001)

    asyncio.run(main())
    assert [result.status for result in answers] == ["unknown"] * 3
    with pytest.warns(RuntimeWarning, match="^3 answers"):
        kept.clear()


async def test_stopping_ends_the_iteration_with_what_is_under_way() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(100))
    reading = asyncio.create_task(anext(approvals))
    await settled()
    approvals.stop()
    desk.answer_all()
    read = [await reading, *[result async for result in approvals]]
    assert [(result.index, result.status) for result in read] == [(n, "approved") for n in range(3)]
    assert desk.asked == 3


async def test_aborting_makes_what_is_under_way_unknown() -> None:
    desk = Desk()
    approvals = bulk(desk.approve, rows(100))
    reading = asyncio.create_task(anext(approvals))
    await settled()
    desk.answer(0)
    approvals.abort()
    results = [await reading, *[result async for result in approvals]]
    assert sorted((result.index, result.status) for result in results) == [
        *((number, "unknown") for number in range(3))
    ]
    said = "the service may have received the request; ask it for the outcome before repeating the call"
    assert {str(result.error) for result in results} == {f"approve: no response (CancelledError): {said}"}
    assert desk.asked == 3


@pytest.mark.parametrize("rate", [None, 0.001])
async def test_stopping_does_not_wait_for_a_row_that_is_still_to_come(rate: float | None) -> None:
    never = asyncio.Event()

    async def source() -> AsyncIterator[Row]:
        for row in rows(1):
            yield row
        await never.wait()

    approvals = bulk(at_once, source(), rate=rate)
    assert (await anext(approvals)).index == 0
    before = asyncio.current_task()
    await approvals.aclose()
    assert [result async for result in approvals] == []
    assert asyncio.all_tasks() == {before}


async def test_closing_what_never_began_is_nothing() -> None:
    approvals = bulk(at_once, rows(3))
    await approvals.aclose()
    assert [result async for result in approvals] == []
