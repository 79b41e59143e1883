"""One timer serves many time limits."""

import asyncio

import pytest

from loanasync._waits import SharedTimer
from support.virtual_time import VirtualTime

Expired = list[tuple[str, float, float]]


def shared_timer(expired: Expired) -> SharedTimer[str]:
    """Return a timer that notes the owner, its limit and the present time."""
    loop = asyncio.get_running_loop()
    return SharedTimer(loop, lambda owner, limit: expired.append((owner, limit, loop.time())))


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


@pytest.mark.parametrize("removes", [True, False])
def test_closed_timer_keeps_its_limits(removes: bool) -> None:  # noqa: FBT001  (a parameter)
    expired: Expired = []

    async def use() -> int:
        timer = shared_timer(expired)
        timer.set("owner", 5.0)
        timer.close()
        if removes:
            timer.discard("owner")
        await asyncio.sleep(1)
        pending = sum(not handle.cancelled() for handle in asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
        await asyncio.sleep(9)
        return pending

    assert VirtualTime().run(use()) == (0 if removes else 1)
    assert [owner for owner, _, _ in expired] == ([] if removes else ["owner"])


def test_closed_timer_without_limits_is_cancelled() -> None:
    async def use() -> int:
        timer = shared_timer([])
        timer.set("owner", 5.0)
        timer.discard("owner")
        timer.close()
        return sum(not handle.cancelled() for handle in asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    assert VirtualTime().run(use()) == 0


def test_extended_limit_expires_at_the_later_time() -> None:
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


def test_timer_forgets_removed_limits() -> None:
    async def use() -> int:
        timer = shared_timer([])
        for number in range(10_000):
            timer.set(f"{number}", float(number + 100))
            timer.discard(f"{number}")
        timer.set("last", 5.0)
        return len(timer._heap)

    assert VirtualTime().run(use()) < 200
