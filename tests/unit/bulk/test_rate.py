"""The rate limit: calls start evenly spread, at the given rate."""

import asyncio
from itertools import pairwise

import pytest

from loanasync.bulk import approvals as module
from loanasync.bulk.rate import Rate
from loanasync.testing import Clock
from support.bulk import DECISION, approvals_of, rows


async def start_times(rate: float, number: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time at which each call started."""
    monkeypatch.setattr(module, "Rate", lambda rate: Rate(rate, now=clock.now, sleep=clock.sleep))
    times: list[float] = []

    async def approve(*_: object, **__: object) -> object:
        times.append(clock.time)
        await asyncio.sleep(0)
        return DECISION

    assert len([result async for result in approvals_of(approve, rows(number), rate=rate)]) == number
    return times


@pytest.mark.parametrize("rate", [0.5, 10, 1000])
async def test_first_call_starts_at_once_and_others_at_the_rate(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = await start_times(rate, 20, Clock(), monkeypatch)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == Clock().time
    assert gaps == pytest.approx([1 / rate] * 19)


async def test_late_timers_do_not_lower_a_high_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Clock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds + 0.001)

    clock = Late()
    times = await start_times(5000, 1000, clock, monkeypatch)
    assert times[-1] - times[0] == pytest.approx(0.2, rel=0.05)


async def test_rate_after_a_pause_has_no_burst() -> None:
    clock = Clock()
    rate = Rate(10, now=clock.now, sleep=clock.sleep)
    await rate.wait()
    clock.time += 60
    times = []
    for _ in range(3):
        await rate.wait()
        times.append(clock.time)
    assert times[2] - times[0] == pytest.approx(0.2, abs=1e-9)
