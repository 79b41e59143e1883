"""Storage of the sandbox's customers in an SQLite file, which survives a crash of the process."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

_APPLICATION_ID = 0x4C4F414E  # "LOAN" in ASCII
_VERSION = 4


class StateFileError(ValueError):
    """The state file cannot be used: another sandbox has it open, or it is not a state file of a sandbox.

    Example:
        >>> from loanasync.sandbox import StateFileError
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "orders.csv")
        ...     _ = file.write_text("this file has other contents")
        ...     try:
        ...         run(Sandbox(state=file).start())
        ...     except StateFileError:
        ...         print("choose another file")
        choose another file
    """


class SqliteStore:
    """An SQLite file with one table of customers. Writes are atomic, also if the process is killed.

    Args:
        file: Path of the file; it is created if it does not exist.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file).absolute()  # the working directory may change
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        """True if the file is open."""
        return self._connection is not None

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None  # noqa: S101  (for the type checkers: `open` comes first)
        return self._connection

    def open(self) -> dict[str, str]:
        """Open the file and lock it for this sandbox; return all records by fiscal code, oldest first.

        Raises:
            StateFileError: The file is not a state file of a sandbox, or another sandbox uses it.
        """
        try:
            # Other threads may use the connection, because the engine's lock allows one at a time.
            self._connection = sqlite3.connect(
                self._file, isolation_level=None, timeout=0, check_same_thread=False
            )
            self._prepare()
            return dict(self._database.execute("SELECT code, record FROM customers ORDER BY rowid"))
        except sqlite3.Error as error:
            reason = "another sandbox uses it" if "locked" in str(error) else str(error)
            message = f"state file {self._file} cannot be used: {reason}. Choose another file"
            raise StateFileError(message) from None

    def _prepare(self) -> None:
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application_id = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        if tables and (application_id, version) != (_APPLICATION_ID, _VERSION):
            raise StateFileError(f"{self._file} is not a state file of this sandbox: choose another file")
        # Writes survive a kill of the process. A power failure may lose the last writes.
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")  # takes the exclusive lock, which is kept until `close`
        run("CREATE TABLE IF NOT EXISTS customers (code TEXT PRIMARY KEY, record TEXT NOT NULL)")
        run(f"PRAGMA application_id = {_APPLICATION_ID}")
        run(f"PRAGMA user_version = {_VERSION}")
        run("COMMIT")

    def put(self, code: str, record: str) -> None:
        """Write one record."""
        self._database.execute(
            "INSERT INTO customers VALUES (?, ?) ON CONFLICT (code) DO UPDATE SET record = excluded.record",
            (code, record),
        )

    def delete(self, code: str) -> None:
        """Delete one record."""
        self._database.execute("DELETE FROM customers WHERE code = ?", (code,))

    def replace(self, records: Mapping[str, str]) -> None:
        """Replace all records in one transaction."""
        with self._database:
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM customers")
            self._database.executemany("INSERT INTO customers VALUES (?, ?)", records.items())

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
