"""Files of SQLite's over a fork: none is open while a process forks, or parent and child lose decisions."""

import os
import threading
from typing import Protocol
from weakref import WeakValueDictionary


class _User(Protocol):
    """Who has a file open."""

    def let_go(self) -> None:
        """Close it; it is opened anew when it is needed next."""


class _Forking:
    """Those who use files, and forks, take turns: ``with FORKING`` around each use.

    SQLite notes within a process which locks that has on a file. A forked child has these notes and not the
    locks: what it opened then would be no one's to the other processes, and the last of them to close the
    file would delete the log that the child goes on to write its decisions to.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._at_work = 0
        self._is_forking = False
        self._users: WeakValueDictionary[int, _User] = WeakValueDictionary()
        if hasattr(os, "register_at_fork"):  # Windows does not fork
            after = {"after_in_parent": self._after, "after_in_child": self._after}
            os.register_at_fork(before=self._before, **after)

    def tell(self, user: _User) -> None:
        """Have somebody let go of their file before a fork."""
        self._users[id(user)] = user

    def __enter__(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._is_forking)
            self._at_work += 1

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._at_work -= 1
            self._turn.notify_all()

    def _before(self) -> None:
        self._turn.acquire()  # until after the fork: nobody else may have it in the child
        self._is_forking = True
        self._turn.wait_for(lambda: not self._at_work)
        for reference in self._users.valuerefs():
            if (user := reference()) is not None:
                user.let_go()

    def _after(self) -> None:
        self._is_forking = False
        self._turn.notify_all()
        self._turn.release()


FORKING = _Forking()
