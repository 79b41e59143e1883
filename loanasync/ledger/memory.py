"""A ledger in the memory of one process."""

import threading
import time
from collections.abc import AsyncIterator

from loanasync._lifecycle import Closing, free_after_fork
from loanasync.ledger import transitions
from loanasync.ledger.backend import is_listed, poll
from loanasync.ledger.model import DECIDED, NO_SUBJECT, Entry, Settlement, State, Subject


class MemoryLedger(Closing):
    """A ledger in memory, for tests and for shops that run in one process.

    All clients, event loops and threads of the process can share it. Its entries end with the process.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> run(MemoryLedger().get("missing"))
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._replace_lock()
        free_after_fork(self, MemoryLedger._replace_lock)
        # Read the time of day only once, so that a change of the machine's clock cannot end a lease.
        self._started = time.time() - time.monotonic()

    def _replace_lock(self) -> None:
        """Create a new lock. In a forked child, a thread that does not exist there may hold the old one."""
        self._lock = threading.Lock()  # held for microseconds, never across an await

    def _now(self) -> float:
        return self._started + time.monotonic()

    async def claim(
        self,
        key: str,
        *,
        token: str,
        payload: str,
        lease: float,
        over: str | None = None,
        subject: Subject = NO_SUBJECT,
    ) -> Entry:
        """See `DecisionLedger.claim`."""
        with self._lock:
            entry = transitions.claim(
                self._entries.get(key),
                key,
                token=token,
                payload=payload,
                lease=lease,
                over=over,
                subject=subject,
                now=self._now(),
            )
            self._entries[key] = entry
        return entry

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """See `DecisionLedger.settle`."""
        with self._lock:
            entry = transitions.settle(
                self._entries.get(key),
                key,
                token=token,
                payload=payload,
                settlement=settlement,
                over=over,
                now=self._now(),
            )
            self._entries[key] = entry
        return entry

    async def get(self, key: str) -> Entry | None:
        """See `DecisionLedger.get`."""
        entry = self._entries.get(key)
        return None if entry is None else transitions.as_of(entry, self._now())

    async def wait(self, key: str, within: float) -> Entry | None:
        """See `DecisionLedger.wait`."""
        return await poll(self.get, key, within)

    async def scan(
        self, *states: State, begins: str = "", without_redirect: bool = False
    ) -> AsyncIterator[Entry]:
        """See `DecisionLedger.scan`."""
        for key in tuple(self._entries):
            entry = await self.get(key)
            if entry and is_listed(entry, states, begins, without_redirect=without_redirect):
                yield entry

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """See `DecisionLedger.find`."""
        now, sought = self._now(), Subject(customer=customer, order=order)
        found = [
            entry for entry in tuple(self._entries.values()) if transitions.matches_subject(entry, sought)
        ]
        return transitions.sort_by_age(transitions.as_of(entry, now) for entry in found)

    async def purge(self, older_than: float) -> int:
        """See `DecisionLedger.purge`."""
        before = self._now() - older_than
        with self._lock:
            old = [
                key
                for key, entry in self._entries.items()
                if entry.state in DECIDED | {State.RELEASED} and entry.changed <= before
            ]
            for key in old:
                del self._entries[key]
        return len(old)

    async def aclose(self) -> None:
        """Do nothing. The entries stay."""
