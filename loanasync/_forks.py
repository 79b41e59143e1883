"""Locks that a forked child finds free."""

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

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
