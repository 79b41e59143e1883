"""The file of a SQLite ledger: opening, schema, migration, and whether it is locked or was replaced."""

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from loanasync.errors import ConfigurationError
from loanasync.ledger import lists
from loanasync.ledger.clock import keep_time
from loanasync.ledger.forking import FORKING
from loanasync.ledger.model import FORMAT

T = TypeVar("T")

TURN = 0.1  # seconds to wait for another process at a time, between which this process may fork
_PAUSE = 0.005  # seconds until the next such wait

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
    for name, index in zip(("state", "without_redirect"), lists.INDEXES, strict=True)
)


class BusyError(sqlite3.OperationalError):
    """Another process is opening the file, too."""


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Return True if the file is locked, so that another attempt may succeed."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return isinstance(error, BusyError) or code & 0xFF == sqlite3.SQLITE_BUSY  # without its extension


def identity(file: Path) -> tuple[int, int] | None:
    """Return device and number of a file, which differ if another is in its place; None without a file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def has_tables(file: Path, patience: float) -> bool:
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
    return patiently(partial(_has_tables, file, min(TURN, patience)), patience)


def _has_tables(file: Path, patience: float) -> bool:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=patience)) as found:
        return bool(found.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def patiently(use: Callable[[], T], patience: float) -> T:
    """Use a file; while another process has locked it, wait, and let this process fork meanwhile.

    Args:
        use: The use, which waits for a lock for a short time.
        patience: Seconds after which the last error is raised.
    """
    until = time.monotonic() + patience
    while True:
        try:
            with FORKING:
                return use()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE)


def _check_access(file: Path) -> None:
    """Check the rights to a file without opening it.

    Raises:
        PermissionError: This user may not read or write it.
    """
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


def open_file(file: Path, patience: float) -> sqlite3.Connection:
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
        with writing(connection):
            _prepare(connection, file)
            keep_time(connection)
        _use_wal(connection, patience)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # where fsync alone does not reach the disk (macOS)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, file: Path) -> None:
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


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    # SQLite does not wait by itself for another process that does the same.
    until = time.monotonic() + patience
    while True:
        with suppress(sqlite3.OperationalError):
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        if time.monotonic() > until:
            raise BusyError("no write-ahead log")
        time.sleep(0.01)


class writing:  # noqa: N801  (used as a statement: with writing(connection))
    """One write, from its first look to its commit: nobody else writes in between."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # some failures, such as a full disk, have ended it
                self._connection.execute("ROLLBACK")
