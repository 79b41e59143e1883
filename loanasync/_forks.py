"""Locks that are free in a forked child, whichever thread of the parent held them."""

import os
from typing import Protocol
from weakref import WeakValueDictionary

__all__ = ["free_after_fork"]


class _Owner(Protocol):
    """An object with a lock."""

    def _renew_lock(self) -> None:
        """Replace the lock by a free one."""


_owners: WeakValueDictionary[int, _Owner] = WeakValueDictionary()


def free_after_fork(owner: _Owner) -> None:
    """Have an object replace its lock in each forked child.

    A thread that holds the lock does not exist in the child, so it would never be released there. The data
    that the lock guards must be consistent after each step of the thread that holds it.
    """
    _owners[id(owner)] = owner


def _renew() -> None:
    for reference in _owners.valuerefs():
        if (owner := reference()) is not None:
            owner._renew_lock()  # noqa: SLF001  (not for users of the object)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew)
