"""Locks that a forked child finds free."""

import os
import threading
from weakref import WeakSet


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
