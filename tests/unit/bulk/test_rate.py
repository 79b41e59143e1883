"""Calls begin evenly spread, at the rate that was asked for."""

import asyncio
from itertools import pairwise

import pytest

from loanasync.bulk import approvals as module
from loanasync.bulk.rate import Rate
from loanasync.testing import Clock
from support.bulk import DECISION, bulk, rows


async def begun(rate: float, number: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each call began."""
    monkeypatch.setattr(module, "Rate", lambda rate: Rate(rate, now=clock.now, sleep=clock.sleep))
    times: list[float] = []

    async def approve(*_: object, **__: object) -> object:
        times.append(clock.time)
        await asyncio.sleep(0)
        return DECISION

    assert len([result async for result in bulk(approve, rows(number), rate=rate)]) == number
    return times


@pytest.mark.parametrize("rate", [0.5, 10, 1000])
async def test_the_first_begins_at_once_and_each_other_in_its_turn(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = await begun(rate, 20, Clock(), monkeypatch)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == Clock().time
    assert gaps == pytest.approx([1 / rate] * 19)


async def test_timers_that_are_late_cost_no_turn_at_a_high_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Clock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds + 0.001)

    clock = Late()
    times = await begun(5000, 1000, clock, monkeypatch)
    assert times[-1] - times[0] == pytest.approx(0.2, rel=0.05)


async def test_a_pause_is_not_made_up_for() -> None:
    clock = Clock()
    rate = Rate(10, now=clock.now, sleep=clock.sleep)
    await rate.turn()
    clock.time += 60
    times = []
    for _ in range(3):
        await rate.turn()
        times.append(clock.time)
    assert times[2] - times[0] == pytest.approx(0.2, abs=1e-9)
