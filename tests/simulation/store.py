"""The simulated ledger: the project's state machine on a server that is slow, fails, or is replaced."""

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from loanasync.ledger import Entry, Ledger, LedgerPolicy, MemoryLedger, State
from loanasync.ledger.header import Header, new_header
from loanasync.ledger.memory import MemoryStore
from loanasync.ledger.store import Column, Found, FoundHeader, Write
from loanasync.ledger.transitions import as_read
from simulation.world import EPOCH

if TYPE_CHECKING:
    import asyncio

    from simulation.record import Key
    from simulation.world import Process, World

T = TypeVar("T")

_LATENCY = 0.001  # seconds of each way
_LATE = 15.0  # seconds
_FAULTS = {
    "works": 100,
    "is slow": 3,
    "is very slow": 2,
    "fails before it writes": 2,
    "fails after it wrote": 3,
    "hangs": 2,
    "hangs and writes late": 2,
}
_SLOW = {"is slow": 0.7, "is very slow": 4.0}


class _ServerStore(MemoryStore):
    """The store of a server, which can lack a ledger, and whose writes are noted."""

    def __init__(self, server: "Server") -> None:
        super().__init__()
        self._server = server
        self.is_empty = True  # it has no header

    async def header(self) -> FoundHeader:
        found = await super().header()
        return FoundHeader(None, found.now, 0) if self.is_empty else found

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        if self.is_empty:
            return False
        return await super().swap_header(header, replaces=replaces)

    def create(self, header: Header) -> None:
        self._header, self.is_empty = header, False

    async def swap(self, write: Write) -> Found:
        before, _ = self._entries.get(write.entry.key, (None, 0.0))
        found = await super().swap(write)
        if found.has(write.entry):
            self._server.note(before, write.entry)
        return found

    def check(self, header: Header) -> None:
        if self.is_empty:
            header = Header(name=self.name, id="none", service="", keys=())
        super().check(header)

    def copied(self) -> "_ServerStore":
        """Return a copy of the store as it is now."""
        other = copy(self)
        other._entries = dict(self._entries)
        other._keys = {customer: set(keys) for customer, keys in self._keys.items()}
        return other

    def stored(self) -> dict[str, Entry]:
        """Return the entries as a reader sees them now."""
        return {entry.key: as_read(entry) for entry in self._read_all(self._entries)}


class Server:
    """The server that keeps the entries of a ledger."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.store = _ServerStore(self)
        self.ledger = MemoryLedger()  # for the programs of one process
        self.ledger._store = self.store
        self.away_until = 0.0
        self.keys: dict[str, Key] = {}
        self.replaced_at = inf
        self._copy = self.store
        self._operations = 0

    def create(self, service: str, policy: LedgerPolicy) -> None:
        """Create the ledger, as an operator does before the programs start."""
        self.store.create(new_header("simulated", service, policy, makes_secret=False))

    def replace(self, *, by_copy: bool) -> None:
        """Lose the ledger, or the writes that are newer than the copy."""
        self.replaced_at = self.world.now
        self.store = self._copy if by_copy else _ServerStore(self)
        self.world.note("ledger", f"is replaced by {'an older copy' if by_copy else 'an empty server'}")

    def copy(self) -> None:
        """Make a copy, which `replace` restores."""
        self._copy = self.store.copied()
        self.world.note("ledger", "is copied")

    def stored(self) -> dict[str, Entry]:
        """Return the entries as they are now."""
        return self.store.stored()

    def has_decision(self, key: "Key") -> bool:
        """Return True if an entry of an approval has a decision."""
        entries = self.stored().items()
        return any(entry.state.is_decided and self.keys.get(digest) == key for digest, entry in entries)

    def next_operation(self) -> int:
        """Return the number of the next operation."""
        self._operations += 1
        return self._operations

    def note(self, before: Entry | None, after: Entry) -> None:
        """Record a write."""
        key = self.keys.get(after.key)
        was = "no entry" if before is None else before.state
        self.world.note("ledger", f"{key}: {was} -> {after.state}")
        if after.state is State.RELEASED and key is not None:
            # After a rotation, the approval may have another entry. Requests since its claim belong to that.
            entries = [each for each in self.stored().values() if self.keys.get(each.key) == key]
            others = [each.claimed - EPOCH for each in entries if each.claimed > after.claimed]
            self.world.record.release(key, after, min([self.world.now, *others]))


class SimulatedLedger(Ledger):
    """The ledger of one process, on the server."""

    driver = "simulated"  # its operations are repeated after a ConnectionError

    def __init__(self, process: "Process", server: Server) -> None:
        super().__init__(_Connection(process, server), creates=False)


class _Connection:
    """The store as a process uses it, over a network."""

    name = "simulated"

    def __init__(self, process: "Process", server: Server) -> None:
        self._process = process
        self._server = server

    async def _call(self, name: str, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an operation on the server: it arrives and responds after some time, or never."""
        world, server, process = self._process.world, self._server, self._process
        fault = world.choose("works", _FAULTS, "ledger", name, process.name, server.next_operation())
        reply: asyncio.Future[T] = process.loop.create_future()

        def arrive() -> None:
            if server.away_until > world.now:
                process.later(_LATENCY, lambda: _set(reply, None, ConnectionError("away")))
                return
            result, error = _finished(operation())
            error = ConnectionError("lost") if fault == "fails after it wrote" else error
            if not fault.startswith("hangs"):
                process.later(_SLOW.get(fault, _LATENCY), lambda: _set(reply, result, error))

        if fault != "works":
            world.note("ledger", f"{fault}: {name}")
        if fault == "fails before it writes":
            process.later(_LATENCY, lambda: _set(reply, None, ConnectionError("refused")))
        elif fault != "hangs":
            # The operation arrives, even if the process is killed or has given up meanwhile.
            world.later(_LATE if fault == "hangs and writes late" else _LATENCY, arrive)
        return await reply

    async def header(self) -> FoundHeader:
        return await self._call("header", lambda: self._server.store.header())  # noqa: PLW0108  (the store may be replaced)

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        return await self._call(
            "swap_header", lambda: self._server.store.swap_header(header, replaces=replaces)
        )

    async def read(self, key: str, header: Header) -> Found:
        return await self._call("read", lambda: self._server.store.read(key, header))

    async def swap(self, write: Write) -> Found:
        return await self._call("swap", lambda: self._server.store.swap(write))

    async def page(
        self, column: Column, value: str, first: str, last: str, header: Header
    ) -> Sequence[Entry]:
        return await self._call("page", lambda: self._server.store.page(column, value, first, last, header))

    async def drop(self, entries: Sequence[Entry], header: Header) -> int:
        return await self._call("drop", lambda: self._server.store.drop(entries, header))

    def reason(self, error: BaseException) -> str:
        """Return no reason."""
        del error
        return ""

    async def aclose(self) -> None:
        """Do nothing."""


def _set(reply: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    """Set the result of an operation, unless its caller has given up."""
    if not reply.done():
        if error is None:
            reply.set_result(result)
        else:
            reply.set_exception(error)


def _finished(operation: Any) -> tuple[Any, Exception | None]:
    """Run a coroutine that never waits; return its result or its error."""
    try:
        operation.send(None)
    except StopIteration as stop:
        return stop.value, None
    except Exception as error:  # noqa: BLE001  (the process receives it)
        return None, error
    raise AssertionError("the operation waited")
