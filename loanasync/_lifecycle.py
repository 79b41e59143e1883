"""Object lifecycle: the `aclose()` base class, waits, cancellation, locks and forks, unclosed clients."""

import asyncio
import inspect
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary


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


class Closing(ABC):
    """Base class for objects with `aclose()` that can be used in an ``async with`` block."""

    __slots__ = ()

    @abstractmethod
    async def aclose(self) -> None:
        """Close the object and everything that it opened."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def caller_line() -> tuple[str, int]:
    """Return file name and line number of the innermost frame outside this package.

    The frame itself is not returned, because it would keep all of its variables alive.
    """
    frame = inspect.currentframe()
    assert frame is not None  # noqa: S101  (CPython has frames)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("loanasync."):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    del frame
    return file, line


def unclosed_warning() -> Callable[[], None]:
    """Return a function that warns of an unclosed client and names the line that created it."""
    file, line = caller_line()

    def warn() -> None:
        warnings.warn_explicit(
            "unclosed LoanClient, created here; close it with aclose(), or use it in an async with block",
            ResourceWarning,
            file,
            line,
        )

    return warn


Owner = TypeVar("Owner")

_owners: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


def free_after_fork(owner: Owner, renew_lock: Callable[[Owner], None]) -> None:
    """Call `renew_lock(owner)` in each forked child, as long as the owner exists.

    A thread of the parent that holds the lock does not exist in the child, so the lock would never be
    released there. Each step of that thread must leave the guarded data consistent.
    """
    _owners[owner] = renew_lock


def _renew() -> None:
    for reference in _owners.keyrefs():
        if (owner := reference()) is not None:
            _owners[owner](owner)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew)
