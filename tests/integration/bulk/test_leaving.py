"""Leaving the loop over results early: calls in progress finish, and their results are kept."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext

import pytest

from loanasync.bulk import Approvals, Row, RowResult
from support.bulk import DECISION, HeldCalls, approvals_of, approve_at_once, let_tasks_run, rows
from support.canned_server import ANY_APPROVAL, serving


async def read_two(approvals: Approvals) -> None:
    async with approvals:
        async for result in approvals:
            if result.index == 1:
                break


@pytest.mark.parametrize("how", ["break", "cancel", "stop"])
async def test_block_left_early_waits_and_keeps_unread_results(how: str) -> None:
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(100), concurrency=3)
    task = asyncio.create_task(read_two(approvals))
    await let_tasks_run()
    if how == "break":
        calls.finish(0)
        calls.finish(1)
    elif how == "cancel":
        task.cancel()
    else:
        approvals.stop()
    await let_tasks_run()
    started = calls.started
    assert not task.done(), "other calls are in progress, and are not cancelled"
    calls.finish_all()
    with pytest.raises(asyncio.CancelledError) if how == "cancel" else nullcontext():
        await task
    assert calls.started == started < 10, "no row is taken after that"
    unread = [result async for result in approvals]
    assert sorted(result.index for result in unread) == [*range(0 if how == "cancel" else 2, started)]
    assert {result.decision for result in unread} == {DECISION}


async def test_timeout_of_a_read_loses_no_result() -> None:
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(5), concurrency=2)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(approvals), 0.001)
    finishing = asyncio.create_task(calls.keep_finishing())
    assert {result.index async for result in approvals} == {*range(5)}
    finishing.cancel()


async def test_break_without_async_with_warns_of_unread_results() -> None:
    calls = HeldCalls()
    seen: list[RowResult] = []

    async def first() -> RowResult:
        async for result in approvals_of(calls.approve, rows(100), concurrency=3, progress=seen.append):
            return result
        raise AssertionError

    before = asyncio.all_tasks()
    task = asyncio.create_task(first())
    await let_tasks_run()
    calls.finish(1)
    assert (await task).index == 1
    await let_tasks_run()
    started = calls.started
    calls.finish_all()
    with pytest.warns(RuntimeWarning, match=f"^{started - 1} results were not read") as caught:
        await let_tasks_run()
    assert caught[0].filename == approvals_of.__code__.co_filename, "the file that called approve_many"
    assert calls.started == started == len(seen), "no row was taken, and every call has finished"
    assert asyncio.all_tasks() == before


async def test_client_aclose_waits_for_calls_of_an_abandoned_loop() -> None:
    async with serving(None) as server:
        client = server.client()
        seen: list[RowResult] = []

        async def read() -> None:
            async for _ in client.approve_many(rows(9), concurrency=2, progress=seen.append):
                pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.05)
        closing = asyncio.create_task(client.aclose())
        await let_tasks_run()
        assert not closing.done()
        server.respond_to_all(ANY_APPROVAL)
        with pytest.warns(RuntimeWarning, match="^2 results were not read"):
            await closing
        assert [result.status for result in seen] == ["approved"] * 2
        assert server.requests == 2


@pytest.mark.parametrize("how", ["read", "read later", "never started"])
async def test_no_warning_if_no_result_is_left(how: str) -> None:
    before = asyncio.all_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with approvals_of(approve_at_once, rows(10)) as approvals:
            if how == "read":
                assert len([result async for result in approvals]) == 10
            elif how == "read later":
                await anext(approvals)
                await let_tasks_run()
        assert len([result async for result in approvals]) == (6 if how == "read later" else 0)
        del approvals
        gc.collect()
        await let_tasks_run()
    assert asyncio.all_tasks() == before


def test_calls_cancelled_with_the_event_loop_are_unknown() -> None:
    calls = HeldCalls()
    kept: list[Approvals] = []
    seen: list[RowResult] = []

    async def main() -> None:
        kept.append(approvals_of(calls.approve, rows(100), progress=seen.append))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(kept[0]), 0.001)

    asyncio.run(main())
    assert [result.status for result in seen] == ["unknown"] * 3
    with pytest.warns(RuntimeWarning, match="^3 results were not read"):
        kept.clear()


async def test_call_cancelled_before_it_began_is_not_sent() -> None:
    others = asyncio.all_tasks()

    def cancel_all() -> None:
        for task in asyncio.all_tasks() - others - {reading}:
            task.cancel()

    def source() -> Iterator[Row]:
        for row in rows(2):
            if row.id == 0:
                asyncio.get_running_loop().call_soon(cancel_all)
            yield row

    approvals = approvals_of(approve_at_once, source())
    reading = asyncio.create_task(anext(approvals))
    first = await reading
    assert (first.index, first.status, first.outcome, first.sent) == (0, "not_sent", "not_sent", False)
    assert [each.status async for each in approvals] == ["approved"], "a new task takes the next row"


@pytest.mark.parametrize("rate", [None, 0.001])
async def test_aclose_does_not_wait_for_the_next_row(rate: float | None) -> None:
    never = asyncio.Event()

    async def source() -> AsyncIterator[Row]:
        for row in rows(1):
            yield row
        await never.wait()

    approvals = approvals_of(approve_at_once, source(), rate=rate)
    assert (await anext(approvals)).index == 0
    before = asyncio.current_task()
    await approvals.aclose()
    assert [result async for result in approvals] == []
    assert asyncio.all_tasks() == {before}
