"""Checks of a ledger's file before it is opened for use."""

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from loanasync.ledger._forking import FORKING

__all__ = ["check_access", "has_tables"]


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
