"""Objects with `aclose()`, and the warning about a client that was not closed."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


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
