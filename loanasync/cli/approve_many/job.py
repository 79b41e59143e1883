"""The job file of `approve-many`: a table of its rows, and the names of its service, ledger and inputs.

It is an SQLite file. Without ``--ledger`` it is also the ledger of the job. The table contains no fiscal
code: a customer is the key of a ledger entry, which is a digest.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import starmap
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from loanasync._display.masking import mask
from loanasync.cli.ledger.open import UnusableError

_PATIENCE = 10.0  # seconds to wait while the ledger writes to the same file
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ROWS = """(
    number INTEGER PRIMARY KEY, line INTEGER NOT NULL, id TEXT NOT NULL, key TEXT NOT NULL,
    run INTEGER NOT NULL, input TEXT NOT NULL, kind TEXT NOT NULL, cents INTEGER NOT NULL,
    state TEXT NOT NULL, record BLOB
)"""
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS job.rows {_ROWS}",
    "CREATE INDEX IF NOT EXISTS job.rows_key ON rows (key)",
    "CREATE INDEX IF NOT EXISTS job.rows_line ON rows (line)",
    "CREATE INDEX IF NOT EXISTS job.rows_id ON rows (id)",
    "CREATE TABLE IF NOT EXISTS job.members (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)
# States of rows that may be sent, again or for the first time. A correction takes their place. The state is
# the outcome of the row, or "failed" for an error about a customer who was decided before.
_NOT_CREATED = ("", "not_sent", "not_evaluated")
CREATED = "created"  # may be sent, and its loan request may exist: its creation may have been sent
MAY_BE_SENT = (*_NOT_CREATED, CREATED)
_MAY_BE_SENT = f"state IN {MAY_BE_SENT}"
_COLUMNS = "number, line, id, key, input, cents, state, record, run ="
_BY_PLACE = f"""(line = ?2 OR (id = ?3 AND id <> 'null')) AND input = ?4 AND {_MAY_BE_SENT}
ORDER BY line <> ?2, run DESC"""


class Kind(StrEnum):
    """The kind of a row in a plan and in a summary: what a run does with it, then its result."""

    TO_BE_SENT = "to be sent"
    IN_PROGRESS = "in progress elsewhere"
    APPROVED = "approved"
    REFUSED = "refused"
    FROM_LEDGER = "from the ledger"
    EARLIER = "earlier"
    REFUSED_LOCALLY = "refused locally"
    UNKNOWN = "unknown"
    FAILED = "failed"


UNFINISHED = (Kind.TO_BE_SENT, Kind.FROM_LEDGER, Kind.IN_PROGRESS)


@define
class Counts:
    """Number of rows and sum of their amounts, by kind. Plan, progress, summary and report show these."""

    rows: Counter[Kind] = field(factory=Counter)
    cents: Counter[Kind] = field(factory=Counter)

    def add(self, kind: Kind, cents: int, rows: int = 1) -> None:
        """Count rows, and their amounts."""
        self.rows[kind] += rows
        self.cents[kind] += cents

    def move(self, before: Kind, after: Kind, cents: int) -> None:
        """Count a row as another kind."""
        self.add(before, -cents, -1)
        self.add(after, cents)

    @property
    def total(self) -> int:
        """Number of all rows."""
        return self.rows.total()

    def members(self) -> dict[str, dict[str, int]]:
        """Return the counts as the members of a report."""
        return {
            kind.value.replace(" ", "_"): {"rows": self.rows[kind], "cents": self.cents[kind]}
            for kind in Kind
        }


@frozen
class JobRow:
    """A row of the job.

    Args:
        source: Name of its input.
        is_current: A row of the run that holds the job.
    """

    number: int
    line: int
    id: str
    key: str
    source: str
    cents: int
    state: str
    record: bytes | None = field(repr=mask)
    is_current: bool


@frozen
class Target:
    """A row of the job that needs a result.

    Args:
        may_exist: An earlier run may have created its loan request.
    """

    number: int
    kind: Kind
    cents: int
    may_exist: bool


class Job:
    """The table of rows. A plan is made in a temporary database, and `begin` writes it to the file.

    Args:
        path: Path of the file. If there is no file, the job is new and in memory.

    Raises:
        UnusableError: The file is not that of a job.
    """

    def __init__(self, path: Path | None) -> None:
        self._db = sqlite3.connect(
            "", timeout=_PATIENCE, isolation_level=None, check_same_thread=False, uri=True
        )
        self._db.execute(f"CREATE TABLE plan {_ROWS.replace(' PRIMARY KEY', '')}")
        self._taken: set[int] = set()  # numbers of rows in the plan
        self._is_locked = False
        self.path: Path | None = None
        self.members: dict[str, Any] = {}  # what the job belongs to; empty for a new one
        if path is not None and path.exists():
            with _readable(path):
                self._attach(path)
                self._read_members()
        if not self.members:  # no run has begun
            self._detach()
            self._db.execute("ATTACH ':memory:' AS job")
            self._create()
        self.run: int = 1 + self._db.execute("SELECT COALESCE(MAX(run), 0) FROM job.rows").fetchone()[0]

    def _attach(self, path: Path) -> None:
        file = Path(os.path.realpath(path))
        self._db.execute("ATTACH ? AS job", (f"{file.as_uri()}?mode=rw",))
        self._db.execute("PRAGMA job.synchronous = NORMAL")
        self.path = path

    def _detach(self) -> None:
        if self.path is not None:
            self._db.execute("DETACH job")
            self.path = None

    def _read_members(self) -> None:
        tables = self._db.execute("SELECT name FROM job.sqlite_master WHERE name = 'members'")
        if tables.fetchone() is not None:
            rows = self._db.execute("SELECT name, value FROM job.members")
            self.members = {name: json.loads(value) for name, value in rows}

    def _create(self) -> None:
        for statement in _CREATE:
            self._db.execute(statement)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def lock(self) -> None:
        """Refuse a second run at the same time. The lock ends with its process.

        Raises:
            UnusableError: Another run uses the job.
        """
        with self._transaction():
            self._lock()

    def _lock(self) -> None:
        self.check_lock()
        self._set("process", _process(os.getpid()))
        self._is_locked = True

    def check_lock(self) -> None:
        """Raise UnusableError if another run uses the job."""
        found = self._db.execute("SELECT value FROM job.members WHERE name = 'process'").fetchone()
        if found is not None and _is_running(json.loads(found[0])):
            out = str(self.path).removesuffix(".ledger")
            raise UnusableError(
                f"another run is writing to {out}: wait until it ends, then run this command again"
            )

    def _set(self, name: str, value: object) -> None:
        self._db.execute("REPLACE INTO job.members VALUES (?, ?)", (name, json.dumps(value)))

    def has_evaluated(self) -> bool:
        """Return True if the service may have evaluated a customer."""
        return bool(
            self._db.execute(
                f"SELECT 1 FROM job.rows WHERE NOT {_MAY_BE_SENT} LIMIT 1"  # noqa: S608  (constants)
            ).fetchone()
        )

    def find(self, keys: Sequence[str], line: int, row_id: str, source: str) -> JobRow | None:
        """Return the row of a customer, else one that may be sent and has the same line or id.

        Args:
            keys: The keys of the customer.
            line: The line of the row.
            row_id: Its id, as JSON.
            source: Its input.
        """
        found = (row for key in keys for row in self._rows("key = ?2", key))
        place = self._rows(_BY_PLACE, line, row_id, source)
        return next(found, None) or next(place, None)

    def plan(self, found: JobRow | None, *values: object) -> None:
        """Add a row to the plan.

        Args:
            found: The row of the job that it replaces.
            values: The values of the columns after ``number``.
        """
        number = None if found is None or found.number in self._taken else found.number
        if number is not None:
            self._taken.add(number)
        line, row_id, key, source, kind, cents, state, record = values
        row = (number, line, row_id, key, self.run, source, kind, cents, state, record)
        self._db.execute("INSERT INTO plan VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def begin(self, path: Path | None, source: str, members: Mapping[str, object]) -> None:
        """Write the plan to the job. Rows of the same input that are no longer in it are removed.

        Args:
            path: Path of the file; None keeps the job in memory. A file is created if it does not exist.
            source: The input.
            members: Service, ledger and inputs of the job.

        Raises:
            UnusableError: Another run uses the job.
            OSError: The file cannot be created.
            sqlite3.Error: The file cannot be written.
        """
        is_new = path is not None and self.path is None
        if path is not None and is_new:
            with suppress(FileExistsError):  # the ledger
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._db.execute("DETACH job")
            self._attach(path)
            self._db.execute("PRAGMA job.journal_mode = WAL")
        with self._transaction():
            self._create()
            if is_new or not self._is_locked:
                self._lock()
            if is_new and self._db.execute("SELECT 1 FROM job.rows LIMIT 1").fetchone():
                raise UnusableError(f"another run has begun {path}: run this command again")
            self.members |= members
            for name, value in self.members.items():
                if name != "process":
                    self._set(name, value)
            self._db.execute("REPLACE INTO job.rows SELECT * FROM plan")
            stale = f"DELETE FROM job.rows WHERE input = ? AND run < ? AND {_MAY_BE_SENT}"  # noqa: S608  (constants)
            self._db.execute(stale, (source, self.run))

    def targets(self) -> dict[str, Target]:
        """Return the rows of this run that need a result, by key."""
        kinds = ", ".join(f"'{kind}'" for kind in UNFINISHED)
        condition = f"run = ? AND key <> '' AND (record IS NULL OR kind IN ({kinds}))"
        columns = "key, number, kind, cents, state"
        statement = f"SELECT {columns} FROM job.rows WHERE {condition}"  # noqa: S608  (constants)
        found = self._db.execute(statement, (self.run,))
        return {
            key: Target(number, Kind(kind), cents, state not in _NOT_CREATED)
            for key, number, kind, cents, state in found
        }

    def mark_created(self, numbers: Sequence[int]) -> None:
        """Write that the creation of each row's loan request may have been sent.

        Raises:
            sqlite3.Error: The file cannot be written.
        """
        with self._transaction():
            rows = [(CREATED, number) for number in numbers]
            self._db.executemany("UPDATE job.rows SET state = ? WHERE number = ?", rows)

    def finish(self, results: Sequence[tuple[Kind, str, bytes, int]]) -> None:
        """Write results: the kind, the state, the record, and the number of the row.

        Raises:
            sqlite3.Error: The file cannot be written.
        """
        with self._transaction():
            self._db.executemany(
                "UPDATE job.rows SET kind = ?, state = ?, record = ? WHERE number = ?", results
            )

    def rows(self) -> Iterator[JobRow]:
        """Yield all rows, in the order of the lines."""
        return self._rows("TRUE ORDER BY line, number")

    def _rows(self, condition: str, *values: object) -> Iterator[JobRow]:
        statement = f"SELECT {_COLUMNS} ?1 FROM job.rows WHERE {condition}"  # noqa: S608  (constants)
        current = self.run if self._is_locked else -1
        return starmap(JobRow, self._db.execute(statement, (current, *values)))

    def planned(self) -> Counts:
        """Count the rows of the plan."""
        counts = Counts()
        for kind, rows, cents in self._db.execute(
            "SELECT kind, COUNT(*), SUM(cents) FROM plan GROUP BY kind"
        ):
            counts.add(Kind(kind), cents, rows)
        return counts

    def close(self) -> None:
        """End the lock, and close the file."""
        with suppress(sqlite3.Error):  # such as a full disk: the lock ends with this process
            if self._is_locked:
                self._db.execute("DELETE FROM job.members WHERE name = 'process'")
        self._db.close()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Refuse a file that SQLite cannot read."""
    try:
        yield
    except sqlite3.OperationalError:
        raise UnusableError(
            f"{path} cannot be read: it must be a file of this user on a local disk"
        ) from None
    except sqlite3.DatabaseError:
        raise UnusableError(f"{path} is damaged, truncated, or not a job file: restore it") from None


def _process(number: int) -> dict[str, object]:
    """Return what identifies a running process, also after its number was given to another one."""
    with suppress(OSError, IndexError):
        state, *others = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
        return {"number": number, "started": "" if state == "Z" else f"{boot} {others[18]}"}
    return {"number": number, "started": ""}


def _is_running(process: Mapping[str, Any]) -> bool:
    if os.name != "posix":  # there, the number of a process cannot be checked without ending it
        return False
    try:
        os.kill(process["number"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return _process(process["number"]) == process
