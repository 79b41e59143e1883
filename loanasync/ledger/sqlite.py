"""A ledger in an SQLite file, shared by the processes of one machine."""

import asyncio
import errno
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet, finalize

from attrs import define

from loanasync._models.classes import ForkSafe
from loanasync.errors import ConfigurationError, LedgerMismatchError
from loanasync.ledger.header import OTHER_FORMAT, Header, mismatch
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import FORMAT, Entry, dump_entry, load_entry
from loanasync.ledger.store import PAGE_SIZE, Column, Found, FoundHeader, Write

T = TypeVar("T")

_APPLICATION = 0x4C454447  # "LEDG", the application_id that marks an SQLite file as a ledger
_CREATE = (
    """CREATE TABLE ledger (
    id TEXT NOT NULL, generation INTEGER NOT NULL, number INTEGER NOT NULL, header TEXT NOT NULL,
    boot TEXT NOT NULL, boots INTEGER NOT NULL
)""",
    """CREATE TABLE entries (
    key TEXT PRIMARY KEY, state TEXT NOT NULL, revision TEXT NOT NULL,
    customer TEXT NOT NULL, claimed REAL NOT NULL, changed REAL NOT NULL,
    expires REAL NOT NULL, lease_end REAL NOT NULL, document TEXT NOT NULL, body BLOB
)""",
    "CREATE INDEX entries_state ON entries (state, key)",
    # A part of a digest is enough to find an entry, and takes a third of the space.
    "CREATE INDEX entries_customer ON entries (substr(customer, 1, 16))",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
_CREATE_HEADER = "INSERT INTO ledger VALUES (?, ?, 1, ?, '', 0)"
_HEADER = "SELECT id, generation, number FROM ledger"
_SWAP_HEADER = "UPDATE ledger SET id = ?, generation = ?, header = ? WHERE id = ? AND generation = ?"
_COUNT_WRITE = "UPDATE ledger SET number = number + 1"

_COLUMNS = "key, state, revision, customer, claimed, changed, expires, document, body, lease_end"

# One statement, so that the entry is not older than the generation.
_READ = f"SELECT id, generation, number, {_COLUMNS} FROM ledger LEFT JOIN entries ON key = ?"  # noqa: S608  (constants)
_FIND = "SELECT revision, lease_end FROM entries WHERE key = ?"
_PAGE = f"""
SELECT {_COLUMNS} FROM entries WHERE {{}} AND key >= :first AND key <> :last ORDER BY key LIMIT {PAGE_SIZE}
"""  # noqa: S608  (constants)
# The second condition uses the index. Without the plus, SQLite would replace its column by the value.
_CONDITIONS = {
    "": ":value = ''",
    "state": "state = :value",
    "customer": "+customer = :value AND substr(customer, 1, 16) = substr(:value, 1, 16)",
}
_WRITE = """
REPLACE INTO entries (
    key, state, revision, customer, claimed, changed, expires, document, body, lease_end
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DROP = "DELETE FROM entries WHERE key = ? AND revision = ?"

_LOCK_TIMEOUT = 0.1  # seconds of one wait for a lock; this process can fork between two waits
_LOCK_PAUSE = 0.005  # seconds between two attempts
_LEAST_FREE = 1_000_000  # bytes on the disk
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes until the next boot
_LOCKS = Path("/proc/locks")
_LOCK = re.compile(r"POSIX +ADVISORY +WRITE +(\d+) +\S+:(\d+) ")  # the process and the inode
_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT = re.compile(r"^(?:\S+ ){4}(\S+) .* - (\S+)", re.MULTILINE)  # the mount point and the file system
# File systems of a network or of another process.
_REMOTE = re.compile(r"nfs4?|cifs|smbfs|smb[23]|fuse(\..*)?|9p|afs|beegfs|ceph|gpfs|lustre")
_BOOT_SPACING = 4e9  # seconds by which a boot advances the lease clock; more than any uptime or time of day

_FULL = "the disk is full: free some space"
_READ_ONLY = "the file, its -wal or -shm file, or its folder is not writable: let this user write to them"
_NO_LINKS = "the file system has no hard links: put the ledger on another local disk"
_DAMAGED = "is damaged, truncated, or not an SQLite file: restore it, or name another file"
_END_LOCK = "end that process, or set a longer patience"
_CAUSES = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: let this user read and write it and its folder",
    sqlite3.SQLITE_BUSY: f"another process locks the file: {_END_LOCK}",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write the file: check the disk, which must be local",
    sqlite3.SQLITE_NOTADB: f"the file {_DAMAGED}",
    sqlite3.SQLITE_CORRUPT: f"the file {_DAMAGED}",
}
_SYSTEM_CAUSES = {
    errno.ENOSPC: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    errno.ENOENT: (
        "the file or its -wal file was deleted or replaced while it was open: restore it, then restart this "
        "process"
    ),
    errno.EPERM: _NO_LINKS,
    errno.EOPNOTSUPP: _NO_LINKS,
    errno.ENOTSUP: _NO_LINKS,  # another number on macOS
}


class SqliteLedger(Ledger):
    """A ledger in an SQLite file, for all clients and processes of one machine.

    Use it unless your processes run on several machines. It needs no other package.

    A completed write survives a power failure (``synchronous=EXTRA``). Only the user who created the file can
    read it and the files beside it (``-wal``, ``-shm``). The file must be on a local disk. Without working
    locks, two processes could request the same customer, so on Linux a file on a network or user-space file
    system (NFS, SMB, FUSE, 9P, Ceph) is refused.

    Entries are dated by the system clock. On Linux, leases are measured by a clock that cannot be set, and
    expire when the machine boots. On other systems, they are measured by the system clock.

    If the file is deleted or replaced while it is open, every method raises FileNotFoundError, so that a
    client sends nothing. With an empty file, every customer would be requested again. Restore the file; then
    close the ledger or restart the process.

    The file is opened on first use. A separate thread reads and writes it, so that the event loop never waits
    for the disk. The file is closed at the end of the process, even if the ledger was not closed.

    Args:
        path: Path of the file. Its folder must exist.
        patience: Seconds to wait while other processes write.
        must_exist: Raise LedgerMismatchError if the file is missing. By default, the first client creates it.
        local_only: Raise LedgerMismatchError if the file is on a network or user-space file system. False
            accepts any file system: its locks must work between all processes that use the file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import SqliteLedger
        >>> with TemporaryDirectory() as folder:
        ...     print(run(SqliteLedger(f"{folder}/mistyped.db", must_exist=True).get("missing")))
        Traceback (most recent call last):
        ...
        loanasync.LedgerMismatchError: ...
    """

    def __init__(
        self, path: str | Path, *, patience: float = 10.0, must_exist: bool = False, local_only: bool = True
    ) -> None:
        if "://" in str(path):
            del path  # may contain a password: must not be in a traceback
            raise ConfigurationError(
                "ledger", "must be the path of a file; for an address, use LOANASYNC_LEDGER or another ledger"
            )
        super().__init__(_SqliteStore(Path(path), patience, local_only=local_only), creates=not must_exist)

    async def find_header(self) -> Header | None:
        """See `Ledger.find_header`. A missing folder is an error, since no file can be created there."""
        header = await super().find_header()
        if header is None and not await asyncio.to_thread(Path(self._store.name).parent.is_dir):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))  # it could not be created
        return header

    def __repr__(self) -> str:
        return f"SqliteLedger({self._store.name!r})"


class _Connection(Connection):
    """A connection to the file of a ledger."""

    now: Callable[[], float]  # the lease clock, see `_lease_clock`
    folder: Path


@define
class _Transaction:
    """A write transaction, which all writes that wait at the same time share."""

    connection: _Connection
    id: str
    generation: int
    number: int  # before the transaction
    now: float
    time_of_day: float
    has_written: bool = False


Reading: TypeAlias = Callable[[_Connection], T]
Writing: TypeAlias = Callable[[_Transaction], T]


class _MissingFileError(LedgerMismatchError):
    """There is no file."""


class _SqliteStore(ForkSafe):
    def __init__(self, file: Path, patience: float, *, local_only: bool = True) -> None:
        super().__init__()
        self.name = str(file)
        self._file = file
        self._patience = patience
        self._local_only = local_only
        self._thread: _DatabaseThread | None = None

    def database(self) -> "_DatabaseThread":
        with self.lock:
            # The threads of the parent do not exist in a forked child.
            if self._thread is None or self._thread.process != os.getpid():
                self._thread = _DatabaseThread(self._file, self._patience, local_only=self._local_only)
            return self._thread

    async def header(self) -> FoundHeader:
        try:
            return await self.database().read(partial(_find_header, self.name))
        except _MissingFileError:
            return FoundHeader(None, 0.0, 0)

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        if replaces is None:
            create = partial(_create_file, self._file, header, local_only=self._local_only)
            return await self.database().run(create)
        return await self.database().write(partial(_swap_header, header, replaces))

    async def read(self, key: str, header: Header) -> Found:
        return await self.database().read(partial(_read, key, header))

    async def swap(self, write: Write) -> Found:
        return await self.database().write(partial(_swap, write))

    async def page(
        self, column: Column, value: str, first: str, last: str, header: Header
    ) -> Sequence[Entry]:
        statement = _PAGE.format(_CONDITIONS[column])
        given = {"value": value, "first": first, "last": last}
        return await self.database().read(partial(_page, statement, given, header))

    async def drop(self, entries: Sequence[Entry], header: Header) -> int:
        return await self.database().write(partial(_drop, entries, header))

    def reason(self, error: BaseException) -> str:
        if isinstance(error, OSError):
            return _SYSTEM_CAUSES.get(error.errno or 0, "")
        owners = "".join(getattr(error, "__notes__", ()))
        return (
            f"process {owners} locks the file: {_END_LOCK}"
            if owners
            else _CAUSES.get(_result_code(error), "")
        )

    async def aclose(self) -> None:
        with self.lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.process == os.getpid():
            await thread.end()


def _find_header(name: str, connection: _Connection) -> FoundHeader:
    document, number = connection.execute("SELECT header, number FROM ledger").fetchone()
    return FoundHeader(Header.from_json(document, name), connection.now(), number)


def _swap_header(header: Header, replaces: Header, transaction: _Transaction) -> bool:
    new = (header.id, header.generation, header.as_json())
    changed = transaction.connection.execute(_SWAP_HEADER, (*new, replaces.id, replaces.generation)).rowcount
    transaction.has_written |= bool(changed)
    return bool(changed)


def _check(header: Header, stored_id: str) -> None:
    if header.id != stored_id:
        raise mismatch(header.name, "was replaced by another ledger")


def _read(key: str, header: Header, connection: _Connection) -> Found:
    stored_id, generation, number, *row = connection.execute(_READ, (key,)).fetchone()
    _check(header, stored_id)
    now = connection.now()
    return Found(None if row[0] is None else _entry(row, now), now, generation, number)


def _page(
    statement: str, given: Mapping[str, str], header: Header, connection: _Connection
) -> Sequence[Entry]:
    _check(header, connection.execute(_HEADER).fetchone()[0])
    rows = connection.execute(statement, given).fetchall()
    now = connection.now()
    return [_entry(row, now) for row in rows]


def _entry(row: Sequence[Any], now: float) -> Entry:
    *columns, document, body, lease_end = row
    return load_entry(columns, document, body, left=lease_end - now)


def _swap(write: Write, transaction: _Transaction) -> Found:
    _check(write.header, transaction.id)
    entry, connection, now = write.entry, transaction.connection, transaction.now
    if write.lease is not None:  # a claim, whose settlement needs space: otherwise the response would be lost
        total, _, free = shutil.disk_usage(connection.folder)
        if total and free < _LEAST_FREE:  # some file systems do not tell
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    revision, end = connection.execute(_FIND, (entry.key,)).fetchone() or ("", now)
    generation, today = transaction.generation, transaction.time_of_day
    end = write.set_times(revision, end - now, generation=generation, now=now, time_of_day=today)
    if end is None:
        return _read(entry.key, write.header, connection)
    connection.execute(_WRITE, (*dump_entry(entry), end))
    transaction.has_written = True
    return Found(entry, now, generation, transaction.number + 1)


def _drop(entries: Sequence[Entry], header: Header, transaction: _Transaction) -> int:
    _check(header, transaction.id)
    revisions = [(entry.key, entry.revision) for entry in entries]
    dropped = transaction.connection.executemany(_DROP, revisions).rowcount
    transaction.has_written = True
    return dropped


class _DatabaseThread:
    """The thread that uses the file, and its connection.

    Writes that wait at the same time share one transaction, because the commit is the slow part.
    """

    def __init__(self, file: Path, patience: float, *, local_only: bool) -> None:
        self.process: int = os.getpid()
        self._file = file
        self._patience = patience
        self._local_only = local_only
        self._connection: _Connection | None = None
        self._opened_identity: tuple[int, int] | None = None  # of the opened file
        self._log = file  # its -wal file, which SQLite keeps while the file is open
        self._log_identity: tuple[int, int] | None = None
        self._finalizer: Callable[[], object] | None = None
        self._executor = ThreadPoolExecutor(1, "loanasync-ledger")
        self._writes: deque[tuple[Writing[Any], asyncio.Future[Any]]] = deque()
        FORK_GUARD.register(self)

    async def run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def read(self, use: Reading[T]) -> T:
        return await self.run(lambda: self._retry(lambda: use(self._connect())))

    async def write(self, use: Writing[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writes.append((use, future))
        self._executor.submit(self._write_all)
        return await future

    def _write_all(self) -> None:
        waiting = [self._writes.popleft() for _ in range(len(self._writes))]
        writes = [(use, future) for use, future in waiting if not future.cancelled()]
        if not writes:  # an earlier call of this method has run them, or all were cancelled
            return
        results: Sequence[object]
        try:
            results = self._retry(lambda: self._run([use for use, _ in writes]))
        except Exception as error:  # noqa: BLE001  (raised by each `write` call)
            results = [error] * len(writes)
        for (_, future), result in zip(writes, results, strict=True):
            with suppress(RuntimeError):  # the event loop was closed
                future.get_loop().call_soon_threadsafe(_end_write, future, result)

    def _run(self, writes: Sequence[Writing[Any]]) -> list[object]:
        connection = self._connect()
        with _write_transaction(connection):
            stored_id, generation, number = connection.execute(_HEADER).fetchone()
            now, today = connection.now(), time.time()
            transaction = _Transaction(connection, stored_id, generation, number, now, today)
            results = [_run_write(write, transaction) for write in writes]
            if transaction.has_written:
                connection.execute(_COUNT_WRITE)
        return results

    def _retry(self, use: Callable[[], T]) -> T:
        """Call `use` until another process no longer locks the file. This process can fork between two calls.

        `use` waits for a lock only for a short time. After `patience` seconds, its error is raised, with a
        note of the owners of the lock.
        """
        until = time.monotonic() + self._patience
        while True:
            try:
                with FORK_GUARD:
                    return use()
            except sqlite3.OperationalError as error:
                is_locked = _result_code(error) == sqlite3.SQLITE_BUSY
                if not is_locked or time.monotonic() >= until:
                    if is_locked:
                        error.add_note(_lock_owners(self._file))
                    raise
            time.sleep(_LOCK_PAUSE)

    def _connect(self) -> _Connection:
        """Return the connection; open the file if necessary."""
        is_replaced = self._opened_identity not in (None, _identity(self._file))
        if self._connection is not None:
            is_replaced |= self._log_identity != _identity(self._log)
        if is_replaced:
            # With an empty file, every customer would be requested again. Without the -wal file, other
            # processes do not see the writes of this one. `aclose` forgets the identity.
            raise FileNotFoundError(errno.ENOENT, "deleted or replaced while it was open", str(self._file))
        if self._connection is None:
            self._connection = _open_file(self._file, self._patience, local_only=self._local_only)
            self._log = Path(f"{os.path.realpath(self._file)}-wal")
            self._opened_identity, self._log_identity = _identity(self._file), _identity(self._log)
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


def _run_write(use: Writing[Any], transaction: _Transaction) -> object:
    """Return the result or the error of one write in a transaction of several.

    The error of one write does not undo the others, unless it is an OperationalError, such as a full disk.
    """
    try:
        return use(transaction)
    except sqlite3.OperationalError:
        raise
    except Exception as error:  # noqa: BLE001  (raised by the `write` call)
        return error


def _result_code(error: BaseException) -> int:
    """Return SQLite's primary result code, such as SQLITE_BUSY; 0 for other errors."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF


def _identity(file: Path) -> tuple[int, int] | None:
    """Return the device and inode number of a file, to detect a replaced file; None if it does not exist."""
    try:
        status = os.stat(file)  # noqa: PTH116  (faster than `Path.stat`, and called for each operation)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _lock_owners(file: Path) -> str:
    """Return the ids of other processes that write to a file, as far as the system tells."""
    with suppress(OSError):
        inodes = {identity[1] for end in ("", "-shm") if (identity := _identity(Path(f"{file}{end}")))}
        found = _LOCK.findall(_LOCKS.read_text(encoding="ascii"))
        return " and ".join(
            sorted({pid for pid, inode in found if int(inode) in inodes} - {str(os.getpid())})
        )
    return ""


def _create_file(path: Path, header: Header, *, local_only: bool) -> bool:
    """Create the file of a ledger; return False if the file exists.

    The file gets its name when it is complete, so that no other process sees a part of it.
    """
    file = Path(os.path.realpath(path))
    _check_mount(file, header.name, local_only=local_only)
    if os.path.exists(f"{file}-wal"):  # noqa: PTH110  (a text)
        if file.exists():
            return False
        # SQLite would add the last entries of the deleted file to the new one.
        raise mismatch(header.name, "was deleted, but not its -wal file: restore it, or name another file")
    try:
        handle, draft = tempfile.mkstemp(".new", f"{file.name}.", file.parent)  # mode 0600
    except (FileNotFoundError, PermissionError):  # FileNotFoundError also in a folder such as /proc
        advice = "make its folder writable" if file.parent.is_dir() else "create its folder"
        raise mismatch(header.name, f"cannot be created: {advice}, or check the name") from None
    os.close(handle)
    try:
        with FORK_GUARD, closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            with _write_transaction(connection):
                for statement in _CREATE:
                    connection.execute(statement)
                connection.execute(_CREATE_HEADER, (header.id, header.generation, header.as_json()))
            connection.execute("PRAGMA journal_mode = WAL")
        os.link(draft, file)  # SQLite syncs the folder before it first commits to the file
    except FileExistsError:
        return False
    finally:
        Path(draft).unlink()
    return True


def _open_file(path: Path, patience: float, *, local_only: bool) -> _Connection:
    """Open the file of a ledger.

    Raises:
        LedgerMismatchError: The file does not exist, is not on a local disk, or is not a ledger of this
            version's format.
    """
    name = str(path)
    file = Path(os.path.realpath(path))  # absolute, so that SQLite treats no name specially (":memory:")
    # Do not open the file except by SQLite: closing it would drop the locks of all ledgers in this process.
    if not file.exists():
        reason = "does not exist: check the name, or run loanasync ledger create"
        raise _MissingFileError("ledger", "", name, reason)
    _check_mount(file, name, local_only=local_only)
    connection = sqlite3.connect(
        f"{file.as_uri()}?mode=rw",
        uri=True,
        timeout=min(_LOCK_TIMEOUT, patience),
        isolation_level=None,
        check_same_thread=False,
        factory=_Connection,
    )
    try:
        _check_format(connection, name)
        connection.execute("PRAGMA journal_mode = WAL")  # a restored copy may have another mode
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk
        connection.execute("PRAGMA secure_delete = ON")  # a purge overwrites what it deletes
        connection.now, connection.folder = _lease_clock(connection), file.parent
    except sqlite3.DatabaseError as error:
        connection.close()
        if _result_code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise mismatch(name, _DAMAGED) from None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _check_mount(file: Path, name: str, *, local_only: bool) -> None:
    """Refuse a file whose -wal file or locks other processes may not share. The file may not exist yet.

    Raises:
        LedgerMismatchError: It is mounted without its folder, as containers do, or is not on a local disk.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # systems other than Linux
        return
    escaped = str(file).translate({ord(each): f"\\{ord(each):03o}" for each in " \t\n\\"})
    # Of two mounts on the same point, the later one is visible.
    found = [each for each in _MOUNT.findall(mounts) if f"{escaped}/".startswith(f"{each[0].rstrip('/')}/")]
    point, kind = max([("", ""), *reversed(found)], key=lambda each: len(each[0]))
    if point == escaped:
        reason = "is mounted without its folder, where SQLite writes a part of it: mount the folder"
        raise mismatch(name, reason)
    if local_only and _REMOTE.fullmatch(kind):
        raise mismatch(
            name,
            f"is on a network or user-space file system ({kind}), whose locks may not work: put it on a "
            "local disk, or use a ledger on a server. If the locks work, pass local_only=False, or add "
            "?local_only=no to its address sqlite:///...",
        )


def _check_format(connection: Connection, name: str) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise mismatch(name, "is empty, or is not a ledger: restore it, or name another file")
    if connection.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
        raise mismatch(name, OTHER_FORMAT)
    has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'").fetchone()
    if not has_table or connection.execute(_HEADER).fetchone() is None:
        raise mismatch(name, "has no header: restore it, or name another file")


@contextmanager
def _write_transaction(connection: Connection) -> Iterator[None]:
    """Run the block in a transaction that excludes other writers from its first read to its commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # some errors, such as a full disk, end the transaction themselves
            connection.execute("ROLLBACK")


def _lease_clock(connection: Connection) -> Callable[[], float]:
    """Return the clock of the leases: a function that returns seconds. It cannot be set.

    It is the machine's uptime, advanced by a fixed number with each boot. So a reboot, which ends the owners
    of all leases, expires them. A process on Linux that may not read the boot id counts no boot. Other
    systems have none; there it is the time of day.
    """
    boot = ""
    with suppress(OSError):
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    is_known = bool(boot) or not hasattr(time, "CLOCK_BOOTTIME")
    if is_known and connection.execute("SELECT boot FROM ledger").fetchone()[0] != boot:
        with _write_transaction(connection):
            connection.execute("UPDATE ledger SET boot = ?, boots = boots + 1 WHERE boot <> ?", (boot, boot))
    stored, boots = connection.execute("SELECT boot, boots FROM ledger").fetchone()
    start = boots * _BOOT_SPACING
    return (lambda: start + _uptime()) if stored else (lambda: start + time.time())


def _uptime() -> float:
    """Return the seconds since the machine booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _ForkGuard:
    """Lets one thread at a time use SQLite files or fork, and closes the files before a fork.

    Wrap each use of a file in ``with FORK_GUARD``.

    SQLite keeps a list of this process's file locks in memory. A forked child inherits the list, but not the
    locks. So it could use a file without a lock. Another process that closes the file would then delete the
    write-ahead log, to which the child still writes decisions.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held across a fork, so that no other thread holds it in the child
        self._users: WeakSet[_DatabaseThread] = WeakSet()
        if hasattr(os, "register_at_fork"):  # Windows does not fork
            after = {"after_in_parent": self._lock.release, "after_in_child": self._lock.release}
            os.register_at_fork(before=self._before_fork, **after)

    def register(self, user: _DatabaseThread) -> None:
        """Close the user's file before each fork."""
        self._users.add(user)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _before_fork(self) -> None:
        self._lock.acquire()
        for user in tuple(self._users):
            user.close_file()


FORK_GUARD = _ForkGuard()
