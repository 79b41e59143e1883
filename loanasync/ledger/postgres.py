"""A ledger in PostgreSQL, shared by processes on several machines."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from attrs import fields

from loanasync._runtime.per_loop import PerLoop
from loanasync.errors import ConfigurationError
from loanasync.ledger import transitions
from loanasync.ledger.backend import (
    CLOSE_TIMEOUT,
    INDEXES,
    Address,
    StoredLedger,
    format_error,
    masked_url,
    missing_driver_error,
    page_queries,
)
from loanasync.ledger.model import (
    HISTORY_LENGTH,
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
    load_history,
)

Row: TypeAlias = Any  # asyncpg has no types

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")
_TABLE = "loanasync_decisions"
_RETRIES = 10
_CONFLICTS = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_CREATED_CONCURRENTLY = {"23505", "42P07", "42710"}  # unique_violation, duplicate_table, duplicate_object
_ATTEMPTS = 3
_COLUMNS = {each.name for each in fields(Entry)}
_FIRST_COLUMNS = {"key", "state", "token", "payload", "claimed", "expires"}  # in every format


@runtime_checkable
class PostgresConnection(Protocol):
    """The methods of an ``asyncpg.Connection`` that the ledger calls."""

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """Return the rows of a statement."""

    def is_in_transaction(self) -> bool:
        """Return True within a transaction."""


@runtime_checkable
class PostgresPool(Protocol):
    """The methods of an ``asyncpg.Pool`` that the ledger calls."""

    def acquire(self) -> Any:  # noqa: ANN401  (asyncpg has no types)
        """Return an awaitable for a connection."""

    async def release(self, connection: Any) -> None:  # noqa: ANN401  (asyncpg has no types)
        """Return a connection to the pool."""


class PostgresLedger(StoredLedger):
    """A ledger in a table of PostgreSQL 12 or later, for clients on several machines.

    Each operation is one statement, which is committed when the method returns. The commit waits for the
    server's disk, even if ``synchronous_commit`` is off for the server or the user. Leases are measured by
    the server's clock. The table is created on first use if it does not exist.

    With a connection of your own, an operation becomes part of a transaction that is open on that connection.
    So `resolve` and your own statements are committed together, or not at all. `LoanClient.approve` raises
    ConfigurationError inside a transaction: a rollback would undo the claim after the request was sent.

    Needs the extra ``postgres``, which installs asyncpg.

    Args:
        where: A ``postgresql://`` address with user, password, host, database and any other parameter that
            asyncpg accepts; or your own ``asyncpg.Pool`` or ``asyncpg.Connection``, which the ledger
            does not close.
        table: Name of the table in lower case, with or without a schema.
        connections: Maximum number of connections per event loop, if `where` is an address.

    Raises:
        ConfigurationError: The extra is not installed, or the address or the table name is invalid.

    Example:
        >>> from loanasync.ledger import PostgresLedger
        >>> PostgresLedger("postgresql://shop:secret@db.example.com/shop")
        PostgresLedger('postgresql://db.example.com/shop')
    """

    address: ClassVar[Address] = Address(
        schemes=("postgresql", "postgres"),
        parameter="table",
        absent="this database has no ledger table: name the database and the table that your clients use, "
        "such as postgresql://host/shop?table=loanasync_decisions",
    )
    driver: ClassVar[str] = "asyncpg"
    extra: ClassVar[str] = "postgres"

    def __init__(
        self,
        where: str | PostgresPool | PostgresConnection,
        *,
        table: str = _TABLE,
        connections: int = 10,
    ) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigurationError(
                "ledger", "needs a table name of lower-case letters, digits and underscores"
            )
        if isinstance(where, str):
            _check_address(where)
        elif not isinstance(where, PostgresPool | PostgresConnection):
            raise ConfigurationError(
                "ledger", "must be given an address, an asyncpg.Pool or an asyncpg.Connection"
            )
        self._where = where
        self._table = table
        self._pools = PerLoop(lambda: _Pool(str(where), connections), _close)
        self._lock = asyncio.Lock()  # a connection that was passed in runs one statement at a time
        self._is_prepared = False

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[PostgresConnection]:
        if isinstance(self._where, str):
            pool = await self._pools.current().open()
        elif isinstance(self._where, PostgresPool):
            pool = self._where
        else:
            async with self._lock:
                yield self._where
            return
        connection = await pool.acquire()
        try:
            yield connection
        except asyncio.CancelledError:
            connection.terminate()  # otherwise `release` would wait for a server that hangs
            raise
        finally:
            await pool.release(connection)

    async def _run(self, statement: str, *arguments: object, is_new_claim: bool = False) -> list[Row]:
        async with self._connection() as connection:
            if is_new_claim and connection.is_in_transaction():
                raise ConfigurationError(
                    "ledger",
                    "must not claim inside a transaction, which may be rolled back: end it first",
                )
            if not self._is_prepared:
                await self._prepare(connection)
                self._is_prepared = not connection.is_in_transaction()  # a rollback would undo it
            return await _fetch_with_retry(connection, self._sql(statement), *arguments)

    def _sql(self, statement: str) -> str:
        """Return a statement for this ledger's table."""
        return statement.format(table=self._table)

    async def _prepare(self, connection: PostgresConnection) -> None:
        """Create the table if necessary. Otherwise this user needs no right to do so."""
        for attempt in range(_ATTEMPTS):
            [[names]] = await connection.fetch(self._sql(_SCHEMA))
            if names is not None:
                self._check_columns(set(names))
                return
            try:
                await connection.fetch(self._sql(_CREATE))
            except Exception as error:
                if attempt == _ATTEMPTS - 1 or getattr(error, "sqlstate", None) not in _CREATED_CONCURRENTLY:
                    raise

    def _check_columns(self, names: set[str]) -> None:
        if not names >= _FIRST_COLUMNS:
            raise ConfigurationError(
                "ledger", f"{self._table} is not a table of a ledger: name another table"
            )
        if names != _COLUMNS:  # formats 1 and 2 have one more column
            raise format_error(self._table, is_earlier=bool(names & {"version", "format"}))

    async def _transition(
        self, statement: str, key: str, *arguments: object, is_new_claim: bool = False
    ) -> Entry:
        """Return the entry that a transition wrote, or the present entry if it was not allowed."""
        while not (rows := await self._run(statement, key, *arguments, is_new_claim=is_new_claim)):
            # A separate statement is needed: the first one does not see entries written since it began.
            entry = await self.get(key)
            if entry is not None:  # None: it was purged meanwhile; try again
                return entry
        return _entry(rows[0])

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
        """See `DecisionLedger.claim`.

        Raises:
            ConfigurationError: The connection that was passed in is in a transaction, and `over` is None.
        """
        subject_values = (subject.customer, subject.order, subject.scope)
        return await self._transition(
            _CLAIM, key, token, payload, lease, over, *subject_values, is_new_claim=over is None
        )

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """See `DecisionLedger.settle`."""
        outcome = (settlement.state, settlement.note, settlement.status, settlement.body, settlement.fault)
        corrects = transitions.correction_target(token, settlement, over)
        return await self._transition(_SETTLE, key, token, payload, *outcome, settlement.source, corrects)

    async def get(self, key: str) -> Entry | None:
        """See `DecisionLedger.get`."""
        rows = await self._run(_GET, key)
        return _entry(rows[0]) if rows else None

    async def _read_page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        rows = await self._run(_PAGES[part], first, last)
        return rows[-1]["key"] if rows else "", [_entry(row) for row in rows]

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """See `DecisionLedger.find`."""
        rows = await self._run(_FIND, customer, order) if customer or order else []
        return transitions.sort_by_age(_entry(row) for row in rows)

    async def purge(self, older_than: float) -> int:
        """See `DecisionLedger.purge`."""
        [[count]] = await self._run(_PURGE, older_than)
        return int(count)

    async def exists(self) -> bool:
        """Return True if the ledger's table exists. Create nothing."""
        async with self._connection() as connection:
            [[is_there]] = await connection.fetch(self._sql(_EXISTS))
        return bool(is_there)

    async def aclose(self) -> None:
        """Close the connections that the ledger opened. A later call opens them again."""
        await self._pools.aclose(CLOSE_TIMEOUT)

    def __repr__(self) -> str:
        where = masked_url(self._where) if isinstance(self._where, str) else type(self._where).__name__
        table = "" if self._table == _TABLE else f", table={self._table!r}"
        return f"PostgresLedger({where!r}{table})"


def _check_address(url: str) -> None:
    try:
        import asyncpg  # noqa: F401, PLC0415  (its extra may not be installed)
    except ImportError:
        raise missing_driver_error(PostgresLedger) from None
    if url.partition("://")[0] not in PostgresLedger.address.schemes:
        raise ConfigurationError("ledger", "needs an address that begins with postgresql://")


class _Pool:
    """The connection pool of one event loop."""

    def __init__(self, url: str, connections: int) -> None:
        self._url = url
        self._connections = connections
        self._opening = asyncio.Lock()
        self.pool: Any = None

    async def open(self) -> PostgresPool:
        import asyncpg  # noqa: PLC0415  (its extra may not be installed)

        async with self._opening:
            if self.pool is None:
                # Open connections on demand.
                self.pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._connections,
                    connection_class=_without_reset(asyncpg.Connection),
                )
        return self.pool  # type: ignore[no-any-return]  # asyncpg has no types


def _without_reset(connection: type) -> type:
    """Return a class of connections that send no statement after use.

    Only this ledger uses them, and it opens no transaction that a reset would have to end.
    """

    async def reset(self: object, *, timeout: float | None = None) -> None:
        pass

    # The argument `reset` of `create_pool` and the method `get_reset_query` need asyncpg 0.30.
    return type("Connection", (connection,), {"reset": reset, "__slots__": ()})


async def _close(pool: _Pool, within: float) -> None:
    if pool.pool is not None:
        try:
            async with asyncio.timeout(within):
                await pool.pool.close()
        except TimeoutError:
            pool.pool.terminate()


async def _fetch_with_retry(connection: PostgresConnection, statement: str, *arguments: object) -> list[Row]:
    """Run a statement, and run it again after a conflict with another transaction. Return its rows."""
    for _ in range(_RETRIES):
        try:
            return await connection.fetch(statement, *arguments)
        except Exception as error:
            # A conflict aborts the transaction of the caller, and only the caller can repeat it.
            if getattr(error, "sqlstate", None) not in _CONFLICTS or connection.is_in_transaction():
                raise
    return await connection.fetch(statement, *arguments)


def _entry(row: Row) -> Entry:
    """Return the entry for a row, as of the time at which the row was read."""
    values = {each.name: row[each.name] for each in fields(Entry)}
    values |= {"state": State(values["state"]), "history": load_history(values["history"])}
    return transitions.as_of(Entry(**values), row["now"])


# The present time of the server's clock; `now()` would be the time at which a transaction began.
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_CLOCK = f"(SELECT {_NOW} AS now) AS clock"
# Makes the commit wait for the disk if synchronous_commit is off for the server or the user.
_FORCE_COMMIT_SYNC = """
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""


def _history_with(state: str, changed: str, note: str) -> str:
    """Return SQL for the history of a row, extended by the state that the row leaves."""
    left = f"jsonb_build_array(jsonb_build_array({state}, {changed}, {note}, found.source))"
    whole = f"found.history::jsonb || {left}"
    return f"jsonb_path_query_array({whole}, '$[last - {HISTORY_LENGTH - 1} to last]')::text"


_NAMES = ", ".join(f'"{each.name}"' for each in fields(Entry))
_ROW = f"{_NOW} AS now, {_NAMES}"

_INDEXES = """
CREATE INDEX ON {table} (customer) WHERE customer <> '';
CREATE INDEX ON {table} ("order") WHERE "order" <> '';
"""
_LIST_INDEXES = "".join(f"CREATE INDEX ON {{table}} {index};\n" for index in INDEXES)
# The column names of the table, or NULL if the table does not exist.
_SCHEMA = """
SELECT array_agg(attname::text) FROM pg_attribute
WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped
"""
_EXISTS = "SELECT to_regclass('{table}') IS NOT NULL"
_CREATE = f"""
DO $$ BEGIN
CREATE TABLE {{table}} (
    key text COLLATE "C" PRIMARY KEY,
    state text NOT NULL, token text NOT NULL, payload text NOT NULL,
    claimed float8 NOT NULL, changed float8 NOT NULL, expires float8 NOT NULL, takeovers integer NOT NULL,
    note text NOT NULL, status smallint, body bytea, fault text,
    customer text NOT NULL DEFAULT '', "order" text NOT NULL DEFAULT '', scope text NOT NULL DEFAULT '',
    source text NOT NULL, history text NOT NULL DEFAULT '[]'
);
{_INDEXES}{_LIST_INDEXES}
END $$
"""
_LEFT_STATE = "(CASE WHEN found.state = 'inflight' THEN 'unknown' ELSE found.state END)"
_LEFT_AT = "(CASE WHEN found.state = 'inflight' THEN found.expires ELSE found.changed END)"
_LEFT_NOTE = f"(CASE WHEN found.state = 'inflight' THEN '{transitions.LEASE_EXPIRED}' ELSE found.note END)"
_HAS_SUBJECT = "(excluded.customer <> '' OR excluded.\"order\" <> '' OR excluded.scope <> '')"

# Parameters: key, token, payload, lease, token to take over or NULL, customer, order, scope. Returns no row
# if the claim is not allowed.
_CLAIM = f"""
INSERT INTO {{table}} AS found
    (key, state, token, payload, claimed, changed, expires, takeovers, note, source,
    customer, "order", scope)
SELECT $1, 'inflight', $2, $3, now, now, now + $4::float8, 0, '', '', $6, $7, $8 FROM {_CLOCK}
ON CONFLICT (key) DO UPDATE SET
    state = excluded.state, token = excluded.token, payload = excluded.payload,
    claimed = CASE found.state WHEN 'released' THEN excluded.claimed ELSE found.claimed END,
    changed = excluded.changed, expires = excluded.expires,
    takeovers = CASE found.state WHEN 'released' THEN 0 ELSE found.takeovers + 1 END,
    note = '', source = '',
    status = CASE WHEN found.state <> 'released' THEN found.status END,
    body = CASE WHEN found.state <> 'released' THEN found.body END,
    fault = CASE WHEN found.state <> 'released' THEN found.fault END,
    customer = CASE WHEN {_HAS_SUBJECT} THEN excluded.customer ELSE found.customer END,
    "order" = CASE WHEN {_HAS_SUBJECT} THEN excluded."order" ELSE found."order" END,
    scope = CASE WHEN {_HAS_SUBJECT} THEN excluded.scope ELSE found.scope END,
    history = {_history_with(_LEFT_STATE, _LEFT_AT, _LEFT_NOTE)}
WHERE found.state = 'released' AND found.token <> $2
    OR found.token = $5::text AND (found.state IN ('unknown', 'lost', 'held')
    OR found.state = 'inflight' AND found.expires <= {_NOW}
)
RETURNING {_ROW}, {_FORCE_COMMIT_SYNC}
"""  # noqa: S608  (constants, and a name that was checked)

# The last parameter is the token of the entry that the settlement corrects, or NULL.
_CORRECTS = """
(found.token = $10::text AND found.state IN ('approved', 'refused', 'released')
    AND found.source <> 'service')
"""
# True if the stored response stays: the settlement is not a decision and has no body.
_KEEPS_RESPONSE = """
(excluded.state IN ('unknown', 'lost', 'held') AND excluded.body IS NULL
    AND num_nonnulls(found.status, found.body, found.fault) > 0)
"""

# Parameters: key, token, payload, state, note, status, body, fault, source, token to correct or NULL. Returns
# no row if the settlement is not allowed.
_SETTLE = f"""
INSERT INTO {{table}} AS found
    (key, state, token, payload, claimed, changed, expires, takeovers, note, source,
    status, body, fault)
SELECT $1, $4, $2, $3, now, now, now, 0, $5, $9, $6::smallint, $7::bytea, $8 FROM {_CLOCK}
ON CONFLICT (key) DO UPDATE SET
    state = excluded.state, token = excluded.token, payload = excluded.payload,
    changed = excluded.changed, note = excluded.note, source = excluded.source,
    status = CASE WHEN {_KEEPS_RESPONSE} THEN found.status ELSE excluded.status END,
    body = CASE WHEN {_KEEPS_RESPONSE} THEN found.body ELSE excluded.body END,
    fault = CASE WHEN {_KEEPS_RESPONSE} THEN found.fault ELSE excluded.fault END,
    history = CASE WHEN found.state <> 'inflight' AND (found.state <> excluded.state OR {_CORRECTS})
        THEN {_history_with("found.state", "found.changed", "found.note")} ELSE found.history END
WHERE {_CORRECTS} OR found.state NOT IN ('approved', 'refused')
    AND (found.token = excluded.token
        OR excluded.state IN ('approved', 'refused') AND excluded.source = 'service')
RETURNING {_ROW}, {_FORCE_COMMIT_SYNC}
"""  # noqa: S608  (constants, and a name that was checked)

_GET = f"SELECT {_ROW} FROM {{table}} WHERE key = $1"  # noqa: S608  (constants, and a name that was checked)
_PAGES = page_queries(f"SELECT {_ROW} FROM {{table}}", "$1", "$2")  # noqa: S608  (constants)
# Parameters: customer, order; at least one is not empty. The constant conditions let the planner use the
# partial indexes.
_BY = {
    "customer": "customer = $1 AND customer <> '' AND $2::text = ''",
    "order": "\"order\" = $2 AND \"order\" <> '' AND $1::text = ''",
    "both": "customer = $1 AND customer <> '' AND \"order\" = $2 AND \"order\" <> ''",
}
_FIND = f"SELECT {_ROW} FROM {{table}} WHERE " + " OR ".join(f"({each})" for each in _BY.values())  # noqa: S608  (constants)
_PURGE = f"""
WITH deleted AS (
    DELETE FROM {{table}}
    WHERE state IN ('approved', 'refused', 'released') AND changed <= {_NOW} - $1::float8
    RETURNING 1
)
SELECT count(*) FROM deleted
"""  # noqa: S608  (constants, and a name that was checked)
