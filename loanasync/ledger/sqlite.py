"""A ledger in an SQLite file: for the processes of one machine, without another package."""

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary, finalize

from attrs import fields

from loanasync._lifecycle import free_after_fork
from loanasync.errors import ConfigurationError
from loanasync.ledger import transitions
from loanasync.ledger.backend import INDEXES, Address, StoredLedger, page_queries
from loanasync.ledger.model import (
    FORMAT,
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
    dump_history,
    load_history,
    source_in_format_1,
)

T = TypeVar("T")
Use: TypeAlias = Callable[[Connection], T]

_NOW = "ledger_now()"  # a function of each connection, see `_keep_time`

_COLUMNS = ", ".join(f'"{each.name}"' for each in fields(Entry))
_PLACEHOLDERS = ", ".join("?" for _ in fields(Entry))

_FIND = f"SELECT {_NOW}, {_COLUMNS} FROM (SELECT 1) LEFT JOIN decisions ON key = ?"  # noqa: S608  (constants)
_WRITE = f"INSERT OR REPLACE INTO decisions ({_COLUMNS}) VALUES ({_PLACEHOLDERS})"  # noqa: S608  (constants)
_SELECT = f"SELECT {_NOW}, {_COLUMNS} FROM decisions"  # noqa: S608  (constants)
_PAGES = page_queries(_SELECT, "?", "?")
# The second condition lets SQLite use the index.
_BY = {"customer": "customer = ? AND customer <> ''", "order": '"order" = ? AND "order" <> \'\''}
_PURGE = f"""
DELETE FROM decisions WHERE state IN ('approved', 'refused', 'released') AND changed <= {_NOW} - ?
"""  # noqa: S608  (constants)


class SqliteLedger(StoredLedger):
    """Decisions in a file, for all clients and processes of a machine: the one to take unless there are more.

    What it says is written is on the disk, also when the machine loses its power (``synchronous=FULL``). The
    file and those beside it (``-wal``, ``-shm``) are for their owner alone to read. It must be on a disk of
    this machine: on a network's file system SQLite's locks cannot be trusted.

    On Linux, leases go by the ledger's own clock: it takes the time of day after each start of the machine,
    and does not move when the machine's clock is set. On other systems leases go by the time of day.

    If the file is removed or replaced while it is open, each method fails, since nobody is known in an empty
    file. Restore the file; then close the ledger, or restart the process.

    The file is opened on first use, in a separate thread, so that no event loop waits for the disk. When the
    process ends, the file is released, also if the ledger was not closed.

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

    address: ClassVar[Address] = Address(
        schemes=("sqlite",),
        absent="{file} is not there, or is empty: name the file that your clients use",
    )

    def __init__(self, file: str | Path, *, patience: float = 10.0) -> None:
        self._file = Path(file)
        self._patience = patience
        self._thread: _DatabaseThread | None = None
        self._replace_lock()
        free_after_fork(self, SqliteLedger._replace_lock)

    def _replace_lock(self) -> None:
        """Make the lock anew, which a forked child may inherit from a thread that it has not."""
        self._lock = threading.Lock()  # held for microseconds, and never across an await

    def _database(self) -> "_DatabaseThread":
        with self._lock:
            # A forked child has no thread of its parent's.
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
        return await self._database().write(partial(_apply, key, transition))

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """See `DecisionLedger.settle`."""
        transition = partial(
            transitions.settle, key=key, token=token, payload=payload, settlement=settlement, over=over
        )
        return await self._database().write(partial(_apply, key, transition))

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
            lambda connection: connection.execute(_PURGE, (older_than,)).rowcount
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
    """The one thread that uses the file, and its connection.

    Writes that wait for each other's turn are made together: one commit, which is what the disk is slow at.
    """

    def __init__(self, file: Path, patience: float) -> None:
        self.process = os.getpid()
        self._file = file
        self._patience = patience
        self._connection: Connection | None = None
        self._opened_identity: tuple[int, int] | None = None  # the file that was opened, by device and number
        self._finalizer: Callable[[], object] | None = None
        self._executor = ThreadPoolExecutor(1, "loanasync-ledger")
        self._writes: deque[tuple[Use[Any], Future[Any]]] = deque()
        FORK_GUARD.register(self)

    async def read(self, what: Use[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, what)

    async def write(self, what: Use[T]) -> T:
        future: Future[T] = Future()
        self._writes.append((what, future))
        self._executor.submit(self._write_all)
        return await asyncio.wrap_future(future)

    def _read(self, what: Use[T]) -> T:
        return _retry_while_locked(lambda: what(self._connect()), self._patience)

    def _write_all(self) -> None:
        waiting = [self._writes.popleft() for _ in range(len(self._writes))]
        writes = [(what, future) for what, future in waiting if future.set_running_or_notify_cancel()]
        if not writes:  # another turn has made them
            return

        def write() -> list[object]:
            with _write_transaction(connection := self._connect()):
                return [_run_write(what, connection) for what, _ in writes]

        try:
            ends = _retry_while_locked(write, self._patience)
        except Exception as error:  # noqa: BLE001  (raised where each was asked for)
            ends = [error] * len(writes)
        for (_, future), end in zip(writes, ends, strict=True):
            if isinstance(end, Exception):
                future.set_exception(end)
            else:
                future.set_result(end)

    def _connect(self) -> Connection:
        if self._opened_identity is not None and self._opened_identity != _identity(self._file):
            # In an empty file nobody was asked. After `aclose` the file that is there is opened.
            raise FileNotFoundError(errno.ENOENT, "removed or replaced while it was open", str(self._file))
        if self._connection is None:
            self._connection = _open_file(self._file, min(_LOCK_TIMEOUT, self._patience))
            self._opened_identity = _identity(self._file)
            # Whoever forgets the ledger, and each process that ends, lets go of the file in order.
            self._finalizer = finalize(self, _close_connection, self._connection, self.process)
        return self._connection

    async def end(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    def _close(self) -> None:
        with FORK_GUARD:
            self.close_file()

    def close_file(self) -> None:
        """Close the file, which no call may be using."""
        self._connection = None
        if self._finalizer is not None:
            self._finalizer()


def _close_connection(connection: Connection, process: int) -> None:
    if process == os.getpid():  # a fork that was none of Python's leaves it open in the child, too
        connection.close()


def _run_write(what: Use[Any], connection: Connection) -> object:
    """Return the result of one write of several, or its error, which does not undo the others."""
    try:
        return what(connection)
    except sqlite3.OperationalError:  # the disk is full, for one: none of them is made
        raise
    except Exception as error:  # noqa: BLE001  (raised where it was asked for)
        return error


def _entry(row: tuple[Any, ...]) -> Entry:
    values = dict(zip((each.name for each in fields(Entry)), row, strict=True))
    values["state"] = State(values["state"])
    values["history"] = load_history(values["history"])
    if values["source"] is None:
        values["source"] = source_in_format_1(values["state"], values["body"], values["fault"])
    return Entry(**values)


def _row(entry: Entry) -> tuple[object, ...]:
    values = (getattr(entry, each.name) for each in fields(Entry) if each.name != "history")
    return (*values, dump_history(entry.history))  # the last of its fields


def _load(key: str, connection: Connection) -> tuple[Entry | None, float]:
    now, *row = connection.execute(_FIND, (key,)).fetchone()
    return (None if row[0] is None else _entry(tuple(row))), now


def _apply(key: str, transition: Callable[..., Entry], connection: Connection) -> Entry:
    before, now = _load(key, connection)
    after = transition(before, now=now)
    if after != before:
        connection.execute(_WRITE, _row(after))
    return after


def _read(statement: str, arguments: Sequence[object], connection: Connection) -> list[Entry]:
    rows = connection.execute(statement, arguments).fetchall()
    return [transitions.as_of(_entry(tuple(row)), now) for now, *row in rows]


_LOCK_TIMEOUT = 0.1  # seconds to wait for another process at a time, between which this process may fork
_LOCK_PAUSE = 0.005  # seconds until the next such wait

_APPLICATION = 0x4C454447  # "LEDG", SQLite's mark of whose file it is

# In format 1 the table is called entries. The other name makes each statement of an older process fail that
# has the file open: otherwise it could claim and send, and not settle.
_CREATE = """
CREATE TABLE decisions (
    key TEXT PRIMARY KEY, state TEXT NOT NULL, token TEXT NOT NULL, payload TEXT NOT NULL,
    claimed REAL NOT NULL, changed REAL NOT NULL, expires REAL NOT NULL, takeovers INTEGER NOT NULL,
    note TEXT NOT NULL, status INTEGER, body BLOB, fault TEXT
)
"""
_RENAME = "ALTER TABLE entries RENAME TO decisions"
_EXTEND = (
    "ALTER TABLE decisions ADD COLUMN customer TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE decisions ADD COLUMN \"order\" TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE decisions ADD COLUMN scope TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE decisions ADD COLUMN source TEXT",  # NULL in rows of format 1
    "ALTER TABLE decisions ADD COLUMN history TEXT NOT NULL DEFAULT '[]'",
    "CREATE INDEX decisions_customer ON decisions (customer) WHERE customer <> ''",
    'CREATE INDEX decisions_order ON decisions ("order") WHERE "order" <> \'\'',
)
# Files of this format that were made before have no index for lists, and get it when they are opened.
_INDEX = tuple(
    f"CREATE INDEX IF NOT EXISTS decisions_{name} ON decisions {index}"
    for name, index in zip(("state", "without_redirect"), INDEXES, strict=True)
)


class _BusyError(sqlite3.OperationalError):
    """Another process is opening the file, too."""


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """Return True if the file is locked, so that another attempt may succeed."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return isinstance(error, _BusyError) or code & 0xFF == sqlite3.SQLITE_BUSY  # without its extension


def _identity(file: Path) -> tuple[int, int] | None:
    """Return device and number of a file, which differ if another is in its place; None without a file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _has_tables(file: Path, patience: float) -> bool:
    """Return True if a file is a database of SQLite's with tables. Create nothing.

    Args:
        file: The file, which may be missing.
        patience: Seconds to wait for other processes.

    Raises:
        PermissionError: This user may not read or write it.
        sqlite3.DatabaseError: It is a file of another kind.
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
    """Use a file; while another process has locked it, wait, and let this process fork meanwhile.

    Args:
        use: The use, which waits for a lock for a short time.
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
    """Check the rights to a file without opening it.

    Raises:
        PermissionError: This user may not read or write it.
    """
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


def _open_file(file: Path, patience: float) -> Connection:
    """Open a ledger's file; create it or bring it to the current format first.

    Args:
        file: The file.
        patience: Seconds to wait for other processes.

    Raises:
        ConfigurationError: It is a database of something else, or of a later version.
        PermissionError: This user may not read or write it.
    """
    file = Path(os.path.realpath(file))  # whole, so that no name is special, such as ":memory:"
    try:  # SQLite gives its other files the same mode
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        # To open and close it here would drop all locks that this process has on it, as of another ledger.
        _check_access(file)
    connection = sqlite3.connect(file, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        with _write_transaction(connection):
            _prepare_schema(connection, file)
            _define_clock(connection)
        _use_wal(connection, patience)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # where fsync alone does not reach the disk (macOS)
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
        raise ConfigurationError("ledger", f"{file.name} is no ledger: name another file")
    if version > FORMAT:  # with another file, all customers would be requested again
        raise ConfigurationError(
            "ledger", f"{file.name} is of a later version of loanasync: install that version here, too"
        )
    if not tables or version < FORMAT:
        for statement in (_RENAME if tables else _CREATE, *_EXTEND):
            run(statement)
    for statement in _INDEX:
        run(statement)
    if tables and version == FORMAT:
        return
    run(f"PRAGMA application_id = {_APPLICATION}")
    run(f"PRAGMA user_version = {FORMAT}")


def _use_wal(connection: Connection, patience: float) -> None:
    # SQLite does not wait by itself for another process that does the same.
    until = time.monotonic() + patience
    while True:
        with suppress(sqlite3.OperationalError):
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        if time.monotonic() > until:
            raise _BusyError("no write-ahead log")
        time.sleep(0.01)


@contextmanager
def _write_transaction(connection: Connection) -> Iterator[None]:
    """One write, from its first look to its commit: nobody else writes in between."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # some failures, such as a full disk, have ended it
            connection.execute("ROLLBACK")


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes until the machine restarts
_CLOCK_TABLE = "CREATE TABLE IF NOT EXISTS clock (boot TEXT NOT NULL, start REAL NOT NULL)"
_LAST_LEASE = "SELECT max(expires) FROM decisions WHERE state = 'inflight'"


def _define_clock(connection: Connection) -> None:
    """Give a connection the function ``ledger_now()``: seconds since 1970 by the ledger's clock.

    The time of day is read once after the machine started, and written to the file. From there all
    processes count the seconds that the machine runs. On systems other than Linux, where no file names the
    start of the machine, it is the time of day.

    Call it within a write transaction.
    """
    boot = None
    with suppress(OSError):
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    if not boot:
        connection.create_function("ledger_now", 0, _time_of_day)
        return
    start = _boot_time(connection, boot)
    connection.create_function("ledger_now", 0, lambda: start + _uptime())


def _time_of_day() -> float:
    return datetime.now(UTC).timestamp()


def _uptime() -> float:
    """Return the seconds for which the machine has run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_time(connection: Connection, boot: str) -> float:
    """Return the time at which the machine started, by the ledger's clock."""
    run = connection.execute
    run(_CLOCK_TABLE)
    starts = dict(run("SELECT boot, start FROM clock").fetchall())
    if boot in starts:
        return float(starts[boot])
    now = _time_of_day()
    if starts:  # the owners of all leases ended with the machine, also if its clock was set back since then
        now = max(now, run(_LAST_LEASE).fetchone()[0] or 0.0)
    run("DELETE FROM clock")
    start = now - _uptime()
    run("INSERT INTO clock VALUES (?, ?)", (boot, start))
    return start


class _FileUser(Protocol):
    """An object that has a file open."""

    def close_file(self) -> None:
        """Close it; it is opened anew when it is needed next."""


class _ForkGuard:
    """Those who use files, and forks, take turns: ``with FORKING`` around each use.

    SQLite notes within a process which locks that has on a file. A forked child has these notes and not the
    locks: what it opened then would be no one's to the other processes, and the last of them to close the
    file would delete the log that the child goes on to write its decisions to.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._in_use = 0
        self._is_forking = False
        self._users: WeakValueDictionary[int, _FileUser] = WeakValueDictionary()
        if hasattr(os, "register_at_fork"):  # Windows does not fork
            after = {"after_in_parent": self._after_fork, "after_in_child": self._after_fork}
            os.register_at_fork(before=self._before_fork, **after)

    def register(self, user: _FileUser) -> None:
        """Have somebody let go of their file before a fork."""
        self._users[id(user)] = user

    def __enter__(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: not self._is_forking)
            self._in_use += 1

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._in_use -= 1
            self._condition.notify_all()

    def _before_fork(self) -> None:
        self._condition.acquire()  # until after the fork: nobody else may have it in the child
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
