"""The protocol of stores: a store keeps a header and entries, and decides nothing about them."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from attrs import frozen

from loanasync.ledger.header import Header
from loanasync.ledger.model import Entry, set_times

Column: TypeAlias = Literal["", "state", "customer"]

PAGE_SIZE = 500  # entries that `Store.page` returns at once; other calls may run between two pages


@frozen
class FoundHeader:
    """The header in a store, None if there is no ledger, with the time and the number of `Found`.

    The store dates entries by `time_of_day`, None for the clock of this machine.
    """

    header: Header | None
    now: float
    number: int
    time_of_day: float | None = None


@frozen
class Found:
    """The entry of a key as it is in a store.

    Args:
        entry: The entry, None if it does not exist.
        now: Time of the store in seconds; only for comparison with other times of this store.
        generation: Generation of the header in the store.
        number: Number of the store's last write; of this write, after a swap. It only grows, unless the store
            has lost writes. 0 if the store cannot tell.
    """

    entry: Entry | None
    now: float
    generation: int
    number: int

    def has(self, entry: Entry) -> bool:
        """Return True if an entry with this revision is stored, as after a swap that has written it."""
        return self.entry is not None and self.entry.revision == entry.revision


@frozen
class Write:
    """An entry to write, and the conditions for it.

    The store sets the times of the entry that it writes: `changed` and `claimed` to its time of day if they
    are 0, and `expires` to the end of the lease. Without a lease, `expires` stays as it is stored.

    Args:
        entry: The entry, with a new revision.
        header: The header that the client has read. If there is a lease, the stored header must have its
            generation, otherwise nothing is written.
        expects: Revision of the stored entry; empty if there must be none.
        lease: Seconds until a claim expires; None for other writes.
        not_after: Time of the store after which nothing is written, see `Found.now`.
    """

    entry: Entry
    header: Header
    expects: str
    lease: float | None = None
    not_after: float | None = None

    def set_times(
        self, revision: str, left: float, *, generation: int, now: float, time_of_day: float
    ) -> float | None:
        """Check the conditions, and set the times of the entry, for a store that holds a lock.

        Args:
            revision: Revision of the stored entry; empty if there is no entry.
            left: Seconds until the lease of the stored entry expires; 0 without an entry.
            generation: Generation of the stored header.
            now: Time of the store.
            time_of_day: Time with which entries are dated.

        Returns:
            The time of the store at which the lease ends; None if the entry must not be written.
        """
        entry = self.entry
        is_late = self.not_after is not None and now > self.not_after
        is_refused = self.lease is not None and generation != self.header.generation
        if is_late or is_refused or revision != self.expects:
            return None
        expires = entry.expires or time_of_day
        if self.lease is not None:
            left, expires = self.lease, time_of_day + self.lease
        claimed, changed = entry.claimed or time_of_day, entry.changed or time_of_day
        set_times(entry, claimed=claimed, changed=changed, expires=expires, left=left)
        return now + left


class Store(Protocol):
    """Entries by their keys, and the header of the ledger that they belong to.

    Every method is atomic. A write is as durable as the store can make it when the method returns.

    All methods but the first two raise LedgerMismatchError if the store has no header with the given id, and
    then write nothing. Any other exception means that the store is not available. The write may have been
    applied then, or may still be applied.
    """

    name: str
    """Name in messages, such as the path or the address without the password."""

    async def header(self) -> FoundHeader:
        """Return the header.

        Raises:
            LedgerMismatchError: There are other data, a ledger of another format, or a part of a ledger.
        """

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        """Write the header if the stored one has the id and the generation of `replaces`; return True if so.

        With `replaces=None`, create an empty ledger if the store has none yet. When the method returns, every
        claim that was written under the earlier generation is visible to all readers, and no other is
        written.
        """

    async def read(self, key: str, header: Header) -> Found:
        """Return the entry of a key."""

    async def swap(self, write: Write) -> Found:
        """Write an entry if the conditions are met. Return it, or else the stored one."""

    async def page(
        self, column: Column, value: str, first: str, last: str, header: Header
    ) -> Sequence[Entry]:
        """Return the next `PAGE_SIZE` entries with a value in a column, ordered by their keys.

        Args:
            column: Name of the column; empty for all entries.
            value: The value, empty for all entries.
            first: First key of the page.
            last: A key to leave out: the last one of the previous page; empty for the first page.
            header: The header that the client has read.
        """

    async def drop(self, entries: Sequence[Entry], header: Header) -> int:
        """Delete those entries whose revision is still the stored one; return their number."""

    def reason(self, error: BaseException) -> str:
        """Return the cause of an exception of this store and the remedy, or an empty text."""

    async def aclose(self) -> None:
        """Close connections and files. A later call opens them again."""
