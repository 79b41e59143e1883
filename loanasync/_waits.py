"""Waits with a time limit, and how the closing of a client ends them."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class Waits:
    """The waits in progress of an object, which end at once when the object is closed.

    A wait is an entered `asyncio.Timeout`. It ends with TimeoutError; `is_closed` distinguishes closing from
    an expired time limit.
    """

    def __init__(self) -> None:
        self.is_closed: bool = False
        self._limits: set[asyncio.Timeout] = set()

    def add(self, limit: asyncio.Timeout) -> None:
        """Register a wait by its time limit, which must be entered."""
        self._limits.add(limit)
        if self.is_closed:
            expire(limit)

    def discard(self, limit: asyncio.Timeout) -> None:
        """Remove a wait that has ended."""
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


def was_cancelled() -> bool:
    """Return True if the current task was cancelled.

    A CancelledError alone does not prove it: aiohttp raises one in requests that wait for a closed pool.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


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
        self._next = inf  # the time of the timer; all limits are later or equal
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def set(self, owner: Owner, limit: float) -> None:
        """Set the limit of an owner, a time of the event loop's clock."""
        self._limits[owner] = limit
        if limit < self._next:
            self._start(limit)

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
        if self._handle is not None:
            self._handle.cancel()

    def _start(self, limit: float) -> None:
        self._cancel()
        self._next = limit
        self._handle = self._loop.call_at(limit, self._run)

    def _run(self) -> None:
        """Expire the owners whose limit has passed, and start the timer for the next limit."""
        now = max(self._loop.time(), self._next)  # a coarse clock may make the event loop call too early
        self._next = inf
        try:
            for owner, limit in tuple(self._limits.items()):
                if limit <= now and self._limits.pop(owner, None) is not None:
                    self._expire(owner, limit)
        finally:  # an error of one owner must not keep the others from expiring
            limit = min(self._limits.values(), default=inf)
            if limit < self._next:
                self._start(limit)
