"""The file of a SQLite ledger: checks before its use, and whether it is locked or was replaced."""

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from loanasync.ledger._forking import FORKING

__all__ = ["BusyError", "check_access", "has_tables", "identity", "is_busy"]


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
    check_access(file)
    with FORKING, closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=patience)) as found:
        return bool(found.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def check_access(file: Path) -> None:
    """Check the rights to a file without opening it.

    Raises:
        PermissionError: This user may not read or write it.
    """
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
