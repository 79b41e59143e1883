"""State of the sandbox in an SQLite file, which survives a stop, a crash or a kill."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

_APPLICATION = 0x4C4F414E  # "LOAN", SQLite's mark of whose file it is
_VERSION = 1


class StateFileError(ValueError):
    """The file cannot be used as a sandbox's state; the text says why and what to do.

    Example:
        >>> from loanasync.sandbox import StateFileError
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "orders.csv")
        ...     _ = file.write_text("no customers, but a file all the same")
        ...     try:
        ...         run(Sandbox(state=file).start())
        ...     except StateFileError:
        ...         print("name another file")
        name another file
    """


class SqliteStore:
    """One table of customers; each write is whole or not there, whenever the process ends.

    Args:
        file: Made when it is not there.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file).absolute()  # also after a change of the working folder
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None  # noqa: S101  (for the type checkers: it is opened first)
        return self._connection

    def open(self) -> None:
        """Make the file this sandbox's alone.

        Raises:
            StateFileError: It is no state file of a sandbox, or another sandbox uses it.
        """
        try:
            # The thread that opens it need not be the one that serves; never two at once.
            self._connection = sqlite3.connect(
                self._file, isolation_level=None, timeout=0, check_same_thread=False
            )
            self._prepare()
            self._opened = self._identity()
        except sqlite3.Error as error:
            self.close()
            told = "another sandbox uses it" if "locked" in str(error) else str(error)
            raise StateFileError(f"state file {self._file} cannot be used: {told}. Name another") from None
        except StateFileError:
            self.close()
            raise

    def is_there(self) -> bool:
        """Return whether the file is the one that was opened; on POSIX an open file can be removed."""
        return self._identity() == self._opened

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _prepare(self) -> None:
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        mark = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        if tables and (mark, version) != (_APPLICATION, _VERSION):
            raise StateFileError(f"{self._file} is no state file of this sandbox: name another")
        # A killed process loses nothing that was written; a machine without power might lose the last writes.
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")  # from here on the file is this sandbox's alone
        run("CREATE TABLE IF NOT EXISTS customers (code TEXT PRIMARY KEY, record TEXT NOT NULL)")
        run(f"PRAGMA application_id = {_APPLICATION}")
        run(f"PRAGMA user_version = {_VERSION}")
        run("COMMIT")

    def load(self) -> dict[str, str]:
        """All records by fiscal code, oldest first.

        Raises:
            StateFileError: They cannot be read.
        """
        try:
            return dict(self._database.execute("SELECT code, record FROM customers ORDER BY rowid"))
        except sqlite3.Error as error:
            raise StateFileError(f"state file {self._file} cannot be read: {error}. Name another") from None

    def put(self, code: str, record: str) -> None:
        """Write one record."""
        self._database.execute(
            "INSERT INTO customers VALUES (?, ?) ON CONFLICT (code) DO UPDATE SET record = excluded.record",
            (code, record),
        )

    def delete(self, code: str) -> None:
        """Forget one record."""
        self._database.execute("DELETE FROM customers WHERE code = ?", (code,))

    def replace(self, records: Mapping[str, str]) -> None:
        """These records and no others, all at once."""
        with self._database:
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM customers")
            self._database.executemany("INSERT INTO customers VALUES (?, ?)", records.items())

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
