"""Rate limit: spreads the starts of calls evenly over time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_TIMER_DELAY = 0.01  # seconds by which a timer may be late; a longer delay is a pause of the caller


class Rate:
    """Limits how many calls start in a second. After a pause there is no burst to catch up.

    Args:
        rate: Calls in a second.
        now: Clock, in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        rate: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._interval = 1 / rate
        self._now = now
        self._sleep = sleep
        self._next_start = -float("inf")

    async def wait(self) -> None:
        """Wait until the next call may start."""
        now = self._now()
        start = now if self._next_start < now - _TIMER_DELAY else self._next_start
        self._next_start = start + self._interval
        if start > now:
            await self._sleep(start - now)
