"""Waits that end when their object is closed, and one timer for many time limits."""

import asyncio
import weakref
from types import SimpleNamespace
from typing import cast

import pytest

from loanasync._transport.waits import SharedTimer, Waits
from support.virtual_time import VirtualTime

Expired = list[tuple[str, float, float]]


def shared_timer(expired: Expired) -> SharedTimer[str]:
    """Return a timer that notes the owner, its limit and the present time."""
    loop = asyncio.get_running_loop()
    return SharedTimer(loop, lambda owner, limit: expired.append((owner, limit, loop.time())))


@pytest.mark.parametrize("is_before", [False, True])
async def test_wait_ends_when_its_object_is_closed(*, is_before: bool) -> None:
    waits = Waits()
    if is_before:
        waits.close()
    else:
        asyncio.get_running_loop().call_soon(waits.close)
    with pytest.raises(TimeoutError):
        async with waits.limited_by(asyncio.timeout(60)):
            await asyncio.sleep(1)


def test_each_owner_expires_at_its_limit() -> None:
    expired: Expired = []

    async def use() -> None:
        timer = shared_timer(expired)
        timer.set("late", 9.0)
        timer.set("early", 3.0)
        timer.set("removed", 1.0)
        timer.set("extended", 2.0)
        timer.set("extended", 6.0)
        timer.discard("removed")
        timer.discard("unknown")
        await asyncio.sleep(20)
        timer.set("again", 25.0)
        await asyncio.sleep(20)

    VirtualTime().run(use())
    times = {"early": 3.0, "extended": 6.0, "late": 9.0, "again": 25.0}
    assert expired == [(owner, limit, limit) for owner, limit in times.items()]


def test_owners_that_share_a_limit_expire_together() -> None:
    expired: Expired = []

    async def use() -> None:
        timer = shared_timer(expired)
        for owner in "abc":
            timer.set(owner, 5.0)
        await asyncio.sleep(6)

    VirtualTime().run(use())
    assert [owner for owner, _, _ in expired] == list("abc")


def test_error_of_one_owner_delays_no_other() -> None:
    expired: list[str] = []
    errors: list[object] = []

    def expire(owner: str, _: float) -> None:
        if owner == "broken":
            raise RuntimeError
        expired.append(owner)

    async def use() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        timer = SharedTimer(loop, expire)
        for owner, limit in (("broken", 1.0), ("same time", 1.0), ("later", 2.0)):
            timer.set(owner, limit)
        await asyncio.sleep(3)

    VirtualTime().run(use())
    assert expired == ["same time", "later"]
    assert [type(error) for error in errors] == [RuntimeError]


def test_owner_whose_expiry_is_interrupted_expires_again() -> None:
    expired: list[str] = []

    def expire(owner: str, _: float) -> None:
        expired.append(owner)
        if len(expired) == 1:
            raise asyncio.CancelledError  # asyncio does not pass on this one, unlike a KeyboardInterrupt

    async def use() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        timer = SharedTimer(loop, expire)
        timer.set("first", 1.0)
        timer.set("second", 1.0)
        await asyncio.sleep(3)

    VirtualTime().run(use())
    assert expired == ["first", "second", "first"]


def test_interrupt_as_the_timer_runs_stops_no_limit() -> None:
    expired: Expired = []

    async def use() -> None:
        timer, loop = shared_timer(expired), asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)

        def interrupted() -> float:
            timer._loop = loop
            raise RuntimeError

        timer.set("first", 1.0)
        timer._loop = cast("asyncio.AbstractEventLoop", SimpleNamespace(time=interrupted))
        await asyncio.sleep(2)
        timer.set("second", 3.0)
        await asyncio.sleep(2)

    VirtualTime().run(use())
    assert [owner for owner, _, _ in expired] == ["first", "second"]


@pytest.mark.parametrize(
    ("steps", "ended"), [("set close", 5.0), ("set close discard", 0.0), ("set discard close", 0.0)]
)
def test_closed_timer_runs_until_its_last_limit(steps: str, ended: float) -> None:
    expired: Expired = []
    time = VirtualTime()

    async def use() -> None:
        timer = shared_timer(expired)
        for step in steps.split():
            match step:
                case "set":
                    timer.set("owner", 5.0)
                case "close":
                    timer.close()
                case _:
                    timer.discard("owner")
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="no timer is left"):
        time.run(use())
    assert (time.now(), len(expired)) == (ended, ended == 5)


def test_limit_that_is_replaced_while_another_expires_is_not_due() -> None:
    expired: list[tuple[str, float]] = []

    async def use() -> None:
        def expire(owner: str, limit: float) -> None:
            expired.append((owner, limit))
            if owner == "first":
                timer.set("second", 10.0)

        timer: SharedTimer[str] = SharedTimer(asyncio.get_running_loop(), expire)
        timer.set("first", 1.0)
        timer.set("second", 1.0)
        await asyncio.sleep(20)

    VirtualTime().run(use())
    assert expired == [("first", 1.0), ("second", 10.0)]


class Owner:
    """An object with weak references."""


def test_timer_forgets_removed_owners() -> None:
    async def use() -> int:
        timer: SharedTimer[Owner] = SharedTimer(asyncio.get_running_loop(), lambda *_: None)
        owners: weakref.WeakSet[Owner] = weakref.WeakSet()
        for number in range(10_000):
            owner = Owner()
            owners.add(owner)
            timer.set(owner, float(number + 100))
            timer.discard(owner)
        return len(owners)

    assert VirtualTime().run(use()) < 200
