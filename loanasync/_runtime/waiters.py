"""The futures in which the callers of an approval wait for the end of its flight."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import asyncio

Waiter: TypeAlias = "asyncio.Future[None]"

GRACE = 0.05  # seconds in which a flight ends by the limits of its steps, whose errors say more


def wake(waiter: Waiter) -> None:
    """Wake a caller, unless it was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


def end_wait(waiter: Waiter, due: float) -> None:
    """Wake a caller whose time is over. If the event loop was blocked, its flight may end in this moment."""
    loop = waiter.get_loop()
    if loop.time() > due + GRACE:
        loop.call_later(GRACE, wake, waiter)
    else:
        wake(waiter)
