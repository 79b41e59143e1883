"""Slots are given in order, and no cancelled call keeps one."""

import asyncio

import pytest

from loanasync._runtime.pipeline import Slots


async def waiting(slots: Slots, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(slots.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_released_slot_is_given_to_the_first_waiting_call() -> None:
    slots = Slots(1)
    assert slots.take()
    first, second = await waiting(slots, 2)
    slots.release()
    assert slots.free == 0, "a later call cannot take it"
    await first
    assert not second.done()
    slots.release()
    await second
    slots.release()
    assert slots.free == 1


@pytest.mark.parametrize("is_released", [False, True], ids=["before", "together"])
@pytest.mark.parametrize("others", [0, 1])
async def test_cancelled_waiting_call_takes_no_slot(*, is_released: bool, others: int) -> None:
    """The call is cancelled before the slot is released, or in the same iteration after that."""
    slots = Slots(1)
    assert slots.take()
    first, *rest = await waiting(slots, 1 + others)
    if is_released:
        slots.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    if not is_released:
        slots.release()
    for task in rest:
        await task
        slots.release()
    assert slots.free == 1


async def test_release_skips_a_call_that_is_being_cancelled() -> None:
    slots = Slots(1)
    assert slots.take()
    first, second = await waiting(slots, 2)
    first.cancel()
    slots.release()  # before the cancelled task has run
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    slots.release()
    assert slots.free == 1
