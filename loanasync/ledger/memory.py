"""A ledger in the memory of one process."""

import time
from collections.abc import Iterable, Sequence

from attrs import evolve

from loanasync._models.classes import ForkSafe
from loanasync.ledger.header import Header, mismatch, new_header
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import Entry
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.store import PAGE_SIZE, Column, Found, FoundHeader, Write


class MemoryLedger(Ledger):
    """A ledger in memory, for tests and for shops that run in one process.

    All clients, event loops and threads of the process can share it. Its entries end with the process.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> run(MemoryLedger().get("missing"))
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore(), creates=True)


class MemoryStore(ForkSafe):
    """Entries in a dict, with the monotonic times at which their leases end."""

    name = "in memory"

    def __init__(self) -> None:
        super().__init__()
        # The first client adds its service and its key.
        self._header = new_header(self.name, "", LedgerPolicy(), makes_secret=True)
        self._entries: dict[str, tuple[Entry, float]] = {}
        self._keys: dict[str, set[str]] = {}  # by customer, for the read before each claim
        self._number = 1  # 0 means that a store cannot tell

    async def header(self) -> FoundHeader:
        """See `Store.header`."""
        return FoundHeader(self._header, time.monotonic(), self._number)

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        """See `Store.swap_header`."""
        with self.lock:
            is_expected = replaces is not None and replaces == self._header
            if is_expected:
                self._header = header
        return is_expected

    async def read(self, key: str, header: Header) -> Found:
        """See `Store.read`."""
        self.check(header)
        now, stored = time.monotonic(), self._entries.get(key)
        entry = None if stored is None else _as_read(stored, now)
        return Found(entry, now, self._header.generation, self._number)

    async def swap(self, write: Write) -> Found:
        """See `Store.swap`."""
        self.check(write.header)
        with self.lock:
            now, generation = time.monotonic(), self._header.generation
            stored = self._entries.get(write.entry.key)
            revision, left = ("", 0.0) if stored is None else (stored[0].revision, stored[1] - now)
            end = write.set_times(revision, left, generation=generation, now=now, time_of_day=time.time())
            if end is None:
                entry = None if stored is None else _as_read(stored, now)
                return Found(entry, now, generation, self._number)
            self._number += 1
            self._entries[write.entry.key] = (write.entry, end)
            self._keys.setdefault(write.entry.customer, set()).add(write.entry.key)
            return Found(write.entry, now, generation, self._number)

    async def page(
        self, column: Column, value: str, first: str, last: str, header: Header
    ) -> Sequence[Entry]:
        """See `Store.page`."""
        self.check(header)
        keys = self._keys.get(value, ()) if column == "customer" else self._entries
        found = {key: self._entries.get(key) for key in tuple(keys) if key >= first and key != last}
        listed = sorted(
            key
            for key, stored in found.items()
            if stored is not None and (not column or getattr(stored[0], column) == value)
        )
        return self._read_all(listed[:PAGE_SIZE])

    async def drop(self, entries: Sequence[Entry], header: Header) -> int:
        """See `Store.drop`."""
        self.check(header)
        revisions = {entry.key: entry.revision for entry in entries}
        with self.lock:
            stored = {key: self._entries[key][0] for key in revisions if key in self._entries}
            dropped = [key for key, entry in stored.items() if entry.revision == revisions[key]]
            for key in dropped:
                self._keys[stored[key].customer].discard(key)
                del self._entries[key]
        return len(dropped)

    def reason(self, error: BaseException) -> str:
        """See `Store.reason`."""
        del error
        return ""

    async def aclose(self) -> None:
        """Do nothing. The entries stay."""

    def check(self, header: Header) -> None:
        """Raise LedgerMismatchError unless the header has the id of the stored one."""
        if header.id != self._header.id:
            raise mismatch(self.name, "was replaced by another ledger")

    def _read_all(self, keys: Iterable[str]) -> list[Entry]:
        now = time.monotonic()
        stored = (self._entries.get(key) for key in keys)
        return [_as_read(each, now) for each in stored if each is not None]


def _as_read(stored: tuple[Entry, float], now: float) -> Entry:
    entry, end = stored
    return evolve(entry, left=end - now)
