"""The pool: concurrency, order of results, rate, errors of the rows, and invalid arguments."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from loanasync import Decision, LoanError, Meta, errors
from loanasync.bulk import Row, RowResult
from loanasync.bulk import pool as module
from loanasync.bulk.turns import Rate
from loanasync.testing import Clock, approved, scripted_client
from support.bulk import DECISION, HeldCalls, approvals_of, approve_at_once, let_tasks_run, rows


@pytest.mark.parametrize(("number", "concurrency", "started"), [(10, 4, 4), (2, 1000, 2), (0, 3, 0)])
async def test_calls_and_tasks_reach_the_concurrency_and_no_more(
    number: int, concurrency: int, started: int
) -> None:
    before, calls = asyncio.all_tasks(), HeldCalls()
    approvals = approvals_of(calls.approve, rows(number), concurrency=concurrency)

    async def read() -> list[RowResult]:
        return [result async for result in approvals]

    reading = asyncio.create_task(read())
    await let_tasks_run()
    assert len(calls.in_progress) == started
    assert len(asyncio.all_tasks() - before - {reading}) <= started + 1, "one of them takes the rows"
    finishing = asyncio.create_task(calls.keep_finishing())
    assert [result.index for result in await reading] == [*range(number)]
    finishing.cancel()
    assert calls.max_in_progress == started


async def test_pool_begins_slowly_and_grows_with_each_decision() -> None:
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(100), concurrency=64, stop_after=None)
    reading = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    assert len(calls.in_progress) == 4
    with pytest.raises(RuntimeError, match="another task is already waiting"):
        await anext(approvals)
    calls.finish(2, errors.ConnectError("approve", "OSError", "not_sent", 1))
    await let_tasks_run()
    assert len(calls.in_progress) == 4, "an error permits no further call"
    assert (await reading).index == 2, "results are read as they arrive"
    for decisions in range(1, 10):
        calls.finish(next(iter(calls.in_progress)))
        await let_tasks_run()
        assert len(calls.in_progress) == 4 + decisions
    approvals.stop()
    calls.finish_all()
    assert len([each async for each in approvals]) == 9 + 13


async def test_pool_slow_reader_pauses_the_calls_until_it_reads() -> None:
    calls, taken, seen, takers = HeldCalls(), list[object](), list[RowResult](), list[None]()

    async def source() -> AsyncIterator[Row]:
        for row in rows(100):
            assert not takers, "rows are taken one at a time"
            takers.append(None)
            await asyncio.sleep(0)
            takers.clear()
            taken.append(row.id)
            yield row

    approvals = approvals_of(calls.approve, source(), concurrency=3, progress=seen.append)
    finishing = asyncio.create_task(calls.keep_finishing())
    for read in range(1, 100):
        assert await anext(approvals) is seen[read - 1]
        await let_tasks_run()
        assert read + 3 <= len(taken) <= read + 6 or len(taken) == 100
        assert approvals.summary.rows == len(seen)
    finishing.cancel()
    assert len([result async for result in approvals]) == 1


async def test_assertion_of_a_test_ends_the_run() -> None:
    """With a missing scripted response, an unknown outcome would hide its advice."""
    results = scripted_client(approved()).approve_many(rows(2))
    assert {(await anext(results)).status for _ in range(2)} == {"approved", "unknown"}
    with pytest.raises(AssertionError, match="1 response was scripted"):
        await anext(results)


async def test_calls_run_in_the_context_of_the_first_read() -> None:
    current: ContextVar[str] = ContextVar("current", default="unset")
    found = []

    async def approve(*_: object, **__: object) -> object:
        found.append(current.get())
        current.set("a call of another row")
        raise asyncio.CancelledError  # so that its task ends

    current.set("the first read")
    approvals = approvals_of(approve, rows(5), concurrency=1)
    first = await anext(approvals)
    current.set("a later read")
    assert [each.status for each in [first, *[each async for each in approvals]]] == ["unknown"] * 5
    assert found == ["the first read"] * 5


async def test_tasks_show_no_fiscal_code_and_keep_no_row() -> None:
    """asyncio prints tasks and the arguments of their callbacks, for example in debug mode."""
    calls, kept = HeldCalls(), weakref.WeakSet[Row]()

    async def source() -> AsyncIterator[Row]:
        for row in rows(1):
            kept.add(row)
            yield row
            del row
        await asyncio.Event().wait()

    async with approvals_of(calls.approve, source()) as results:
        reading = asyncio.create_task(anext(results))
        await let_tasks_run()
        [row] = kept
        assert row.fiscal_code not in repr(asyncio.all_tasks())
        del row
        calls.finish_all()
        assert (await reading).is_decided
        del reading
        await let_tasks_run()
        assert len(kept) == 0


def test_results_are_read_in_another_event_loop() -> None:
    approvals = approvals_of(approve_at_once, rows(20), concurrency=2)
    first = asyncio.run(approvals.__anext__())

    async def read_left() -> list[int]:
        return [result.index async for result in approvals]

    assert [first.index, *asyncio.run(read_left())] == [*range(20)]


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
    with pytest.warns(RuntimeWarning, match="stopped: ledger: of a later version"):
        assert (await run_with([errors.ConfigurationError("ledger", "of a later version")] * 2))[1] == 1


async def test_approvals_in_a_wrong_place_say_how_to_read_them() -> None:
    approvals: Any = approvals_of(approve_at_once, rows(2))
    with pytest.raises(TypeError, match=r"async for result in client\.approve_many\(rows\)"):
        await approvals
    with pytest.raises(TypeError, match=r"to_frame\(\)"):
        list(approvals)
    assert len([result async for result in approvals]) == 2, "nothing was lost"


@pytest.mark.parametrize(
    ("rate", "late", "precision"), [(0.5, 0.0, 1e-6), (10, 0.0, 1e-6), (1000, 0.0, 1e-6), (5000, 0.001, 0.05)]
)
async def test_first_call_starts_at_once_and_others_at_the_rate(
    rate: float, late: float, precision: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers that are late do not lower a high rate."""
    clock, times = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds + late)

    async def approve(*_: object, **__: object) -> object:
        times.append(clock.time)
        await asyncio.sleep(0)
        return DECISION

    monkeypatch.setattr(module, "Rate", lambda rate: Rate(rate, now=clock.now, sleep=sleep))
    begin, number = clock.time, 1000 if late else 20
    assert len([result async for result in approvals_of(approve, rows(number), rate=rate)]) == number
    assert [times[0], times[-1]] == [begin, pytest.approx(begin + (number - 1) / rate, rel=precision)]
    if not late:
        assert [after - before for before, after in pairwise(times)] == pytest.approx([1 / rate] * 19)


async def test_rate_after_a_pause_has_no_burst() -> None:
    clock = Clock()
    rate, times = Rate(10, now=clock.now, sleep=clock.sleep), []
    for pause in (60, 0, 0, 0):
        await rate.wait()
        times.append(clock.time)
        clock.time += pause
    assert times[3] - times[1] == pytest.approx(0.2, abs=1e-9)
