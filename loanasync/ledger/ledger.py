"""The ledger: applies the transitions of an entry to a store, by compare-and-swap."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar

from attrs import evolve

from loanasync._models.classes import Closing
from loanasync._models.requests import APPROVAL_NAMES
from loanasync._protocol.json import Malformed, decode
from loanasync.ledger import transitions
from loanasync.ledger.header import Header, check_service, marked, mismatch, new_header
from loanasync.ledger.model import (
    DECIDED,
    NO_REDIRECT,
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
)
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.store import PAGE_SIZE, Column, Found, FoundHeader, Store, Write

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1  # seconds between two reads of `Ledger.wait`
PURGED = DECIDED | {State.RELEASED}


class HeaderChangedError(Exception):
    """A claim was not written, because another client has changed the header: read it again."""


class Ledger(Closing):
    """An idempotency store for decisions: no approval is requested twice, and no decision is lost.

    Two operations write to an entry, `claim` and `settle`. Each is one atomic write. When it returns, the
    write is as durable as the store can make it, even if the process is killed or the machine loses power.

    - If several clients claim an entry at the same time, exactly one claim succeeds.
    - A released entry can be claimed again, with another token. A claim that arrives after its own release
      does not succeed.
    - A claim whose lease has expired is reported as UNKNOWN. The entry can then be claimed only by naming
      the token of that claim. Leases are measured by one clock, the store's.
    - A decision (APPROVED or REFUSED) of the service is written to an entry without a decision, even late
      and with the token of an older claim. A decision never expires and is never overwritten, except by a
      correction.
    - Any other settlement needs the token of the last claim.
    - A correction changes only an entry that a person decided or released. It names the token of the entry,
      has a note, and has a source other than the service.
    - A claim writes its subject. A claim without a subject keeps the subject of the entry.
    - The response stored in an entry stays there when the entry is taken over, and when it is settled to
      UNKNOWN, LOST or HELD without a body. A decision or a release replaces it.
    - When an entry leaves a settled state, that state is added to its history, which keeps the last 20.

    A ledger has a header with its identity: the service, the key and the cipher of its clients. A client that
    does not fit sends nothing. Every method raises `LedgerMismatchError` if the ledger does not exist, has
    another format, or was replaced. Any other exception means that the ledger cannot be used. After it, a
    claim must not be relied on, and a settlement may or may not have been written. Both can be repeated with
    the same token.

    Example:
        >>> from loanasync.ledger import MemoryLedger, Settlement, State, Subject
        >>> async def example(ledger):
        ...     subject = Subject(customer="5d41", order="A-1001")
        ...     await ledger.claim("k", token="t", payload="p", lease=90.0, subject=subject)
        ...     refused = Settlement(state=State.REFUSED, status=422)
        ...     await ledger.settle("k", token="t", payload="p", settlement=refused)
        ...     print([entry.state.name async for entry in ledger.scan()])
        ...     print([entry.order for entry in await ledger.entries_of("5d41")])
        ...     print(await ledger.get("k") == await ledger.wait("k", within=1.0))
        ...     print(await ledger.purge(older_than=3600))
        ...     await ledger.aclose()
        >>> run(example(MemoryLedger()))
        ['REFUSED']
        ['A-1001']
        True
        0
    """

    driver: ClassVar[str] = ""  # the module of the extra that connects to the server
    extra: ClassVar[str] = ""

    def __init__(self, store: Store, *, creates: bool) -> None:
        """Use a store. `creates`: let the first client create a missing ledger."""
        self._store = store
        self._creates = creates
        self.known_header: Header | None = None  # as it was last read, None if it must be read
        self._id = ""
        self._generation = self._epoch = 0  # the highest ones that were read
        self.unwritten: dict[str, Any] = {}  # settlements that its guards must still write
        self.number: int = 0  # the highest number of a write that the store has returned in this epoch
        self._offset: float | None = None  # the store's time minus `time.monotonic()`

    async def open(self, service: str, policy: LedgerPolicy) -> Header:
        """Return the header for a client, and create the ledger if it is missing and may be created.

        Args:
            service: Normalized base URL of the client.
            policy: The client's policy.

        Raises:
            LedgerMismatchError: The ledger does not exist, belongs to another service, or is marked.
        """
        if self._creates and not (self.known_header and self.known_header.service):
            found = (await self._store.header()).header
            if found is None or not found.service:
                new = self._new_header(service, policy, "" if found is None else found.id)
                await self._store.swap_header(new, replaces=found)  # another client may be faster
                self.known_header = None
        header = await self.header()
        if header.mark or header.service != service:  # a command may have changed it
            header = await self.refresh()
        check_service(header, service)
        if header.mark:
            raise marked(header)
        return header

    async def find_header(self) -> Header | None:
        """Read the header, and leave `known_header` as it is. None: the first call will create the ledger.

        Raises:
            LedgerMismatchError: The ledger does not exist, and is not created.
        """
        found = (await self._store.header()).header
        if self._creates and (found is None or not found.service):
            return None
        if found is None:
            raise mismatch(self._store.name, _MISSING)
        self._check_id(found)
        return found

    def _check_id(self, header: Header) -> None:
        if self._id not in ("", header.id):
            raise mismatch(
                header.name, "was replaced by another ledger: restart this process to use that one"
            )

    async def create_with(self, header: Header) -> bool:
        """Create an empty ledger with the identity of another one; return False if a ledger exists."""
        return await self._store.swap_header(evolve(header, name=self._store.name), replaces=None)

    async def create(self, service: str, policy: LedgerPolicy) -> bool:
        """Create an empty ledger; return False if it exists.

        Raises:
            LedgerMismatchError: A ledger on a server needs a key, or there are other data.
        """
        return await self._store.swap_header(self._new_header(service, policy), replaces=None)

    def _new_header(self, service: str, policy: LedgerPolicy, ledger: str = "") -> Header:
        makes_secret = not self.driver  # a ledger on a server needs a key
        return new_header(self._store.name, service, policy, makes_secret=makes_secret, ledger=ledger)

    async def expect_number(self, epoch: int, number: int) -> Header:
        """Compare the ledger with the last number that an earlier process saw, and its epoch.

        Returns:
            The header, which may have been read again.

        Raises:
            LedgerMismatchError: The ledger has lost writes since then.
        """
        if (self._epoch, self.number) < (epoch, number):
            self._epoch, self.number = epoch, number
            self.known_header = None  # reading it compares the numbers
        header = await self.header()
        if header.mark:  # another call may have found that
            raise marked(header)
        return header

    async def refresh(self) -> Header:
        """Read the header again, and return it.

        Raises:
            LedgerMismatchError: The ledger does not exist, or has another format.
        """
        try:
            return await self._read_header()
        except BaseException:
            self.known_header = None
            raise

    async def header(self) -> Header:
        """Return the header, read from the store if it may have changed.

        Raises:
            LedgerMismatchError: The ledger does not exist, or has another format.
        """
        return await self._read_header() if self.known_header is None else self.known_header

    async def _read_header(self) -> Header:
        epoch, number, sent = self._epoch, self.number, time.monotonic()
        found = await self._store.header()
        header = self._use(found)
        self._compare_clocks(found.now, sent)
        # Without a number, a copy from before a confirmation still has an earlier epoch.
        if (header.epoch, found.number or number) < (epoch, number):
            await self._mark_lost_writes(header)
            return await self.header()
        return header

    async def time_of_day(self) -> float:
        """Return the present time of the clock that dates entries, in seconds since 1970."""
        found = (await self._store.header()).time_of_day
        return time.time() if found is None else found

    async def change_header(self, header: Header, new: Header) -> bool:
        """Write a changed header with the next generation; return False if another client was faster."""
        self.known_header = None
        generation = max(self._generation, header.generation) + 1
        return await self._store.swap_header(evolve(new, generation=generation), replaces=header)

    def _use(self, found: FoundHeader) -> Header:
        """Use a header that was read from the store, unless it belongs to another ledger."""
        header = found.header
        if header is None:
            raise mismatch(self._store.name, _MISSING)
        self._check_id(header)
        known = self.known_header
        if known is not None and (header, header.transaction) == (known, known.transaction):
            header = known  # a claim in progress compares the object
        self._id, self.known_header = header.id, header
        # A slow response may be older than what other calls have read meanwhile.
        self.number = found.number if header.epoch > self._epoch else max(self.number, found.number)
        self._epoch = max(self._epoch, header.epoch)
        self._generation = max(self._generation, header.generation)
        return header

    async def _observed(
        self, operation: Awaitable[Found], header: Header, written: Entry | None = None
    ) -> tuple[Found, bool]:
        """Run an operation of the store, and compare the result with the header and with the last number.

        Args:
            operation: The operation.
            header: The header that the client has read.
            written: The entry to write, None for a read.

        Returns:
            The result, and True if the store has lost writes. Then the ledger is marked.
        """
        number, sent = self.number, time.monotonic()
        found = await operation
        self._compare_clocks(found.now, sent)
        least = number + (written is not None and found.has(written))
        if found.generation != header.generation:
            self.known_header = None
        elif found.number and found.number < least:
            await self._mark_lost_writes(header)
            return found, True
        else:
            self.number = max(self.number, found.number)
        return found, False

    def _compare_clocks(self, now: float, sent: float) -> None:
        """Update the offset of the store's clock. It may be too low, but never too high.

        So a claim is never written after its caller has given up. A slow response does not change the offset.
        """
        lowest, highest = now - time.monotonic(), now - sent
        is_known = self._offset is not None and lowest <= self._offset <= highest
        self._offset = self._offset if is_known else lowest

    async def _mark_lost_writes(self, header: Header) -> None:
        """Stop all clients until a person confirms: the store lacks a write that it confirmed."""
        stored: Header | None = header
        while stored is not None and not stored.mark:
            new = evolve(stored, mark="lost writes", epoch=max(self._epoch, stored.epoch) + 1)
            if await self.change_header(stored, new):
                return
            stored = (await self._store.header()).header  # another client has changed it
        self.known_header = None

    async def claim(
        self,
        key: str,
        *,
        token: str,
        payload: str,
        lease: float,
        over: str | None = None,
        subject: Subject = NO_SUBJECT,
        header: Header | None = None,
        within: float | None = None,
    ) -> Entry:
        """Claim an entry that does not exist or is released, or take over an unsettled one.

        To take over an entry that is UNKNOWN, LOST or HELD, name its token in `over`. An entry with a
        decision or an unexpired claim cannot be claimed. Repeating a claim with the same token
        has no further effect.

        Args:
            key: Key of the entry.
            token: A new, unique token for this claim.
            payload: Digest of the request's data.
            lease: Seconds until the claim expires.
            over: Token of the unsettled entry that this claim takes over.
            subject: The customer and the order of the approval.
            header: The header under which the key was derived. None: the present one.
            within: Seconds after which the claim is not written any more.

        Returns:
            The current entry. The claim succeeded if ``entry.is_claimed_by(token)``.

        Raises:
            HeaderChangedError: The ledger has another header than the given one; nothing was written.
            Exception: The ledger cannot be used. The claim may have been written.
        """
        until = None if within is None else time.monotonic() + within
        stored = None if over is None else await self._read(key, await self.header())
        claim = partial(transitions.claim, key=key, token=token, payload=payload, over=over, subject=subject)
        return await self._write(stored, claim, lease, header, until)

    async def settle(
        self,
        key: str,
        *,
        token: str,
        payload: str,
        settlement: Settlement,
        over: str | None = None,
        subject: Subject = NO_SUBJECT,
        claimed: Entry | None = None,
    ) -> Entry:
        """Write the outcome of a claim, or what a person or another source states.

        A decision of the service is written whatever token is given, unless the entry has a decision. So is
        its response that could not be classified, if the entry is unknown and has no response. Any other
        settlement is written only with the token of the last claim. If the entry does not exist, the
        settlement creates it.

        Args:
            key: Key of the entry.
            token: Token of the claim; for a stated outcome, a new token.
            payload: Digest of the request's data.
            settlement: The outcome.
            over: For a stated outcome: revision of the entry that it settles or corrects.
            subject: For an entry that does not exist: its customer and its order.
            claimed: The entry as `claim` returned it, which saves a read.

        Returns:
            The current entry. If the settlement was not allowed, the entry is unchanged.

        Raises:
            Exception: The ledger cannot be used. The settlement may have been written.
        """
        stored = claimed if claimed is not None else await self._read(key, await self.header())
        settle = partial(
            transitions.settle,
            key=key,
            token=token,
            payload=payload,
            settlement=settlement,
            over=over,
            subject=subject,
        )
        return await self._write(stored, settle)

    async def _write(
        self,
        stored: Entry | None,
        transition: Callable[..., Entry | None],
        lease: float | None = None,
        header: Header | None = None,
        until: float | None = None,
    ) -> Entry:
        """Write the entry after a transition, again if another write was faster; return the current entry."""
        while True:
            current = header or self.known_header or await self.header()
            draft = transition(stored, revision=os.urandom(8).hex())
            if draft is None:
                assert stored is not None  # noqa: S101  (both transitions of a missing entry are allowed)
                return transitions.as_read(stored)
            expects = "" if stored is None else stored.revision
            not_after = None if until is None or self._offset is None else until + self._offset
            write = Write(draft, current, expects, lease, not_after)
            found, has_lost_writes = await self._observed(self._store.swap(write), current, draft)
            if has_lost_writes and lease is not None:
                raise marked(evolve(current, mark="lost writes"))
            stored = found.entry
            if stored is not None and found.has(draft):
                return stored
            # The claim may be a repeat of one that was written before the header changed.
            is_ours = stored is not None and stored.is_claimed_by(draft.token)
            if header is not None and found.generation != header.generation and not is_ours:
                raise HeaderChangedError
            is_late = expects == ("" if stored is None else stored.revision)
            if is_late and until is not None and until <= time.monotonic():
                raise TimeoutError  # otherwise the offset of the store's clock was too low; now it is better

    async def put(self, entry: Entry) -> Entry:
        """Write an entry of another ledger as it is, unless the stored one is worth as much.

        Erased is worth more than decided, decided more than held, lost or unknown, and these more than in
        flight (which is written as unknown), released or nothing.

        Returns:
            The current entry.

        Raises:
            Exception: The ledger cannot be used.
        """
        stored = await self._read(entry.key, await self.header())
        return await self._write(stored, partial(transitions.put, entry=entry))

    async def erase(self, key: str, customer: str) -> Entry:
        """Replace an entry by one without data, unless it is in flight; return the current entry.

        Only a person can release it. No settlement and no copy of another ledger changes it.

        Args:
            key: Key of the entry.
            customer: Digest of its customer.

        Raises:
            Exception: The ledger cannot be used.
        """
        stored = await self._read(key, await self.header())
        erase = partial(transitions.erase, key=key, token=os.urandom(16).hex(), customer=customer)
        return await self._write(stored, erase)

    async def get(self, key: str) -> Entry | None:
        """Return the current entry, or None if it does not exist.

        Raises:
            Exception: The ledger cannot be used.
        """
        entry = await self._read(key, await self.header())
        return None if entry is None else transitions.as_read(entry)

    async def _read(self, key: str, header: Header) -> Entry | None:
        found, _ = await self._observed(self._store.read(key, header), header)
        return found.entry

    async def wait(self, key: str, within: float) -> Entry | None:
        """Wait until the entry is not INFLIGHT, and return it.

        Args:
            key: Key of the entry.
            within: Seconds after which the current entry is returned in any case.

        Returns:
            The current entry, or None if it does not exist.

        Raises:
            Exception: The ledger cannot be used.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + within
        pause = _FIRST_PAUSE
        while True:
            entry = await self.get(key)
            left = until - clock()
            if entry is None or entry.state is not State.INFLIGHT or left <= 0:
                return entry
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def scan(self, *states: State, begins: str = "") -> AsyncIterator[Entry]:
        """Iterate over the entries in these states, in no particular order.

        The entries are read in pages, so they are never all in memory. An entry that changes during the
        iteration may be missed, may be returned in its earlier state, or may be returned twice. Only entries
        in these states are read.

        Args:
            states: States of the entries; all states if none is given.
            begins: Beginning of the entries' keys, such as the short key that a command prints.

        Raises:
            Exception: The ledger cannot be used.
        """
        for column, value in _lists(states):
            async for page in self._pages(column, value, begins):
                for entry in map(transitions.as_read, page):
                    if entry.key.startswith(begins) and (not states or entry.state in states):
                        yield entry

    async def _pages(self, column: Column, value: str, begins: str = "") -> AsyncIterator[Sequence[Entry]]:
        """Yield the pages of a list, ordered by keys, with all keys that begin with a text."""
        header, first, last = await self.header(), begins, ""
        while last.startswith(begins) or not last:
            page = await self._store.page(column, value, first, last, header)
            yield page
            if len(page) < PAGE_SIZE:
                return
            first = last = page[-1].key

    async def entries_of(self, customer: str) -> list[Entry]:
        """Return the entries of all orders of a customer, oldest first.

        Args:
            customer: Digest of the customer, from `Subject`.

        Raises:
            Exception: The ledger cannot be used.
        """
        pages = self._pages("customer", customer)
        found = [transitions.as_read(entry) async for page in pages for entry in page]
        return sorted(found, key=lambda entry: (entry.claimed, entry.key))

    async def purge(self, older_than: float) -> int:
        """Delete decided and released entries that have not changed for a time; return their number.

        Entries that are in flight or unsettled are not deleted. The approval of a deleted entry can be
        requested again, so purge only data that the shop must not keep any longer. Entries are deleted in
        pages; other operations run between them.

        Args:
            older_than: Seconds since the last change.

        Raises:
            Exception: The ledger cannot be used.
        """
        header, before, deleted = await self.header(), await self.time_of_day() - older_than, 0
        for column, value in _lists(PURGED):
            async for page in self._pages(column, value):
                old = [entry for entry in page if entry.state in PURGED and entry.changed <= before]
                deleted += await self._store.drop(old, header) if old else 0
        return deleted

    def reason(self, error: BaseException) -> str:
        """Return the cause of an exception of this ledger and the remedy, or an empty text."""
        return self._store.reason(error)

    async def aclose(self) -> None:
        """Close connections and files. A later call of any method opens them again."""
        await self._store.aclose()


def _lists(states: Collection[State]) -> list[tuple[Column, str]]:
    """Return the lists to read, in the order in which an entry usually passes through the states.

    So an entry that changes during a scan is returned twice rather than missed.
    """
    # An entry that is stored as INFLIGHT is reported as UNKNOWN once its lease has expired.
    stored = {*states, *([State.INFLIGHT] if State.UNKNOWN in states else ())}
    return [("state", state) for state in State if state in stored] or [("", "")]


def lacks_redirect(entry: Entry) -> bool:
    """Return True for an approval without a redirect URL. An encrypted response counts as having one."""
    if entry.state is not State.APPROVED:
        return False
    if entry.body is None or entry.note == NO_REDIRECT:
        return True
    try:
        redirect = decode(entry.body).get(APPROVAL_NAMES["redirect_url"])
    except Malformed:
        return False
    return not (isinstance(redirect, str) and redirect.strip())


_MISSING = "does not exist: check the name, or run loanasync ledger create"
