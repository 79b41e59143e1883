"""Rate limit: the calls that begin in a second, evenly spread."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_LATE = 0.01  # seconds by which timers may wake us late; what is later than that is a pause of the caller


class Rate:
    """Hands out turns, one each so many seconds; a pause is not made up for by a burst."""

    def __init__(
        self,
        rate: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._gap = 1 / rate
        self._now = now
        self._sleep = sleep
        self._next = -float("inf")

    async def turn(self) -> None:
        """Wait for the next turn."""
        now = self._now()
        turn = now if self._next < now - _LATE else self._next
        self._next = turn + self._gap
        if turn > now:
            await self._sleep(turn - now)
