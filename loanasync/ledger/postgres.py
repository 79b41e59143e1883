"""A ledger in PostgreSQL, shared by processes on several machines."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from loanasync._runtime.per_loop import PerLoop
from loanasync.errors import ConfigurationError, LedgerMismatchError
from loanasync.ledger.drivers import CLOSE_TIMEOUT, MAX_AGE, has_changed, masked_url, missing_driver_error
from loanasync.ledger.header import Header, mismatch
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import SERVICE, Entry, dump_entry, load_entry, set_times
from loanasync.ledger.store import PAGE_SIZE, Column, Found, FoundHeader, Write

Row: TypeAlias = Any  # asyncpg has no types
Connection: TypeAlias = Any
Pool: TypeAlias = Any

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,55}(\.[a-z_][a-z0-9_]{0,55})?")  # with "_header", at most 63 bytes
_TABLE = "loanasync_decisions"
_SCHEMES = ("postgresql", "postgres")
_RETRIES = 10
_LOCK_TIMEOUT = "10s"  # for a change of the header
_LOST = 1  # a lower number than that of each write: the tables were restored from a copy
_CONFLICTS = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_UNDEFINED_TABLE = "42P01"
_LATE = "22012"  # division_by_zero, see `_RESULT`
_POOLER = (
    "a pooler shares prepared statements between its clients: put statement_cache_size=0 into the address, "
    "or open your own pool or connection with statement_cache_size=0"
)
_REASONS = {
    "22012": "another transaction locked the entry for too long: look for transactions that stay open",
    "25006": "the server is a read-only replica, or the user may not write: name the primary server",
    "26000": _POOLER,  # invalid_sql_statement_name
    "28000": "the server refuses this user: correct the address, or the server's pg_hba.conf",
    "28P01": "wrong user or password: correct the address",
    "3D000": "the database does not exist: correct the address",
    "42704": "the address has a parameter that the server does not know: remove it",
    "42501": "the user lacks a right: grant SELECT, INSERT, UPDATE and DELETE on both tables of the ledger",
    "42P05": _POOLER,  # duplicate_prepared_statement
    "53100": "the server's disk is full: free some space",
    "53200": "the server has no memory left",
    "53300": "the server has too many connections: use fewer, or raise its max_connections",
    "55P03": "another transaction locked a table of the ledger for too long: end it, then try again",
    "57014": "the server's statement_timeout ended the statement",
    "57P01": "the server is shutting down",
    "57P02": "the server is restarting after a crash",
    "57P03": "the server is starting or shutting down",
}


class PostgresLedger(Ledger):
    """A ledger in two tables of PostgreSQL 12 or later, for clients on several machines.

    Create it with `create_ledger` or ``loanasync ledger create``; a client never does. Its users need the
    rights to SELECT, INSERT, UPDATE and DELETE. Each operation is one statement, which is committed when the
    method returns. The commit waits for the server's disk, even if ``synchronous_commit`` is off for the
    server or the user. Leases are measured by the server's clock.

    With a connection of your own, an operation becomes part of a transaction that is open on that connection.
    So `resolve` and your own statements are committed together, or not at all. Claims and outcomes of the
    service are refused with ConfigurationError: a rollback would undo them after the request was sent.

    Needs the extra ``postgres``, which installs asyncpg.

    Args:
        where: A ``postgresql://`` address with user, password, host, database and any other parameter that
            asyncpg accepts; or your own ``asyncpg.Pool`` or ``asyncpg.Connection``, which the ledger
            does not close. Behind a pooler such as PgBouncer, open yours with ``statement_cache_size=0``.
        table: Name of the table of entries in lower case, with or without a schema. The table of the header
            has the same name with ``_header``.
        connections: Maximum number of connections per event loop, if `where` is an address.
        statement_cache_size: Number of prepared statements that each connection to an address keeps on the
            server. The default, 0, is right behind a pooler. A connection to the server itself is faster with
            100.

    Raises:
        ConfigurationError: The extra is not installed, or the address or the table name is invalid.

    Example:
        >>> from loanasync.ledger import PostgresLedger
        >>> PostgresLedger("postgresql://shop:secret@db.example.com/shop")
        PostgresLedger('postgresql://db.example.com/shop')
    """

    driver: ClassVar[str] = "asyncpg"
    extra: ClassVar[str] = "postgres"

    def __init__(
        self, where: object, *, table: str = _TABLE, connections: int = 10, statement_cache_size: int = 0
    ) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigurationError(
                "ledger",
                "needs a table name of at most 56 lower-case letters, digits and underscores",
            )
        if isinstance(where, str):
            _check_address(where)
            pools = PerLoop(
                lambda: _Pool(where, connections, statement_cache_size), _Pool.close, is_for_calls=True
            )
            self._where = masked_url(where)
            store = _PostgresStore(pools, f"{self._where}?table={table}", table)
        elif hasattr(where, "acquire") or hasattr(where, "fetch"):
            self._where = type(where).__name__
            store = _PostgresStore(where, f"table {table}", table)
        else:
            raise ConfigurationError(
                "ledger", "must be given an address, an asyncpg.Pool or an asyncpg.Connection"
            )
        self._table = table
        super().__init__(store, creates=False)

    def __repr__(self) -> str:
        table = "" if self._table == _TABLE else f", table={self._table!r}"
        return f"PostgresLedger({self._where!r}{table})"


def _check_address(url: str) -> None:
    try:
        import asyncpg  # noqa: F401, PLC0415  (its extra may not be installed)
    except ImportError:
        raise missing_driver_error(PostgresLedger) from None
    if url.partition("://")[0] not in _SCHEMES:
        raise ConfigurationError("ledger", "needs an address that begins with postgresql://")
    try:
        for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
            urlsplit(f"//{host}").port  # noqa: B018  (raises ValueError)
    except ValueError:
        advice = "percent-encode the user and the password"
        raise ConfigurationError("ledger", f"needs an address with a valid host and port: {advice}") from None


class _Session:
    """A connection whose statements have no name on the server.

    The text of a statement is sent each time, with its arguments. So it takes one round trip, and a pooler
    cannot run another client's statement instead. `asyncpg.Connection.fetch` would take two round trips.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._statements: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (of the connection)
        return getattr(self._connection, name)

    async def fetch(self, query: str, *arguments: Any) -> list[Row]:
        if query not in self._statements:
            self._statements[query] = await self._connection.prepare(query, name="")
        rows: list[Row] = await self._statements[query].fetch(*arguments)
        return rows


class _Pool:
    """The connections of one event loop, opened on demand.

    A statement of a connection of `asyncpg.Pool` cannot be used again after its release.
    """

    def __init__(self, url: str, connections: int, statement_cache_size: int) -> None:
        self._url = url
        self._cache_size = statement_cache_size
        self._connections = connections
        # The last released one first; None for a connection that is not open yet.
        self._free: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for _ in range(connections):
            self._free.put_nowait(None)
        self._open: dict[Connection, float] = {}  # with the time of opening
        self._changed = float("-inf")  # time of the last error of the server's role or state

    async def acquire(self) -> Connection:
        connection = await self._free.get()
        if connection is not None:
            least = max(self._changed, time.monotonic() - MAX_AGE)
            if not connection.is_closed() and self._open[connection] > least:
                return connection
            connection.terminate()
            del self._open[connection]
        try:
            return await self._connect()
        except BaseException:
            self._free.put_nowait(None)
            raise

    async def expire_connections(self) -> None:
        """Open all connections again before their next use, as the method of `asyncpg.Pool` does."""
        self._changed = time.monotonic()

    async def _connect(self) -> Connection:
        import asyncpg  # noqa: PLC0415  (its extra may not be installed)

        opened = time.monotonic()
        connection = await asyncpg.connect(self._url, statement_cache_size=self._cache_size)
        session = connection if self._cache_size else _Session(connection)
        self._open[session] = opened
        return session

    async def release(self, connection: Connection) -> None:
        self._free.put_nowait(connection)

    async def close(self, within: float | None) -> None:
        """Close the connections when they are no longer in use, or after a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within or 0.0):
                for _ in range(self._connections):
                    await self._free.get()
                for connection in self._open:
                    await connection.close()
        for connection in self._open:
            connection.terminate()


class _PostgresStore:
    """Entries in a table, and the header in another one.

    The number of a write is the id of its transaction. A promoted standby goes on after the last id that it
    received, so the number goes back if the standby lacks writes. A sequence would not go back, because it is
    logged ahead. In a transaction of the user, all writes have the same id, so there the number is 0.

    The id of another program's transaction may not be on the disk, so a crash of the server may take it back.
    So a read has a number only if it is lower than that of the last write of this store.

    If the tables are restored on the same server, the ids do not go back. But the header's row was then
    written by another transaction, with the same generation.
    """

    def __init__(self, where: Pool | Connection, name: str, table: str) -> None:
        self.name = name
        self._where = where
        self._table = table
        self._lock = asyncio.Lock()  # a connection that was passed in runs one statement at a time
        self._last = (0, 0)  # generation and number of the last write
        self._known: Header | None = None  # as it was last read

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        if hasattr(self._where, "fetch") and not hasattr(self._where, "acquire"):
            async with self._lock:
                yield self._where
            return
        pool = self._where.current() if isinstance(self._where, PerLoop) else self._where
        connection = await pool.acquire()
        try:
            yield connection
        except asyncio.CancelledError:
            connection.terminate()  # otherwise `release` would wait for a server that hangs
            raise
        except Exception as error:
            if has_changed(error):
                await pool.expire_connections()
            raise
        finally:
            await pool.release(connection)

    async def _run(self, statement: str, *arguments: object, must_commit: str = "") -> tuple[list[Row], bool]:
        """Return the rows of a statement, and whether it was committed.

        Raises:
            ConfigurationError: It would not be committed, but what `must_commit` names must be.
        """
        async with self._connection() as connection:
            is_committed = not connection.is_in_transaction()
            if must_commit and not is_committed:
                raise _transaction_error(must_commit)
            return await self._fetch(connection, statement, *arguments), is_committed

    async def _select(self, statement: str, header: Header, *arguments: object) -> tuple[list[Row], bool]:
        """Return what `_run` returns for a statement that has rows if the ledger has this header's id."""
        rows, is_committed = await self._run(statement, header.id, *arguments)
        if not rows:
            raise self._replaced()
        return rows, is_committed

    async def _fetch(self, connection: Connection, statement: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement. Run it again after a conflict with another transaction."""
        query, attempts = statement.format(table=self._table), 0
        while True:
            attempts += 1
            try:
                return list(await connection.fetch(query, *arguments))
            except Exception as error:
                sqlstate = _sqlstate(error)
                if sqlstate == _UNDEFINED_TABLE:
                    raise self._replaced() from None
                # A conflict aborts the transaction of the caller, and only the caller can repeat it.
                if sqlstate not in _CONFLICTS or attempts > _RETRIES or connection.is_in_transaction():
                    raise

    def _replaced(self) -> LedgerMismatchError:
        return mismatch(self.name, "was replaced by another ledger")

    def _incomplete(self) -> LedgerMismatchError:
        advice = "name another table, or restore both tables from a backup"
        return mismatch(self.name, f"is not a ledger of this format, or a part of it is missing: {advice}")

    async def header(self) -> FoundHeader:
        known = self._known
        [[now, columns, header_columns]], _ = await self._run(_COLUMNS_OF)
        if columns is None and header_columns is None:
            return FoundHeader(None, now, 0)
        if not (_COLUMNS.issubset(columns or ()) and _HEADER_COLUMNS.issubset(header_columns or ())):
            raise self._incomplete()
        [[now, text, transaction, has_entries]], _ = await self._run(_HEADER)
        if text is None and has_entries:
            raise self._incomplete()
        if text is None:
            return FoundHeader(None, now, 0)
        header = Header.from_json(text, self.name, transaction)
        if known and known.id == header.id and known.is_restored(header.generation, transaction):
            return FoundHeader(header, now, _LOST, now)
        self._known = header
        return FoundHeader(header, now, 0, now)

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        new = (header.id, header.generation, header.as_json())
        async with self._connection() as connection:
            if connection.is_in_transaction():
                raise _transaction_error("change the header")
            async with connection.transaction(isolation="read_committed"):
                await self._fetch(connection, _LIMIT_LOCKS, _LOCK_TIMEOUT)
                await self._fetch(connection, _LOCK_CREATION)
                [[_, columns, header_columns]] = await self._fetch(connection, _COLUMNS_OF)
                if replaces is None:
                    if columns is None and header_columns is None:
                        await self._fetch(connection, _CREATE)
                    return bool(await self._fetch(connection, _INSERT_HEADER, *new))
                await self._fetch(connection, _LOCK_HEADER)
                old = (replaces.id, replaces.generation)
                return bool(await self._fetch(connection, _SWAP_HEADER, *new, *old))

    async def read(self, key: str, header: Header) -> Found:
        _, last = self._last
        [row, *_], is_committed = await self._select(_READ, header, key)
        number = row["number"] if is_committed and row["number"] < last else 0
        if header.is_restored(row["generation"], row["transaction"]):
            number = _LOST
        return Found(_entry(row), row["now"], row["generation"], number)

    async def swap(self, write: Write) -> Found:
        entry, header, expects, is_claim = write.entry, write.header, write.expects, write.lease is not None
        statement = (_UPDATE if expects else _INSERT)[is_claim]
        conditions = (header.id, header.generation if is_claim else None, write.lease, write.not_after)
        values = (*conditions, *dump_entry(entry), *([expects] if expects else []))
        must_commit = ""  # a person's resolution, which may claim the entry without a time limit
        if is_claim and (not expects or write.not_after is not None):
            must_commit = "claim"
        elif not is_claim and entry.source == SERVICE:
            must_commit = "record an outcome"
        while True:
            try:
                rows, is_committed = await self._run(statement, *values, must_commit=must_commit)
            except Exception as error:
                if _sqlstate(error) != _LATE:
                    raise
                rows = []
            if rows:
                [[claimed, changed, expires, generation, transaction, number, now, *_]] = rows
                number = number if is_committed else 0
                if header.is_restored(generation, transaction):
                    number = _LOST
                self._last = max(self._last, (generation, number))
                set_times(entry, claimed=claimed, changed=changed, expires=expires, left=expires - now)
                return Found(entry, now, generation, number)
            found = await self.read(entry.key, header)
            is_refused = is_claim and found.generation != header.generation
            is_late = write.not_after is not None and found.now > write.not_after
            if is_refused or is_late or ("" if found.entry is None else found.entry.revision) != expects:
                return found

    async def page(
        self, column: Column, value: str, first: str, last: str, header: Header
    ) -> Sequence[Entry]:
        statement = _PAGE.format(table="{table}", condition=f"{column} = $2" if column else "$2::text = ''")
        rows, _ = await self._select(statement, header, value, first, last)
        return [entry for entry in map(_entry, rows) if entry is not None]

    async def drop(self, entries: Sequence[Entry], header: Header) -> int:
        keys, revisions = [each.key for each in entries], [each.revision for each in entries]
        [[count]], _ = await self._select(_DROP, header, keys, revisions)
        return int(count)

    def reason(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return "the server did not answer in time"
        if isinstance(error, ConnectionError):
            return "the server cannot be reached: check its address, and that it runs"
        return _REASONS.get(_sqlstate(error), "")

    async def aclose(self) -> None:
        if isinstance(self._where, PerLoop):
            await self._where.aclose(CLOSE_TIMEOUT)


def _sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", ""))


def _transaction_error(action: str) -> ConfigurationError:
    return ConfigurationError(
        "ledger", f"must not {action} inside a transaction, which may be rolled back: end it first"
    )


def _entry(row: Row) -> Entry | None:
    """Return the entry in a row, None if it does not exist."""
    now, _, _, _, *columns, document, body = row
    return None if row["key"] is None else load_entry(columns, document, body, left=row["expires"] - now)


_COLUMNS = {"key", "state", "revision", "customer", "claimed", "changed", "expires", "document"}
_HEADER_COLUMNS = {"id", "generation", "header"}

# The present time of the server's clock; `now()` would be the time at which a transaction began.
_NOW = "extract(epoch FROM clock_timestamp())::float8"
# At least the id of each transaction that ended before this statement.
_LAST = "txid_snapshot_xmax(txid_current_snapshot()) - 1"
# Identity of the header's row and of the table of entries, which may have been restored without each other.
_TRANSACTION = "(header.xmin::text::bigint << 32) | '{table}'::regclass::oid::bigint"
# Makes the commit wait for the disk if synchronous_commit is off for the server or the user.
_FORCE_COMMIT_SYNC = """
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""

# The column names of both tables, NULL for a table that does not exist.
_COLUMNS_OF = f"""
SELECT {_NOW}, array_agg(attname::text) FILTER (WHERE attrelid = to_regclass('{{table}}')),
    array_agg(attname::text) FILTER (WHERE attrelid = to_regclass('{{table}}_header'))
FROM pg_attribute WHERE attrelid IN (to_regclass('{{table}}'), to_regclass('{{table}}_header'))
    AND attnum > 0 AND NOT attisdropped
"""  # noqa: S608  (constants, and a name that was checked)
_CREATE = """
DO $$ BEGIN
CREATE TABLE {table} (
    key text COLLATE "C" PRIMARY KEY, state text COLLATE "C" NOT NULL, revision text COLLATE "C" NOT NULL,
    customer text COLLATE "C" NOT NULL,
    claimed float8 NOT NULL, changed float8 NOT NULL, expires float8 NOT NULL,
    document text NOT NULL, body bytea
);
CREATE INDEX ON {table} (state, key);
CREATE INDEX ON {table} (customer, key);
CREATE TABLE {table}_header (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL, generation bigint NOT NULL, header text NOT NULL
);
END $$
"""
_LIMIT_LOCKS = "SELECT set_config('lock_timeout', $1, true)"
_LOCK_CREATION = "SELECT pg_advisory_xact_lock(hashtext('{table}'))"
_INSERT_HEADER = f"""
INSERT INTO {{table}}_header (id, generation, header) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
RETURNING {_FORCE_COMMIT_SYNC}
"""  # noqa: S608  (constants, and a name that was checked)
# Waits for the claims that read the header FOR SHARE, and lets later ones wait. Without it, claims that share
# the lock of the row one after the other would delay a change of the header without limit.
_LOCK_HEADER = "LOCK TABLE {table}_header IN EXCLUSIVE MODE"
_SWAP_HEADER = f"""
UPDATE {{table}}_header SET id = $1, generation = $2, header = $3 WHERE id = $4 AND generation = $5
RETURNING {_FORCE_COMMIT_SYNC}
"""  # noqa: S608  (constants, and a name that was checked)
_HEADER = f"""
SELECT {_NOW}, header.header, {_TRANSACTION}, EXISTS (SELECT FROM {{table}})
FROM (SELECT) AS one LEFT JOIN {{table}}_header AS header ON true
"""  # noqa: S608  (constants, and a name that was checked)

# The first parameter of each statement below is the id of the ledger. If it is another one, there is no row.
_ENTRY = "key, state, revision, customer, claimed, changed, expires, document, body"
_FROM = f"""
SELECT {_NOW} AS now, {_LAST} AS number, generation, {_TRANSACTION} AS transaction, {_ENTRY}
FROM {{table}}_header AS header LEFT JOIN
"""  # noqa: S608  (constants, and a name that was checked)
_READ = f"{_FROM} {{table}} AS entry ON key = $2 WHERE id = $1"


# One row of the header is joined, which keeps the order.
_PAGE = f"""
{_FROM} LATERAL (
    SELECT * FROM {{table}} WHERE {{condition}} AND key >= $3 AND key <> $4 ORDER BY key LIMIT {PAGE_SIZE}
) AS entry ON true WHERE id = $1
"""  # noqa: S608  (constants, and a name that was checked)
_DROP = """
WITH dropped AS (
    DELETE FROM {table} AS entry
    USING {table}_header AS header, unnest($2::text[], $3::text[]) AS old(key, revision)
    WHERE header.id = $1 AND entry.key = old.key AND entry.revision = old.revision
    RETURNING 1
)
SELECT (SELECT count(*) FROM dropped) FROM {table}_header WHERE id = $1
"""

# Parameters of a swap: id; generation of a claim, lease and latest time, or NULL; key, state, revision,
# customer, claimed, changed, expires, document and body of the entry; for an update, the expected revision.
# The server's time replaces each time that is 0.
_VALUES = """
$5, $6, $7, $8, coalesce(nullif($9::float8, 0), now), coalesce(nullif($10::float8, 0), now),
coalesce(now + $3::float8, nullif($11::float8, 0), now), $12, $13
"""
_SOURCE = f"header, (SELECT {_NOW} AS now) AS clock"
# The division fails if the statement ends after the latest time, for which it may have waited for a lock.
_RESULT = f"""
RETURNING
    claimed, changed, expires, (SELECT generation FROM header), (SELECT {_TRANSACTION} FROM header),
    txid_current(), {_NOW},
    1 / coalesce({_NOW} <= $4::float8, true)::integer, {_FORCE_COMMIT_SYNC}
"""  # noqa: S608  (constants, and a name that was checked)


def _swaps(write: str) -> tuple[str, str]:
    """Return the statements for a settlement and for a claim.

    A claim locks the header, so that it is written before a change of the header or not at all.
    """
    expected = "id = $1 AND generation = coalesce($2::bigint, generation)"
    header = f"SELECT generation, xmin FROM {{table}}_header WHERE {expected}"  # noqa: S608  (constants, and a name that was checked)
    return f"WITH header AS ({header}) {write}", f"WITH header AS ({header} FOR SHARE) {write}"


_INSERT = _swaps(f"""
INSERT INTO {{table}} ({_ENTRY}) SELECT {_VALUES} FROM {_SOURCE} ON CONFLICT (key) DO NOTHING
{_RESULT}
""")  # noqa: S608  (constants, and a name that was checked)
_UPDATE = _swaps(f"""
UPDATE {{table}} SET ({_ENTRY}) = ROW ({_VALUES}) FROM {_SOURCE} WHERE key = $5 AND revision = $14
{_RESULT}
""")  # noqa: S608  (constants, and a name that was checked)
