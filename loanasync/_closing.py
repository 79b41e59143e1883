"""What is closed once can be closed by a block of code."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


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
