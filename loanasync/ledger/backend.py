"""Base class of ledgers that several processes can open, and functions that the backends share."""

import asyncio
import re
import sys
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

CLOSE_TIMEOUT = 5.0  # seconds to wait for a server when connections are closed
PAGE_SIZE = 500  # entries that `scan` reads at once; other calls may run between two pages
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1  # seconds between two reads of `poll`

# The lists that a backend reads by an index are: one for each stored state, and these two.
ALL = "all"
WITHOUT_REDIRECT = "without redirect"  # approved entries that have a note or no body

_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")  # of a TypeError
_UNKNOWN_NAME = re.compile(r"^module '\S+' has no attribute '(\w+)'")  # of an AttributeError

# The SQL condition of each list, and the indexes that a table needs for them. "IS TRUE" makes SQLite use the
# partial index for `WITHOUT_REDIRECT`; with the index by state it would read all approvals.
_CONDITIONS: Mapping[str, str] = {
    ALL: "TRUE",
    WITHOUT_REDIRECT: "(state = 'approved' AND (body IS NULL OR note <> '')) IS TRUE",
    **{state: f"state = '{state}'" for state in State},
}
INDEXES = ("(state, key)", f"(key) WHERE {_CONDITIONS[WITHOUT_REDIRECT]}")


@frozen(kw_only=True)
class Address:
    """The form of the addresses with which the command line opens the ledgers of a backend.

    Args:
        schemes: URL schemes of the addresses.
        parameter: Query parameter that is passed to the class as an argument, or empty.
        absent: Error message for an address without a ledger; ``{file}`` is replaced by its path.
    """

    schemes: tuple[str, ...]
    parameter: str = ""
    absent: str


class StoredLedger(Closing, DecisionLedger):
    """Base class of ledgers that have an address, so that the command line can open them.

    To add a backend, derive from this class, define `address` and the methods of `DecisionLedger` that are
    not defined here, and add the class to ``loanasync.ledger.BACKENDS``. If it needs an extra, define
    `driver` and `extra` too.
    """

    address: ClassVar[Address]
    driver: ClassVar[str] = ""  # the module of the extra that connects to the server
    extra: ClassVar[str] = ""

    @abstractmethod
    async def exists(self) -> bool:
        """Return True if the ledger exists. Create nothing."""

    @abstractmethod
    async def _read_page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        """Read one page of a list.

        Args:
            part: The list: a state, `ALL` or `WITHOUT_REDIRECT`.
            first: First key of the page.
            last: A key to leave out: the last one of the previous page; empty for the first page.

        Returns:
            The last key of the page, empty after the last page; and its entries, ordered by their keys.
        """

    async def wait(self, key: str, within: float) -> Entry | None:
        """See `DecisionLedger.wait`."""
        return await poll(self.get, key, within)

    async def scan(
        self, *states: State, begins: str = "", without_redirect: bool = False
    ) -> AsyncIterator[Entry]:
        """See `DecisionLedger.scan`."""
        for part in _parts_to_read(states, without_redirect=without_redirect):
            last, entries = await self._read_page(part, begins, "")
            while last:
                for entry in entries:
                    if is_listed(entry, states, begins, without_redirect=without_redirect):
                        yield entry
                if not last.startswith(begins):  # pages are ordered by key
                    break
                last, entries = await self._read_page(part, last, last)


def _parts_to_read(states: Collection[State], *, without_redirect: bool) -> list[str]:
    """Return the lists to read, in the order in which an entry usually passes through the states.

    So an entry that changes during a scan is returned twice rather than missed.
    """
    if without_redirect:
        return [WITHOUT_REDIRECT]
    if not states:
        return [ALL]
    # An entry that is stored as INFLIGHT is reported as UNKNOWN once its lease has expired.
    stored = {*states, *([State.INFLIGHT] if State.UNKNOWN in states else ())}
    return [state for state in State if state in stored]


def is_listed(entry: Entry, states: Collection[State], begins: str, *, without_redirect: bool) -> bool:
    """Return True if the current entry belongs to the result of a scan."""
    return (
        (not states or entry.state in states)
        and entry.key.startswith(begins)
        and (not without_redirect or lacks_redirect(entry))
    )


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


async def poll(get: Callable[[str], Awaitable[Entry | None]], key: str, within: float) -> Entry | None:
    """Implement `DecisionLedger.wait` by reading the entry repeatedly, with growing pauses."""
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
    """Return the SQL statements for `StoredLedger._read_page`, one for each list.

    Args:
        select: Beginning of the statement, up to and including the name of the table.
        first: Placeholder for the first key of the page.
        last: Placeholder for the last key of the previous page.
    """
    page = f"key >= {first} AND key <> {last} ORDER BY key LIMIT {PAGE_SIZE}"
    return {part: f"{select} WHERE {condition} AND {page}" for part, condition in _CONDITIONS.items()}


def format_error(name: str, *, is_earlier: bool) -> ConfigurationError:
    """Return the error for a ledger whose format this version cannot read."""
    # Do not suggest a new ledger for the same customers: all of them would be requested again.
    problem = (
        "has an earlier format, which this version of loanasync cannot read: keep it, and finish its "
        "approvals with the version that wrote it. Name a new ledger for other customers only"
        if is_earlier
        else "was written by a later version of loanasync: install that version here, too"
    )
    return ConfigurationError("ledger", f"{name} {problem}")


def missing_driver_error(backend: type[StoredLedger]) -> ConfigurationError:
    """Return the error for a backend whose driver is not installed."""
    return ConfigurationError(
        "ledger", f"needs {backend.driver}: run pip install 'loanasync[{backend.extra}]'"
    )


def unsuitable_driver_error(ledger: object, error: BaseException) -> ConfigurationError | None:
    """Return the error to raise if the version of a ledger's driver does not suit, otherwise None.

    For example, an old driver does not know an option, and raises TypeError at each connection. A repeated
    call would fail again.
    """
    driver, extra = getattr(ledger, "driver", ""), getattr(ledger, "extra", "")
    if not driver:
        return None
    version = f"{driver} {getattr(sys.modules.get(driver), '__version__', '')}".rstrip()
    update = f"run pip install -U 'loanasync[{extra}]'"
    if isinstance(error, TypeError) and (option := _UNKNOWN_OPTION.search(str(error))):
        return ConfigurationError(
            "ledger", f"{version} has no option {option[1]}: remove it from the address, or {update}"
        )
    name = _UNKNOWN_NAME.search(str(error)) if isinstance(error, AttributeError) else None
    if name is None and not isinstance(error, ImportError):
        return None
    return ConfigurationError("ledger", f"{version} does not suit {type(ledger).__name__}: {update}")


def masked_url(url: str) -> str:
    """Return the address of a server without the parts that may contain a password."""
    try:
        plain = str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # for example an address with several hosts
        return "***"
    return "***" if "@" in plain else plain  # for example a password that contains a slash
