"""The pool: concurrency, order of results, errors of the rows, and invalid arguments."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pandas as pd
import pytest

from loanasync import Decision, LoanError, Meta, errors
from loanasync.bulk import Row, RowResult
from loanasync.testing import approved, scripted_client
from support.bulk import DECISION, HeldCalls, approvals_of, approve_at_once, let_tasks_run, rows


async def test_every_row_becomes_one_result() -> None:
    for number in (0, 1, 4, 50):
        results = [result async for result in approvals_of(approve_at_once, rows(number))]
        assert [result.index for result in results] == [result.id for result in results] == [*range(number)]


@pytest.mark.parametrize(("number", "concurrency", "started"), [(10, 4, 4), (2, 1000, 2)])
async def test_calls_and_tasks_reach_the_concurrency_and_no_more(
    number: int, concurrency: int, started: int
) -> None:
    before, calls = asyncio.all_tasks(), HeldCalls()
    approvals = approvals_of(calls.approve, rows(number), concurrency=concurrency)
    reading = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    assert len(calls.in_progress) == started
    assert len(asyncio.all_tasks() - before - {reading}) <= started + 1, "one of them takes the rows"
    finishing = asyncio.create_task(calls.keep_finishing())
    assert len([await reading, *[result async for result in approvals]]) == number
    finishing.cancel()
    assert calls.max_in_progress == started


async def test_assertion_of_a_test_ends_the_run() -> None:
    """With a missing scripted response, an unknown outcome would hide its advice."""
    results = scripted_client(approved()).approve_many(rows(2))
    assert {(await anext(results)).status for _ in range(2)} == {"approved", "unknown"}
    with pytest.raises(AssertionError, match="1 response was scripted"):
        await anext(results)


async def test_pool_slow_reader_pauses_the_calls_until_it_reads() -> None:
    calls = HeldCalls()
    taken = []

    def source() -> Iterator[Row]:
        for row in rows(100):
            taken.append(row.id)
            yield row

    approvals = approvals_of(calls.approve, source(), concurrency=3)
    finishing = asyncio.create_task(calls.keep_finishing())
    for read in range(1, 100):
        await anext(approvals)
        await let_tasks_run()
        assert read + 3 <= len(taken) <= read + 6 or len(taken) == 100
    finishing.cancel()
    assert len([result async for result in approvals]) == 1


async def test_results_are_read_as_they_arrive() -> None:
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(3))
    reading = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    calls.finish(2)
    assert (await reading).index == 2
    calls.finish_all()
    assert {result.index async for result in approvals} == {0, 1}


async def test_async_rows_are_taken_one_at_a_time() -> None:
    takers = 0

    async def source() -> AsyncIterator[Row]:
        nonlocal takers
        for row in rows(30):
            takers += 1
            assert takers == 1
            await asyncio.sleep(0)
            takers -= 1
            yield row

    assert len([result async for result in approvals_of(approve_at_once, source(), concurrency=8)]) == 30


async def test_progress_is_called_before_the_result_is_read() -> None:
    seen: list[RowResult] = []
    approvals = approvals_of(approve_at_once, rows(5), progress=seen.append)
    first = await anext(approvals)
    assert seen[0] is first
    await let_tasks_run()
    assert approvals.summary.rows == len(seen) > 1
    assert [first, *[result async for result in approvals]] == seen


async def test_second_reader_at_the_same_time_raises() -> None:
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(2))
    first = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    with pytest.raises(RuntimeError, match="another task is already waiting"):
        await anext(approvals)
    calls.finish_all()
    await first
    assert len([result async for result in approvals]) == 1


async def test_call_that_raises_cancelled_error_has_status_unknown() -> None:
    async def approve(*_: object, **__: object) -> object:
        raise asyncio.CancelledError

    results = [result async for result in approvals_of(approve, rows(10), concurrency=2)]
    assert [result.status for result in results] == ["unknown"] * 10


async def test_calls_run_in_the_context_of_the_first_read() -> None:
    current: ContextVar[str] = ContextVar("current", default="unset")
    found = []

    async def approve(*_: object, **__: object) -> object:
        found.append(current.get())
        current.set("a call of another row")
        raise asyncio.CancelledError  # so that its task ends

    current.set("the first read")
    approvals = approvals_of(approve, rows(5), concurrency=1)
    await anext(approvals)
    current.set("a later read")
    assert len([result async for result in approvals]) == 4
    assert found == ["the first read"] * 5


async def test_tasks_show_no_fiscal_code() -> None:
    """asyncio prints tasks and the arguments of their callbacks, for example in debug mode."""
    calls, pair = HeldCalls(), ("TSTXYZ00A00A000A", next(rows(1)).request)
    reading = asyncio.create_task(anext(approvals_of(calls.approve, [pair])))
    await let_tasks_run()
    assert "TSTXYZ" not in repr(asyncio.all_tasks())
    calls.finish_all()
    assert (await reading).row is pair


def test_results_are_read_in_another_event_loop() -> None:
    approvals = approvals_of(approve_at_once, rows(20), concurrency=2)
    first = asyncio.run(approvals.__anext__())

    async def read_left() -> list[int]:
        return [result.index async for result in approvals]

    assert [first.index, *asyncio.run(read_left())] == [*range(20)]


async def test_row_that_was_read_is_released() -> None:
    kept = weakref.WeakSet[Row]()

    async def source() -> AsyncIterator[Row]:
        for row in rows(1):
            kept.add(row)
            yield row
            del row
        await asyncio.Event().wait()

    async with approvals_of(approve_at_once, source()) as results:
        assert (await anext(results)).is_decided
        await let_tasks_run()
        assert len(kept) == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("concurrency", value) for value in (0, -1, True, 2.0, None)),
        *(("rate", value) for value in (0, -1, float("inf"), float("nan"), True, "5")),
        ("progress", "bar"),
        *(("rows", value) for value in (5, "TSTXYZ00A00A000A", b"rows", {"TSTXYZ00A00A000A": None})),
        *(("wait", value) for value in (-1, None, "2")),
        ("timeout", 3),
        ("retry", 3),
    ],
)
def test_invalid_argument_raises_configuration_error(setting: str, value: object) -> None:
    arguments = {"rows": rows(1), setting: value}
    with pytest.raises(errors.ConfigurationError) as caught:
        approvals_of(approve_at_once, **arguments)
    assert caught.value.setting == setting


async def test_pool_begins_slowly_and_grows_with_each_decision() -> None:
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(100), concurrency=64, stop_after=None)
    reading = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    assert len(calls.in_progress) == 4
    calls.finish(0, errors.ConnectError("approve", "OSError", "not_sent", 1))
    await let_tasks_run()
    assert len(calls.in_progress) == 4, "an error permits no further call"
    for decisions in range(1, 10):
        calls.finish(next(iter(calls.in_progress)))
        await let_tasks_run()
        assert len(calls.in_progress) == 4 + decisions
    await reading
    approvals.stop()
    calls.finish_all()
    assert len([each async for each in approvals]) == 9 + 13


async def run_with(outcomes: list[Decision | LoanError], **options: int | None) -> tuple[str, int]:
    """Run a row for each outcome, one at a time. Return why the run stopped, and the number of results."""
    left = iter(outcomes)

    async def approve(*_: object, **__: object) -> Decision:
        outcome = next(left)
        if isinstance(outcome, LoanError):
            raise outcome
        return outcome

    approvals = approvals_of(approve, rows(len(outcomes)), concurrency=1, **options)
    results = [result async for result in approvals]
    return approvals.stopped, len(results)


async def test_rows_in_sequence_without_a_decision_stop_the_pool() -> None:
    failing: list[Decision | LoanError] = [
        errors.UserNotFoundError("approve", (), Meta(400, 1, 0.1)),
        errors.AlreadyEvaluatedError("approve", (), Meta(400, 1, 0.1)),
        errors.ConnectionLostError("approve", "OSError", "unknown", 1),
    ] * 30
    reason = "stopped after 20 rows without a decision, the last with AlreadyEvaluatedError"
    with pytest.warns(RuntimeWarning, match=reason):
        assert await run_with([*failing[:19], DECISION, *failing]) == (reason, 19 + 1 + 20)
    assert await run_with(failing, stop_after=None) == ("", 90)
    known: list[Decision | LoanError] = [
        errors.InvalidRequestError(()),
        errors.OutcomeUnknownError("approve", "c0ffee", "unknown", ""),
        errors.PayloadMismatchError("approve", "c0ffee", "approved"),
        errors.InFlightError("approve", "c0ffee"),
    ]
    assert await run_with(known * 10, stop_after=2) == ("", 40), "they were not sent, and are known"


async def test_approvals_in_a_wrong_place_say_how_to_read_them() -> None:
    approvals: Any = approvals_of(approve_at_once, rows(2))
    with pytest.raises(TypeError, match=r"async for result in client\.approve_many\(rows\)"):
        await approvals
    with pytest.raises(TypeError, match=r"to_frame\(\)"):
        pd.DataFrame(approvals)
    assert len([result async for result in approvals]) == 2, "nothing was lost"
