"""Waits with a time limit, and how the closing of a client ends them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeAlias, TypeVar

Owner = TypeVar("Owner")
Caller: TypeAlias = "asyncio.Future[None]"  # in which a caller waits for the end of a flight

GRACE = 0.05  # seconds in which a flight ends by the limits of its steps, whose errors say more
_MOST_REMOVED = 100  # limits that a timer keeps although they were removed, and as many as it had


class Waits:
    """The waits in progress of an object, which end at once when the object is closed.

    A wait is an entered `asyncio.Timeout`. It ends with TimeoutError; `is_closed` distinguishes closing from
    an expired time limit.
    """

    def __init__(self) -> None:
        self.is_closed: bool = False
        self._limits: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def limited_by(self, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Enter a time limit, and register its wait until the end of the block."""
        async with limit:
            self._limits.add(limit)
            if self.is_closed:
                expire(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def close(self) -> None:
        """End all waits. Waits that are added later end at once."""
        self.is_closed = True
        for limit in self._limits:
            expire(limit)


def expire(limit: asyncio.Timeout) -> None:
    """Expire a time limit now, unless it has expired."""
    if not limit.expired():
        limit.reschedule(0.0)


def cancellations() -> int:
    """Return how often the current task was cancelled; 1 if garbage collection ends its coroutine."""
    task = asyncio.current_task()
    return 1 if task is None else task.cancelling()


def was_cancelled() -> bool:
    """Return True if the current task was cancelled.

    A CancelledError alone does not prove it: aiohttp raises one in requests that wait for a closed pool.
    """
    return cancellations() > 0


class SharedTimer(Generic[Owner]):
    """The time limits of one event loop, at most one for each owner. They share one timer.

    A timer of the event loop for each limit takes a tenth of the time of an approval.

    Args:
        loop: The event loop.
        expire: Called with an owner whose limit has passed, and with that limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Owner, float], object]) -> None:
        self._loop = loop
        self._expire = expire
        self._limits: dict[Owner, float] = {}
        # A heap of the times at which to look at an owner, at most one for each: its limit, or an earlier one
        # that it had before. The numbers are all different, so that owners are not compared.
        self._heap: list[tuple[float, int, Owner]] = []
        self._looks: dict[Owner, float] = {}  # the time in the heap
        self._number = 0  # of the last one
        self._sweep_at = _MOST_REMOVED  # the number after which removed limits leave the heap
        self._next = inf  # the time of the timer; all times in the heap are later or equal
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def set(self, owner: Owner, limit: float, now: float = -inf) -> None:
        """Set the limit of an owner, a time of the event loop's clock.

        If the present time is given, a timer that an interrupt has stopped is started again.
        """
        self._limits[owner] = limit
        if limit < self._looks.get(owner, inf):
            self._look(owner, limit)
        if now > self._next:
            self._start()

    def _look(self, owner: Owner, at: float) -> None:
        self._looks[owner] = at
        self._number += 1
        heappush(self._heap, (at, self._number, owner))
        if at < self._next:
            self._start()
        if self._number > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Make the heap again, from the limits."""
        self._heap = [(limit, number, owner) for number, (owner, limit) in enumerate(self._limits.items())]
        self._looks = self._limits.copy()
        heapify(self._heap)
        self._sweep_at = self._number + _MOST_REMOVED + len(self._heap)

    def discard(self, owner: Owner) -> None:
        """Remove the limit of an owner, if it has one."""
        self._limits.pop(owner, None)
        if self._is_closed and not self._limits:
            self._cancel()

    def close(self) -> None:
        """Cancel the timer when the last limit is removed. Until then the limits apply."""
        self._is_closed = True
        if not self._limits:
            self._cancel()

    def _cancel(self) -> None:
        self._next = inf
        self._heap.clear()
        self._looks.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _start(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next = self._heap[0][0] if self._heap else inf
        if self._heap:
            self._handle = self._loop.call_at(self._next, self._run)

    def _run(self) -> None:
        """Expire the owners whose limit has passed, and start the timer for the next look.

        After an interrupt, the owner that was expired then is expired again.
        """
        expired: tuple[Owner, float] | None = None
        try:
            now = max(self._loop.time(), self._next)  # a coarse clock may make the event loop call too early
            while self._heap and self._heap[0][0] <= now:
                at, _, owner = heappop(self._heap)
                if self._looks.get(owner) != at:  # replaced by an earlier one
                    continue
                del self._looks[owner]
                limit = self._limits.get(owner)
                if limit is not None and limit > now:
                    self._look(owner, limit)
                elif limit is not None:
                    expired = owner, limit
                    del self._limits[owner]
                    self._expire(owner, limit)
        except BaseException as error:
            if expired is not None and not isinstance(error, Exception):
                self._limits.setdefault(*expired)
            self._sweep()
            raise
        finally:  # an error of one owner, or an interrupt, must not keep the others from expiring
            self._start()


def wake(caller: Caller) -> None:
    """Wake a caller, unless it was cancelled."""
    if not caller.done():
        caller.set_result(None)


def end_wait(caller: Caller, due: float) -> None:
    """Wake a caller whose time is over. If the event loop was blocked, its flight may end in this moment."""
    loop = caller.get_loop()
    if loop.time() > due + GRACE:
        loop.call_later(GRACE, wake, caller)
    else:
        wake(caller)
