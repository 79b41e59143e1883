"""Base class for objects with `aclose()`, and the waits that closing ends early."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closing", "Waits"]


class Waits:
    """The waits in progress of an object that can be closed; closing ends each of them at once.

    A wait is an `asyncio.Timeout` that was entered. It ends with TimeoutError, and `is_closed` says why.
    """

    def __init__(self) -> None:
        self.is_closed = False
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
