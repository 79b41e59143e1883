"""Closing: the base class of objects with `aclose()`, waits, locks after a fork, and unclosed clients."""

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
    """The waits in progress of an object that can be closed; closing ends each of them at once.

    A wait is an `asyncio.Timeout` that was entered. It ends with TimeoutError, and `is_closed` says why.
    """

    def __init__(self) -> None:
        self.is_closed: bool = False
        self._limits: set[asyncio.Timeout] = set()

    def add(self, limit: asyncio.Timeout) -> None:
        """Begin a wait within a time limit that was entered."""
        self._limits.add(limit)
        if self.is_closed:
            end(limit)

    def discard(self, limit: asyncio.Timeout) -> None:
        """End a wait."""
        self._limits.discard(limit)

    def close(self) -> None:
        """End all waits, and those that begin later."""
        self.is_closed = True
        for limit in self._limits:
            end(limit)


def end(limit: asyncio.Timeout) -> None:
    """End a wait now, unless it has ended."""
    if not limit.expired():
        limit.reschedule(0.0)


class Closing(ABC):
    """Stands in an ``async with``, and is closed when the block is left."""

    __slots__ = ()

    @abstractmethod
    async def aclose(self) -> None:
        """Close what was opened."""

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
    """File and number of the line outside this package that is running now.

    These are kept, and no frame, which would keep all of its variables.
    """
    frame = inspect.currentframe()
    assert frame is not None  # noqa: S101  (CPython has frames)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("loanasync."):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    del frame
    return file, line


def unclosed_warning() -> Callable[[], None]:
    """Return a function that warns of an unclosed client, at the line outside this package that runs now."""
    file, line = caller_line()

    def warn() -> None:
        warnings.warn_explicit(
            "a LoanClient made here was left open: close it with aclose(), or use it as a context manager",
            ResourceWarning,
            file,
            line,
        )

    return warn


Owner = TypeVar("Owner")

_owners: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


def free_after_fork(owner: Owner, renew_lock: Callable[[Owner], None]) -> None:
    """Have an object replace its lock by a free one in each forked child, as long as the object exists.

    A thread that holds the lock does not exist in the child, so it would never be released there. The data
    that the lock guards must be consistent after each step of the thread that holds it.
    """
    _owners[owner] = renew_lock


def _renew() -> None:
    for reference in _owners.keyrefs():
        if (owner := reference()) is not None:
            _owners[owner](owner)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew)
