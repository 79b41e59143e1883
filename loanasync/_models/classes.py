"""Base classes of the package, and the module names of its public classes and functions."""

import inspect
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from types import FunctionType, TracebackType
from typing import Any, Self
from weakref import WeakSet


def name_by_package(namespace: dict[str, Any], package: str = "") -> None:
    """Set `__module__` of all classes and functions in a module's `__all__` to their package.

    Tracebacks, pickles and the documentation then show the public import path, so private modules can move.

    Args:
        namespace: The module's `globals()`.
        package: The package that has these names, by default the module.
    """
    for name in namespace["__all__"]:
        public = namespace.get(name)
        if isinstance(public, type | FunctionType):
            public.__module__ = package or namespace["__name__"]


class NotInstalled:
    """Replaces, in annotations, the classes of an optional package that is not installed."""

    def __class_getitem__(cls, _: object) -> type:
        return cls


class LazyModule:
    """A module that is optional or slow to import. It is imported when an annotation is evaluated.

    A name that is imported under `TYPE_CHECKING` has no value, and `typing.get_type_hints` raises NameError.

    Args:
        name: The full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # of an object that a tool inspects, such as `__wrapped__`
            raise AttributeError(name)
        try:
            return getattr(import_module(self._name), name)
        except ModuleNotFoundError:
            return NotInstalled


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


class ForkSafe:
    """Base class of objects with a lock that a forked child finds free.

    A thread of the parent that holds the lock does not exist in the child, so the lock would never be
    released there. Each step of that thread must leave the guarded data consistent.

    The lock is held for microseconds, never across an await. It is reentrant, because garbage collection can
    end another call in the thread that holds it.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _fork_safe.add(self)


_fork_safe: WeakSet[ForkSafe] = WeakSet()


def _renew_locks() -> None:
    for each in tuple(_fork_safe):
        each.lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew_locks)
