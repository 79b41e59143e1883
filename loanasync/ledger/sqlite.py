"""A ledger in a file of SQLite's: for the processes of one machine, and with nothing to install."""

import asyncio
import errno
import os
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import finalize

from attrs import fields

from loanasync._lifecycle import Closing, free_after_fork
from loanasync.ledger import lists, polling
from loanasync.ledger import transitions as moves
from loanasync.ledger.clock import NOW
from loanasync.ledger.forking import FORKING
from loanasync.ledger.model import (
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
    history_from,
    history_text,
    source_in_format_1,
)
from loanasync.ledger.sqlite_file import TURN, has_tables, identity, open_file, patiently, writing

T = TypeVar("T")
Write: TypeAlias = Callable[[sqlite3.Connection], T]

_COLUMNS = ", ".join(f'"{each.name}"' for each in fields(Entry))
_PLACES = ", ".join("?" for _ in fields(Entry))

_FIND = f"SELECT {NOW}, {_COLUMNS} FROM (SELECT 1) LEFT JOIN decisions ON key = ?"  # noqa: S608  (constants)
_WRITE = f"INSERT OR REPLACE INTO decisions ({_COLUMNS}) VALUES ({_PLACES})"  # noqa: S608  (constants)
_PAGES = lists.queries(f"SELECT {NOW}, {_COLUMNS} FROM decisions", "?", "?")  # noqa: S608  (constants)
_ABOUT = f"SELECT {NOW}, {_COLUMNS} FROM decisions WHERE "  # noqa: S608  (constants)
# The second condition lets SQLite use the index.
_BY = {"customer": "customer = ? AND customer <> ''", "order": '"order" = ? AND "order" <> \'\''}
_PURGE = f"""
DELETE FROM decisions WHERE state IN ('approved', 'refused', 'released') AND changed <= {NOW} - ?
"""  # noqa: S608  (constants)


class SqliteLedger(Closing):
    """Decisions in a file, for all clients and processes of a machine: the one to take unless there are more.

    What it says is written is on the disk, also when the machine loses its power (``synchronous=FULL``). The
    file and those beside it (``-wal``, ``-shm``) are for their owner alone to read. It must be on a disk of
    this machine: on a network's file system SQLite's locks cannot be trusted.

    On Linux, leases go by the ledger's own clock: it takes the time of day after each start of the machine,
    and does not move when the machine's clock is set. On other systems leases go by the time of day.

    If the file is removed or replaced while it is open, each method fails, since nobody is known in an empty
    file. Restore the file; then close the ledger, or restart the process.

    It is opened when it is first used, in a thread of its own, so that no event loop ever waits for the disk.
    When its process ends, it lets go of the file, also where nobody closed it.

    Args:
        file: Made if it is not there; its folder must be.
        patience: Seconds to wait for other processes that write at the same time.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import SqliteLedger
        >>> with TemporaryDirectory() as folder:
        ...     ledger = SqliteLedger(f"{folder}/decisions.db")
        ...     run(ledger.get("nobody"))
        ...     run(ledger.aclose())
    """

    def __init__(self, file: str | Path, *, patience: float = 10.0) -> None:
        self._file = Path(file)
        self._patience = patience
        self._thread: _Thread | None = None
        self._renew_lock()
        free_after_fork(self)

    def _renew_lock(self) -> None:
        """Make the lock anew, which a forked child may inherit from a thread that it has not."""
        self._opening = threading.Lock()  # held for microseconds, and never across an await

    def _in_thread(self) -> "_Thread":
        with self._opening:
            # A forked child has no thread of its parent's.
            if self._thread is None or self._thread.process != os.getpid():
                self._thread = _Thread(self._file, self._patience)
            return self._thread

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
        """As of `DecisionLedger`, and so the others."""
        move = partial(
            moves.claim, key=key, token=token, payload=payload, lease=lease, over=over, subject=subject
        )
        return await self._in_thread().write(partial(_moved, key, move))

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """Write down what became of a claim."""
        move = partial(moves.settle, key=key, token=token, payload=payload, settlement=settlement, over=over)
        return await self._in_thread().write(partial(_moved, key, move))

    async def get(self, key: str) -> Entry | None:
        """An entry as it stands now."""
        entry, now = await self._in_thread().read(partial(_found, key))
        return None if entry is None else moves.seen(entry, now)

    async def wait(self, key: str, within: float) -> Entry | None:
        """The entry as soon as it is not INFLIGHT; after so many seconds as it stands then."""
        return await polling.wait(self.get, key, within)

    def scan(self, *states: State, begins: str = "", without_redirect: bool = False) -> AsyncIterator[Entry]:
        """All entries in these states, or all there are."""
        return lists.listed(self._page, states, begins, without_redirect=without_redirect)

    async def _page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        entries = await self._in_thread().read(partial(_page, part, first, last))
        return entries[-1].key if entries else "", entries

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """The entries of a customer, of an order, or of both, oldest first."""
        sought = {"customer": customer, "order": order}
        about = partial(_about, {name: digest for name, digest in sought.items() if digest})
        return moves.by_age(await self._in_thread().read(about))

    async def purge(self, older_than: float) -> int:
        """Forget what was decided or released and has not changed for so many seconds."""
        return await self._in_thread().write(partial(_purged, older_than))

    async def exists(self) -> bool:
        """Return True if the file is a database with tables. Create nothing.

        Example:
            >>> from loanasync.ledger import SqliteLedger
            >>> run(SqliteLedger("mistyped.db").exists())
            False
        """
        return await asyncio.to_thread(has_tables, self._file, self._patience)

    async def aclose(self) -> None:
        """Let go of the file; a later call opens it anew."""
        with self._opening:
            thread, self._thread = self._thread, None
        if thread is not None and thread.process == os.getpid():
            await thread.end()

    def __repr__(self) -> str:
        return f"SqliteLedger({str(self._file)!r})"


class _Thread:
    """The one thread that uses the file, and its connection.

    Writes that wait for each other's turn are made together: one commit, which is what the disk is slow at.
    """

    def __init__(self, file: Path, patience: float) -> None:
        self.process = os.getpid()
        self._file = file
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # the file that was opened, by device and number
        self._closing: Callable[[], object] | None = None
        self._executor = ThreadPoolExecutor(1, "loanasync-ledger")
        self._writes: deque[tuple[Write[Any], Future[Any]]] = deque()
        FORKING.tell(self)

    async def read(self, what: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, what)

    async def write(self, what: Write[T]) -> T:
        future: Future[T] = Future()
        self._writes.append((what, future))
        self._executor.submit(self._write_all)
        return await asyncio.wrap_future(future)

    def _read(self, what: Callable[[sqlite3.Connection], T]) -> T:
        return patiently(lambda: what(self._connected()), self._patience)

    def _write_all(self) -> None:
        waiting = [self._writes.popleft() for _ in range(len(self._writes))]
        writes = [(what, future) for what, future in waiting if future.set_running_or_notify_cancel()]
        if not writes:  # another turn has made them
            return

        def write() -> list[object]:
            with writing(connection := self._connected()):
                return [_ended(what, connection) for what, _ in writes]

        try:
            ends = patiently(write, self._patience)
        except Exception as error:  # noqa: BLE001  (raised where each was asked for)
            ends = [error] * len(writes)
        for (_, future), end in zip(writes, ends, strict=True):
            if isinstance(end, Exception):
                future.set_exception(end)
            else:
                future.set_result(end)

    def _connected(self) -> sqlite3.Connection:
        if self._opened is not None and self._opened != identity(self._file):
            # In an empty file nobody was asked. After `aclose` the file that is there is opened.
            raise FileNotFoundError(errno.ENOENT, "removed or replaced while it was open", str(self._file))
        if self._connection is None:
            self._connection = open_file(self._file, min(TURN, self._patience))
            self._opened = identity(self._file)
            # Whoever forgets the ledger, and each process that ends, lets go of the file in order.
            self._closing = finalize(self, _let_go, self._connection, self.process)
        return self._connection

    async def end(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    def _close(self) -> None:
        with FORKING:
            self.let_go()

    def let_go(self) -> None:
        """Close the file; for who knows that it is not in use."""
        self._connection = None
        if self._closing is not None:
            self._closing()


def _let_go(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():  # a fork that was none of Python's leaves it open in the child, too
        connection.close()


def _ended(what: Write[Any], connection: sqlite3.Connection) -> object:
    """What came of one write among others; one that cannot be made is no reason to lose those."""
    try:
        return what(connection)
    except sqlite3.OperationalError:  # the disk is full, for one: none of them is made
        raise
    except Exception as error:  # noqa: BLE001  (raised where it was asked for)
        return error


def _entry(row: tuple[Any, ...]) -> Entry:
    values = dict(zip((each.name for each in fields(Entry)), row, strict=True))
    values["state"] = State(values["state"])
    values["history"] = history_from(values["history"])
    if values["source"] is None:
        values["source"] = source_in_format_1(values["state"], values["body"], values["fault"])
    return Entry(**values)


def _row(entry: Entry) -> tuple[object, ...]:
    values = (getattr(entry, each.name) for each in fields(Entry) if each.name != "history")
    return (*values, history_text(entry.history))  # the last of its fields


def _found(key: str, connection: sqlite3.Connection) -> tuple[Entry | None, float]:
    now, *row = connection.execute(_FIND, (key,)).fetchone()
    return (None if row[0] is None else _entry(tuple(row))), now


def _moved(key: str, move: Callable[..., Entry], connection: sqlite3.Connection) -> Entry:
    before, now = _found(key, connection)
    after = move(before, now=now)
    if after != before:
        connection.execute(_WRITE, _row(after))
    return after


def _page(part: str, first: str, last: str, connection: sqlite3.Connection) -> list[Entry]:
    rows = connection.execute(_PAGES[part], (first, last)).fetchall()
    return [moves.seen(_entry(tuple(row)), now) for now, *row in rows]


def _about(sought: dict[str, str], connection: sqlite3.Connection) -> list[Entry]:
    if not sought:
        return []
    asked = _ABOUT + " AND ".join(_BY[name] for name in sought)
    rows = connection.execute(asked, tuple(sought.values())).fetchall()
    return [moves.seen(_entry(tuple(row)), now) for now, *row in rows]


def _purged(older_than: float, connection: sqlite3.Connection) -> int:
    return connection.execute(_PURGE, (older_than,)).rowcount
