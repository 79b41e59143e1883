"""Base class of the ledgers that other processes can open, and the parts that their backends share."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import ClassVar

from attrs import frozen
from yarl import URL

from loanasync._lifecycle import Closing
from loanasync._models.dialect import APPROVAL_NAMES
from loanasync._protocol.json import Malformed, decode
from loanasync.errors import ConfigurationError
from loanasync.ledger.model import NO_REDIRECT, Entry, State
from loanasync.ledger.protocol import DecisionLedger

CLOSE_TIMEOUT = 5.0  # seconds that a server may take to end its connections
PAGE_SIZE = 500  # entries that a list reads at once, between which others have their turn
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1  # seconds between two reads of `poll`

# Parts of a ledger that a backend reads by an index; the others are the stored states.
ALL = "all"
WITHOUT_REDIRECT = "without redirect"  # approved entries that have a note or no body

# In SQL: the condition of each part, and the indexes that a table needs for them. "IS TRUE" keeps SQLite from
# reading all approvals by the other index.
_CONDITIONS: Mapping[str, str] = {
    ALL: "TRUE",
    WITHOUT_REDIRECT: "(state = 'approved' AND (body IS NULL OR note <> '')) IS TRUE",
    **{state: f"state = '{state}'" for state in State},
}
INDEXES = ("(state, key)", f"(key) WHERE {_CONDITIONS[WITHOUT_REDIRECT]}")


@frozen(kw_only=True)
class Address:
    """The form of the addresses by which the command line opens the ledgers of a backend.

    Args:
        schemes: The schemes of the addresses.
        parameter: The query parameter that is an argument of the class; empty without one.
        absent: The message that there is no ledger at an address; ``{file}`` is replaced by its path.
    """

    schemes: tuple[str, ...]
    parameter: str = ""
    absent: str


class StoredLedger(Closing, DecisionLedger):
    """A ledger with an address, which the command line can open.

    To add a backend, derive from this class, define `address` and the methods of `DecisionLedger`
    that are missing here, and add the class to ``loanasync.ledger.BACKENDS``.
    """

    address: ClassVar[Address]

    @abstractmethod
    async def exists(self) -> bool:
        """Return True if there is a ledger. Create nothing."""

    @abstractmethod
    async def _read_page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        """Read a page of a list.

        Args:
            part: A state, `ALL` or `WITHOUT_REDIRECT`.
            first: The key from which on entries are read.
            last: A key that is left out: the last one of the page before.

        Returns:
            The last key of the page, empty after the last page; and its entries, ordered by their keys.
        """

    async def wait(self, key: str, within: float) -> Entry | None:
        """Return the entry as soon as it is not INFLIGHT, or as it is after `within` seconds."""
        return await poll(self.get, key, within)

    async def scan(
        self, *states: State, begins: str = "", without_redirect: bool = False
    ) -> AsyncIterator[Entry]:
        """All entries in these states, or all there are."""
        for part in _parts_to_read(states, without_redirect=without_redirect):
            last, entries = await self._read_page(part, begins, "")
            while last:
                for entry in entries:
                    if is_listed(entry, states, begins, without_redirect=without_redirect):
                        yield entry
                if not last.startswith(begins):  # keys with this beginning stand together
                    break
                last, entries = await self._read_page(part, last, last)


def _parts_to_read(states: Collection[State], *, without_redirect: bool) -> list[str]:
    """Return the parts to read, in the order in which entries go from one state to the next.

    An entry that changes meanwhile is read twice rather than missed.
    """
    if without_redirect:
        return [WITHOUT_REDIRECT]
    if not states:
        return [ALL]
    # An entry in flight is UNKNOWN from the end of its lease on.
    stored = {*states, *([State.INFLIGHT] if State.UNKNOWN in states else ())}
    return [state for state in State if state in stored]


def is_listed(entry: Entry, states: Collection[State], begins: str, *, without_redirect: bool) -> bool:
    """Return True if an entry, as seen now, is in a list."""
    return (
        (not states or entry.state in states)
        and entry.key.startswith(begins)
        and (not without_redirect or lacks_redirect(entry))
    )


def lacks_redirect(entry: Entry) -> bool:
    """Return True for an approval without a redirect; an encrypted response is taken to have one."""
    if entry.state is not State.APPROVED:
        return False
    if entry.body is None or entry.note == NO_REDIRECT:
        return True
    try:
        redirect = decode(entry.body).get(APPROVAL_NAMES["redirect_url"])
    except Malformed:
        return False
    return not (isinstance(redirect, str) and redirect.strip())


async def poll(get: Callable[[str], Awaitable[Entry | None]], key: str, within: float) -> Entry | None:
    """Read an entry again and again, less often the longer it takes, as `DecisionLedger.wait` promises."""
    clock = asyncio.get_running_loop().time
    until = clock() + within
    pause = _FIRST_PAUSE
    while True:
        entry = await get(key)
        left = until - clock()
        if entry is None or entry.state is not State.INFLIGHT or left <= 0:
            return entry
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def page_queries(select: str, first: str, last: str) -> dict[str, str]:
    """Return the SQL statement that reads a page, for each part of a table.

    Args:
        select: Beginning of the statement, as far as the name of the table.
        first: Placeholder of the first key.
        last: Placeholder of the last key that was read.
    """
    page = f"key >= {first} AND key <> {last} ORDER BY key LIMIT {PAGE_SIZE}"
    return {part: f"{select} WHERE {condition} AND {page}" for part, condition in _CONDITIONS.items()}


def missing_library_error(library: str, extra: str) -> ConfigurationError:
    """Return the error for a backend whose library is not installed."""
    return ConfigurationError("ledger", f"needs {library}: pip install 'loanasync[{extra}]'")


def masked_url(url: str) -> str:
    """Return the address of a server without any part that could be a password."""
    try:
        plain = str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # several hosts, for one
        return "***"
    return "***" if "@" in plain else plain  # a slash in a password, for one
