"""A ledger in an SQLite file, shared by the processes of one machine."""

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from sqlite3 import Connection
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary, finalize

from attrs import fields

from loanasync._lifecycle import free_after_fork
from loanasync.errors import ConfigurationError
from loanasync.ledger import transitions
from loanasync.ledger.backend import INDEXES, Address, StoredLedger, format_error, page_queries
from loanasync.ledger.model import (
    FORMAT,
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
    dump_history,
    load_history,
)

T = TypeVar("T")
Transition: TypeAlias = Callable[..., Entry]  # `transitions.claim` or `transitions.settle` with arguments

_NAMES = tuple(each.name for each in fields(Entry))  # `history` is the last one
_COLUMNS = ", ".join(f'"{name}"' for name in _NAMES)
_PLACEHOLDERS = ", ".join("?" for _ in _NAMES)

_SELECT = f"SELECT {_COLUMNS} FROM decisions"  # noqa: S608  (constants)
_FIND = f"{_SELECT} WHERE key = ?"
_WRITE = f"INSERT OR REPLACE INTO decisions ({_COLUMNS}) VALUES ({_PLACEHOLDERS})"  # noqa: S608  (constants)
_CREATE_ENTRY = f"INSERT INTO decisions ({_COLUMNS}) VALUES ({_PLACEHOLDERS}) ON CONFLICT (key) DO NOTHING"  # noqa: S608
_END_CLAIM = """
UPDATE decisions
SET state = ?, payload = ?, changed = ?, note = ?, status = ?, body = ?, fault = ?, source = ?
WHERE key = ? AND state = 'inflight' AND token = ? AND changed = ?
"""
_PAGES = page_queries(_SELECT, "?", "?")
# The second conditions let SQLite use the partial indexes.
_BY = {"customer": "customer = ? AND customer <> ''", "order": '"order" = ? AND "order" <> \'\''}
_PURGE = "DELETE FROM decisions WHERE state IN ('approved', 'refused', 'released') AND changed <= ?"
_MAX_CLAIMS = 1000  # entries of claims that a `_DatabaseThread` keeps until they are settled


class _Connection(Connection):
    """A connection to the file of a ledger."""

    now: Callable[[], float]  # the ledger's clock, see `_clock`


Use: TypeAlias = Callable[[_Connection], T]


class SqliteLedger(StoredLedger):
    """A ledger in an SQLite file, for all clients and processes of one machine.

    Use it unless your processes run on several machines. It needs no other package.

    A completed write survives a power failure (``synchronous=FULL``). Only the user who created the file can
    read it and the files beside it (``-wal``, ``-shm``). The file must be on a local disk, since SQLite's
    locks do not work reliably on network file systems.

    On Linux, leases are measured by the ledger's own clock. It is set to the time of day once after each boot
    and ignores later changes of the system clock. On other systems, leases are measured by the system clock.

    If the file is deleted or replaced while it is open, every method raises FileNotFoundError, so that a
    client sends nothing. With an empty file, every customer would be requested again. Restore the file; then
    close the ledger or restart the process.

    The file is opened on first use. A separate thread reads and writes it, so that the event loop never waits
    for the disk. The file is closed at the end of the process, even if the ledger was not closed.

    Args:
        file: Path of the file. It is created if it does not exist; its folder must exist.
        patience: Seconds to wait while other processes write.

    Raises:
        ConfigurationError: The file is not a ledger of this version's format. Raised by all methods.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import SqliteLedger
        >>> with TemporaryDirectory() as folder:
        ...     ledger = SqliteLedger(f"{folder}/decisions.db")
        ...     run(ledger.get("missing"))
        ...     run(ledger.aclose())
    """

    address: ClassVar[Address] = Address(
        schemes=("sqlite",),
        absent="{file} does not exist or is empty: name the file that your clients use",
    )

    def __init__(self, file: str | Path, *, patience: float = 10.0) -> None:
        self._file = Path(file)
        self._patience = patience
        self._thread: _DatabaseThread | None = None
        self._replace_lock()
        free_after_fork(self, SqliteLedger._replace_lock)

    def _replace_lock(self) -> None:
        """Create a new lock. In a forked child, a thread of the parent may have held the old one."""
        self._lock = threading.Lock()  # held for microseconds, never across an await

    def _database(self) -> "_DatabaseThread":
        with self._lock:
            # The threads of the parent do not exist in a forked child.
            if self._thread is None or self._thread.process != os.getpid():
                self._thread = _DatabaseThread(self._file, self._patience)
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
        """See `DecisionLedger.claim`."""
        transition = partial(
            transitions.claim, key=key, token=token, payload=payload, lease=lease, over=over, subject=subject
        )
        database = self._database()
        return await database.write(partial(database.claim, key, transition))

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """See `DecisionLedger.settle`."""
        transition = partial(
            transitions.settle, key=key, token=token, payload=payload, settlement=settlement, over=over
        )
        database = self._database()
        return await database.write(partial(database.settle, key, token, transition))

    async def get(self, key: str) -> Entry | None:
        """See `DecisionLedger.get`."""
        entry, now = await self._database().read(partial(_load, key))
        return None if entry is None else transitions.as_of(entry, now)

    async def _read_page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        entries = await self._database().read(partial(_read, _PAGES[part], (first, last)))
        return entries[-1].key if entries else "", entries

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """See `DecisionLedger.find`."""
        sought = {"customer": customer, "order": order}
        given = {name: digest for name, digest in sought.items() if digest}
        if not given:
            return []
        statement = f"{_SELECT} WHERE {' AND '.join(_BY[name] for name in given)}"
        return transitions.sort_by_age(
            await self._database().read(partial(_read, statement, tuple(given.values())))
        )

    async def purge(self, older_than: float) -> int:
        """See `DecisionLedger.purge`."""
        return await self._database().write(
            lambda connection: connection.execute(_PURGE, (connection.now() - older_than,)).rowcount
        )

    async def exists(self) -> bool:
        """Return True if the file is a database with tables. Create nothing.

        Example:
            >>> from loanasync.ledger import SqliteLedger
            >>> run(SqliteLedger("mistyped.db").exists())
            False
        """
        return await asyncio.to_thread(_has_tables, self._file, self._patience)

    async def aclose(self) -> None:
        """Close the file. A later call opens it again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.process == os.getpid():
            await thread.end()

    def __repr__(self) -> str:
        return f"SqliteLedger({str(self._file)!r})"


class _DatabaseThread:
    """The thread that uses the file, and its connection.

    A single write is one statement in the usual cases: a claim of a new entry, and the settlement of a claim
    that this thread wrote. Writes that wait at the same time share one transaction, because the
    commit is the slow part.
    """

    def __init__(self, file: Path, patience: float) -> None:
        self.process = os.getpid()
        self._file = file
        self._patience = patience
        self._connection: _Connection | None = None
        self._opened_identity: tuple[int, int] | None = None  # device and inode number of the opened file
        self._finalizer: Callable[[], object] | None = None
        self._executor = ThreadPoolExecutor(1, "loanasync-ledger")
        self._writes: deque[tuple[Use[Any], asyncio.Future[Any]]] = deque()
        self._claims: dict[tuple[str, str], Entry] = {}  # by key and token; used only in the thread
        FORK_GUARD.register(self)

    async def read(self, use: Use[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, use)

    async def write(self, use: Use[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writes.append((use, future))
        self._executor.submit(self._write_all)
        return await future

    def claim(self, key: str, transition: Transition, connection: _Connection) -> Entry:
        """Write a claim. `write` calls this in the thread."""
        entry = transition(None, now=connection.now())
        if connection.execute(_CREATE_ENTRY, _row(entry)).rowcount:
            self._claims[key, entry.token] = entry
            if len(self._claims) > _MAX_CLAIMS:  # the oldest one may never be settled
                del self._claims[next(iter(self._claims))]
            return entry
        return _apply(key, transition, connection)

    def settle(self, key: str, token: str, transition: Transition, connection: _Connection) -> Entry:
        """Write a settlement. `write` calls this in the thread."""
        if (claimed := self._claims.pop((key, token), None)) is not None:
            entry = transition(claimed, now=connection.now())
            settled = (entry.state.value, entry.payload, entry.changed, entry.note)
            response = (entry.status, entry.body, entry.fault, entry.source)
            if connection.execute(_END_CLAIM, (*settled, *response, key, token, claimed.changed)).rowcount:
                return entry
        return _apply(key, transition, connection)

    def _read(self, use: Use[T]) -> T:
        return _retry_while_locked(lambda: use(self._connect()), self._patience)

    def _write_all(self) -> None:
        waiting = [self._writes.popleft() for _ in range(len(self._writes))]
        writes = [(use, future) for use, future in waiting if not future.cancelled()]
        if not writes:  # an earlier call of this method has run them, or all were cancelled
            return
        results: Sequence[object]
        try:
            results = _retry_while_locked(lambda: self._run([use for use, _ in writes]), self._patience)
        except Exception as error:  # noqa: BLE001  (raised by each `write` call)
            results = [error] * len(writes)
        for (_, future), result in zip(writes, results, strict=True):
            with suppress(RuntimeError):  # the event loop was closed
                future.get_loop().call_soon_threadsafe(_end_write, future, result)

    def _run(self, writes: Sequence[Use[Any]]) -> list[object]:
        connection = self._connect()
        if len(writes) == 1:
            return [writes[0](connection)]
        with _write_transaction(connection):
            return [_run_write(write, connection) for write in writes]

    def _connect(self) -> _Connection:
        """Return the connection; open the file if necessary."""
        if self._opened_identity is not None and self._opened_identity != _identity(self._file):
            # With an empty file, every customer would be requested again. `aclose` forgets the identity.
            raise FileNotFoundError(errno.ENOENT, "deleted or replaced while it was open", str(self._file))
        if self._connection is None:
            self._connection = _open_file(self._file, min(_LOCK_TIMEOUT, self._patience))
            self._opened_identity = _identity(self._file)
            # Close the file when the ledger is garbage-collected without `aclose`, and when the process ends.
            self._finalizer = finalize(self, _close_connection, self._connection, self.process)
        return self._connection

    async def end(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    def _close(self) -> None:
        with FORK_GUARD:
            self.close_file()

    def close_file(self) -> None:
        """Close the file. No call may be using it."""
        self._connection = None
        if self._finalizer is not None:
            self._finalizer()


def _close_connection(connection: Connection, process: int) -> None:
    if process == os.getpid():  # after a fork without os.fork() the child must not close it
        connection.close()


def _end_write(future: asyncio.Future[object], result: object) -> None:
    if future.done():  # cancelled
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _run_write(use: Use[Any], connection: _Connection) -> object:
    """Return the result or the error of one write in a transaction of several.

    The error of one write does not undo the others, unless it is an OperationalError, such as a full disk.
    """
    try:
        return use(connection)
    except sqlite3.OperationalError:
        raise
    except Exception as error:  # noqa: BLE001  (raised by the `write` call)
        return error


def _entry(row: tuple[Any, ...]) -> Entry:
    values = dict(zip(_NAMES, row, strict=True))
    values["state"] = State(values["state"])
    values["history"] = load_history(values["history"])
    return Entry(**values)


def _row(entry: Entry) -> tuple[object, ...]:
    return (*_values_of(entry), dump_history(entry.history))


_values_of = attrgetter(*_NAMES[:-1])


def _load(key: str, connection: _Connection) -> tuple[Entry | None, float]:
    row = connection.execute(_FIND, (key,)).fetchone()
    return (None if row is None else _entry(row)), connection.now()


def _apply(key: str, transition: Transition, connection: _Connection) -> Entry:
    with _write_transaction(connection):
        before, now = _load(key, connection)
        after = transition(before, now=now)
        if after != before:
            connection.execute(_WRITE, _row(after))
        return after


def _read(statement: str, arguments: Sequence[object], connection: _Connection) -> list[Entry]:
    rows = connection.execute(statement, arguments).fetchall()
    now = connection.now()
    return [transitions.as_of(_entry(row), now) for row in rows]


_LOCK_TIMEOUT = 0.1  # seconds of one wait for a lock; this process can fork between two waits
_LOCK_PAUSE = 0.005  # seconds between two attempts

_APPLICATION = 0x4C454447  # "LEDG", the application_id that marks an SQLite file as a ledger

_CREATE = (
    """CREATE TABLE decisions (
    key TEXT PRIMARY KEY, state TEXT NOT NULL, token TEXT NOT NULL, payload TEXT NOT NULL,
    claimed REAL NOT NULL, changed REAL NOT NULL, expires REAL NOT NULL, takeovers INTEGER NOT NULL,
    note TEXT NOT NULL, status INTEGER, body BLOB, fault TEXT, customer TEXT NOT NULL,
    "order" TEXT NOT NULL, scope TEXT NOT NULL, source TEXT NOT NULL, history TEXT NOT NULL
)""",
    "CREATE INDEX decisions_customer ON decisions (customer) WHERE customer <> ''",
    'CREATE INDEX decisions_order ON decisions ("order") WHERE "order" <> \'\'',
    f"CREATE INDEX decisions_state ON decisions {INDEXES[0]}",
    f"CREATE INDEX decisions_without_redirect ON decisions {INDEXES[1]}",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)


class _BusyError(sqlite3.OperationalError):
    """Another process is opening the file at the same time."""


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """Return True if the file is locked, so that another attempt may succeed."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return isinstance(error, _BusyError) or code & 0xFF == sqlite3.SQLITE_BUSY  # the primary result code


def _identity(file: Path) -> tuple[int, int] | None:
    """Return the device and inode number of a file, to detect a replaced file; None if it does not exist."""
    try:
        status = os.stat(file)  # noqa: PTH116  (faster than `Path.stat`, and called for each operation)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _has_tables(file: Path, patience: float) -> bool:
    """Return True if a file is an SQLite database with tables. Create nothing.

    Args:
        file: The file, which may be missing.
        patience: Seconds to wait for other processes.

    Raises:
        PermissionError: This user may not read or write the file.
        sqlite3.DatabaseError: The file is not an SQLite database.
    """
    file = Path(os.path.realpath(file))
    if not file.exists():
        return False
    _check_access(file)

    def has_tables() -> bool:
        address, turn = f"{file.as_uri()}?mode=rw", min(_LOCK_TIMEOUT, patience)
        with closing(sqlite3.connect(address, uri=True, timeout=turn)) as connection:
            return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    return _retry_while_locked(has_tables, patience)


def _retry_while_locked(use: Callable[[], T], patience: float) -> T:
    """Call `use` until another process no longer locks the file. This process can fork between two calls.

    Args:
        use: A function that uses the file, and waits for a lock only for a short time.
        patience: Seconds after which the last error is raised.
    """
    until = time.monotonic() + patience
    while True:
        try:
            with FORK_GUARD:
                return use()
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= until:
                raise
        time.sleep(_LOCK_PAUSE)


def _check_access(file: Path) -> None:
    """Check the access rights to a file without opening it.

    Raises:
        PermissionError: This user may not read or write the file.
    """
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


def _open_file(file: Path, patience: float) -> _Connection:
    """Open the file of a ledger. Create it if necessary.

    Args:
        file: The file.
        patience: Seconds to wait for other processes.

    Raises:
        ConfigurationError: The file is not a ledger of this version's format.
        PermissionError: This user may not read or write the file.
    """
    file = Path(os.path.realpath(file))  # absolute, so that SQLite treats no name specially (":memory:")
    try:  # SQLite gives the -wal and -shm files the same mode
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        # Do not open the file here: closing it would drop the locks of all other ledgers in this process.
        _check_access(file)
    connection = sqlite3.connect(
        file, timeout=patience, isolation_level=None, check_same_thread=False, factory=_Connection
    )
    try:
        with _write_transaction(connection):
            _prepare_schema(connection, file)
            connection.now = _clock(connection)
        _use_wal(connection, patience)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare_schema(connection: Connection, file: Path) -> None:
    run = connection.execute
    tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
    mark = run("PRAGMA application_id").fetchone()[0]
    version = run("PRAGMA user_version").fetchone()[0]
    if tables and not (mark == _APPLICATION and version >= 1):
        raise ConfigurationError("ledger", f"{file.name} is not a ledger: name another file")
    if tables and version != FORMAT:
        raise format_error(file.name, is_earlier=version < FORMAT)
    for statement in () if tables else _CREATE:
        run(statement)


def _use_wal(connection: Connection, patience: float) -> None:
    # Here SQLite does not wait for another process that switches to WAL at the same time.
    until = time.monotonic() + patience
    while True:
        with suppress(sqlite3.OperationalError):
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        if time.monotonic() > until:
            raise _BusyError("cannot switch to write-ahead logging: the file is locked")
        time.sleep(0.01)


@contextmanager
def _write_transaction(connection: Connection) -> Iterator[None]:
    """Run the block in a transaction that excludes other writers from its first read to its commit.

    If a transaction has begun, the block is a part of it.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # some errors, such as a full disk, end the transaction themselves
            connection.execute("ROLLBACK")


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes until the next boot
_CLOCK_TABLE = "CREATE TABLE IF NOT EXISTS clock (boot TEXT NOT NULL, start REAL NOT NULL)"
_LAST_LEASE = "SELECT max(expires) FROM decisions WHERE state = 'inflight'"


def _clock(connection: Connection) -> Callable[[], float]:
    """Return the ledger's clock: a function that returns the seconds since 1970.

    The first process after a boot writes the time of the boot to the file. All processes add the machine's
    uptime to it. On systems other than Linux, which have no boot id, use the time of day.

    Call this within a write transaction.
    """
    boot = None
    with suppress(OSError):
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    if not boot:
        return _time_of_day
    start = _boot_time(connection, boot)
    return lambda: start + _uptime()


def _time_of_day() -> float:
    return datetime.now(UTC).timestamp()


def _uptime() -> float:
    """Return the seconds since the machine booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_time(connection: Connection, boot: str) -> float:
    """Return the time of the boot by the ledger's clock."""
    run = connection.execute
    run(_CLOCK_TABLE)
    starts = dict(run("SELECT boot, start FROM clock").fetchall())
    if boot in starts:
        return float(starts[boot])
    now = _time_of_day()
    if starts:  # a reboot ended the owners of all leases: expire them, even if the clock was set back
        now = max(now, run(_LAST_LEASE).fetchone()[0] or 0.0)
    run("DELETE FROM clock")
    start = now - _uptime()
    run("INSERT INTO clock VALUES (?, ?)", (boot, start))
    return start


class _FileUser(Protocol):
    """An object that keeps a file open."""

    def close_file(self) -> None:
        """Close the file. The object opens it again on the next use."""


class _ForkGuard:
    """Prevents forks while SQLite files are in use, and closes the files before a fork.

    Wrap each use of a file in ``with FORK_GUARD``.

    SQLite keeps a list of this process's file locks in memory. A forked child inherits the list, but not the
    locks. So it could use a file without a lock. Another process that closes the file would then delete the
    write-ahead log, to which the child still writes decisions.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._in_use = 0
        self._is_forking = False
        self._users: WeakValueDictionary[int, _FileUser] = WeakValueDictionary()
        if hasattr(os, "register_at_fork"):  # Windows does not fork
            after = {"after_in_parent": self._after_fork, "after_in_child": self._after_fork}
            os.register_at_fork(before=self._before_fork, **after)

    def register(self, user: _FileUser) -> None:
        """Close the user's file before each fork."""
        self._users[id(user)] = user

    def __enter__(self) -> None:
        with self._lock:
            if self._is_forking:
                self._condition.wait_for(lambda: not self._is_forking)
            self._in_use += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._in_use -= 1
            if self._is_forking:
                self._condition.notify_all()

    def _before_fork(self) -> None:
        self._condition.acquire()  # held across the fork, so that no other thread holds it in the child
        self._is_forking = True
        self._condition.wait_for(lambda: not self._in_use)
        for reference in self._users.valuerefs():
            if (user := reference()) is not None:
                user.close_file()

    def _after_fork(self) -> None:
        self._is_forking = False
        self._condition.notify_all()
        self._condition.release()


FORK_GUARD = _ForkGuard()
