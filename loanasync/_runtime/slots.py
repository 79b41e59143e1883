"""The slots of one event loop, which limit the number of concurrent calls."""

import asyncio
import math
from collections import deque
from contextlib import suppress


class Slots:
    """The number of free slots, and the calls that wait for one, in the order in which they arrived.

    A released slot is given to the first waiting call, so that no later call takes it. `asyncio.Semaphore`
    does the same, but takes seven function calls for a slot that is free.

    Args:
        count: The number of slots. None: as many as needed.
    """

    __slots__ = ("_waiters", "free")

    def __init__(self, count: int | None) -> None:
        self.free: float = math.inf if count is None else count  # 0 while a call waits
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Take a slot; wait until one is free."""
        if self.free:
            self.free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # the slot was given to this call at the same time
                self.release()
            else:
                with suppress(ValueError):  # `release` has removed it
                    self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Give a slot to the first waiting call, or make it free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # not cancelled
                waiter.set_result(None)
                return
        self.free += 1
