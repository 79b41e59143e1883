"""The simulated ledger: the project's state machine on a server that is slow, fails, or is replaced."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from loanasync.ledger import Entry, MemoryLedger, State
from loanasync.ledger.backend import poll

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


class Server:
    """The server that keeps the entries of a ledger."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.entries = self._new({})
        self.away_until = 0.0
        self.keys: dict[str, Key] = {}
        self._copy: dict[str, Entry] = {}
        self._operations = 0

    def _new(self, entries: dict[str, Entry]) -> MemoryLedger:
        """Return a ledger with the project's state machine, whose writes are noted."""
        ledger = MemoryLedger()
        stored = ledger._entries  # (as a restored file has them)
        stored.update(entries)

        def noted(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
            async def write(key: str, **options: Any) -> Entry:
                before = stored.get(key)
                after: Entry = await operation(key, **options)
                self._note(name, before, after)
                return after

            return write

        vars(ledger).update(claim=noted("claim", ledger.claim), settle=noted("settle", ledger.settle))
        return ledger

    def replace(self, *, by_copy: bool) -> None:
        """Lose all entries, or those that are newer than the copy."""
        self.entries = self._new(self._copy if by_copy else {})
        self.world.note("ledger", f"is replaced by {'an older copy' if by_copy else 'an empty one'}")

    def copy(self) -> None:
        """Make a copy, which `replace` restores."""
        self._copy = dict(self.entries._entries)
        self.world.note("ledger", "is copied")

    def stored(self) -> dict[str, Entry]:
        """Return the entries as they are stored."""
        return dict(self.entries._entries)

    def has_decision(self, key: "Key") -> bool:
        """Return True if an entry of an approval has a decision."""
        entries = self.stored().items()
        return any(entry.state.is_decided and self.keys.get(digest) == key for digest, entry in entries)

    def next_operation(self) -> int:
        """Return the number of the next operation."""
        self._operations += 1
        return self._operations

    def _note(self, name: str, before: Entry | None, after: Entry) -> None:
        """Record a write that changed an entry."""
        if before == after:
            return
        key = self.keys.get(after.key)
        was = "no entry" if before is None else before.state
        self.world.note("ledger", f"{name} of {key}: {was} -> {after.state}")
        if after.state is State.RELEASED and key is not None:
            self.world.record.release(key, after)


class SimulatedLedger:
    """The ledger of one process. It has the methods of `loanasync.ledger.DecisionLedger`."""

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

    async def claim(self, key: str, **options: Any) -> Entry:
        return await self._call("claim", lambda: self._server.entries.claim(key, **options))

    async def settle(self, key: str, **options: Any) -> Entry:
        return await self._call("settle", lambda: self._server.entries.settle(key, **options))

    async def get(self, key: str) -> Entry | None:
        return await self._call("get", lambda: self._server.entries.get(key))

    async def wait(self, key: str, within: float) -> Entry | None:
        return await poll(self.get, key, within)

    async def scan(
        self, *states: State, begins: str = "", without_redirect: bool = False
    ) -> AsyncIterator[Entry]:
        async def read() -> list[Entry]:
            entries = self._server.entries
            listed = entries.scan(*states, begins=begins, without_redirect=without_redirect)
            return [entry async for entry in listed]

        for entry in await self._call("scan", read):
            yield entry

    async def find(self, **subject: Any) -> list[Entry]:
        return await self._call("find", lambda: self._server.entries.find(**subject))

    async def purge(self, older_than: float) -> int:
        return await self._call("purge", lambda: self._server.entries.purge(older_than))

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
