"""A ledger in PostgreSQL: for the processes of many machines, beside the shop's own orders."""

import re
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

from attrs import fields

from loanasync._lifecycle import Closing
from loanasync.errors import ConfigurationError
from loanasync.ledger import lists, polling
from loanasync.ledger import transitions as moves
from loanasync.ledger.connections import PostgresConnection, PostgresPool, source
from loanasync.ledger.model import NO_SUBJECT, Entry, Settlement, State, Subject, check_format, history_from
from loanasync.ledger.remote import shown
from loanasync.ledger.sql import Statements

Row: TypeAlias = Any  # of asyncpg's, which has no types

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")
_TABLE = "loanasync_decisions"
_REPEATS = 10
_IN_THE_WAY = {"40001", "40P01"}  # serialization_failure, deadlock_detected
# unique_violation, duplicate_table, duplicate_object, duplicate_column, undefined_column
_MADE_MEANWHILE = {"23505", "42P07", "42710", "42701", "42703"}
_FORBIDDEN = "42501"  # insufficient_privilege
_NOT_NOW = {_FORBIDDEN, "25006", "55P03"}  # read_only_sql_transaction, lock_not_available
_ATTEMPTS = 3
_COLUMNS = frozenset({"key", "state", "token", "payload", "claimed", "expires"})  # of each format


class PostgresLedger(Closing):
    """Decisions in a table of PostgreSQL's (from 12 on), for all clients that reach it.

    Each move is one statement, committed when it returns, and the server's clock is the one that leases go
    by. What it says is written is on the server's disk, also where server or user are set up not to wait
    for that (``synchronous_commit``). The table is made when it is first used, unless it is there.

    Given a connection of the shop's own, moves are part of a transaction that is open in it: what a person
    settles with `resolve` is written together with the shop's own rows, or not at all. A client refuses to
    ask in there: its claim could be undone, although the service was asked.

    Needs the extra ``postgres``, which is asyncpg: it works in every event loop of every system,
    and can be cancelled while a server hangs.

    Args:
        where: ``postgresql://`` with user, password, host and database, and whatever else libpq
            takes in one; or an ``asyncpg.Pool`` or ``asyncpg.Connection`` of the shop's own, which stays
            its own to close.
        table: To use or make, with or without its schema; in lower case.
        connections: To have at once from each event loop, if `where` is an address.

    Raises:
        ConfigurationError: The extra is not installed, or address or table cannot be.

    Example:
        >>> from loanasync.ledger import PostgresLedger
        >>> PostgresLedger("postgresql://shop:secret@db.example.com/shop")
        PostgresLedger('postgresql://db.example.com/shop')
    """

    def __init__(
        self,
        where: str | PostgresPool | PostgresConnection,
        *,
        table: str = _TABLE,
        connections: int = 10,
    ) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigurationError(
                "ledger", "needs a table's name of small letters, digits and underscores"
            )
        self._where = where
        self._table = table
        self._source = source(where, connections)
        self._say = Statements.of(table)
        self._is_there = False

    async def _run(self, statement: str, *arguments: object, is_first: bool = False) -> list[Row]:
        async with self._source.connection() as connection:
            if is_first and connection.is_in_transaction():
                raise ConfigurationError(
                    "ledger", "must not claim inside a transaction: that could be undone"
                )
            if not self._is_there:
                await _prepare(connection, self._say)
                self._is_there = not connection.is_in_transaction()  # which may take it back
            return await _repeated(connection, statement, *arguments)

    async def _move(self, statement: str, key: str, *arguments: object, is_first: bool = False) -> Entry:
        """The entry that a move made; or, where it had no right to it, the one that stands there."""
        while not (rows := await self._run(statement, key, *arguments, is_first=is_first)):
            # Asked for by itself: within the statement others' moves since its beginning cannot be seen.
            entry = await self.get(key)
            if entry is not None:  # or it was purged meanwhile, and is free
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
        """As of `DecisionLedger`, and so the others.

        Raises:
            ConfigurationError: The shop's connection is in a transaction, and `over` names no token.
        """
        about = (subject.customer, subject.order, subject.scope)
        return await self._move(
            self._say.claim, key, token, payload, lease, over, *about, is_first=over is None
        )

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """Write down what became of a claim."""
        became = (settlement.state, settlement.note, settlement.status, settlement.body, settlement.fault)
        corrects = moves.correcting(token, settlement, over)
        return await self._move(self._say.settle, key, token, payload, *became, settlement.source, corrects)

    async def get(self, key: str) -> Entry | None:
        """An entry as it stands now."""
        rows = await self._run(self._say.look, key)
        return _entry(rows[0]) if rows else None

    async def wait(self, key: str, within: float) -> Entry | None:
        """The entry as soon as it is not INFLIGHT; after so many seconds as it stands then."""
        return await polling.wait(self.get, key, within)

    def scan(self, *states: State, begins: str = "", without_redirect: bool = False) -> AsyncIterator[Entry]:
        """All entries in these states, or all there are."""
        return lists.listed(self._page, states, begins, without_redirect=without_redirect)

    async def _page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        rows = await self._run(self._say.pages[part], first, last)
        return rows[-1]["key"] if rows else "", [_entry(row) for row in rows]

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """The entries of a customer, of an order, or of both, oldest first."""
        rows = await self._run(self._say.find, customer, order) if customer or order else []
        return moves.by_age(_entry(row) for row in rows)

    async def purge(self, older_than: float) -> int:
        """Forget what was decided or released and has not changed for so many seconds."""
        [[gone]] = await self._run(self._say.purge, older_than)
        return int(gone)

    async def exists(self) -> bool:
        """Return True if the table exists. Create nothing."""
        async with self._source.connection() as connection:
            [[is_there]] = await connection.fetch(self._say.exists)
        return bool(is_there)

    async def aclose(self) -> None:
        """Let go of the ledger's own connections; a later call opens them anew."""
        await self._source.aclose()

    def __repr__(self) -> str:
        where = shown(self._where) if isinstance(self._where, str) else type(self._where).__name__
        table = "" if self._table == _TABLE else f", table={self._table!r}"
        return f"PostgresLedger({where!r}{table})"


async def _repeated(connection: PostgresConnection, statement: str, *arguments: object) -> list[Row]:
    """Rows of a statement, which is made again where others got in its way."""
    for _ in range(_REPEATS):
        try:
            return await connection.fetch(statement, *arguments)
        except Exception as error:
            # A transaction of the caller's has ended with that: it is theirs to repeat, as a whole.
            if getattr(error, "sqlstate", None) not in _IN_THE_WAY or connection.is_in_transaction():
                raise
    return await connection.fetch(statement, *arguments)


async def _prepare(connection: PostgresConnection, say: Statements) -> None:
    """Make the table, or bring it to this format, unless that is done: then this user needs no right to."""
    for attempt in range(_ATTEMPTS):
        [[columns, has_index]] = await connection.fetch(say.form)
        if columns is not None and not _COLUMNS.issubset(columns):
            raise ConfigurationError("ledger", f"{say.table} is a table of something else: name another")
        if columns is not None and "version" not in columns:
            if not has_index and not connection.is_in_transaction():  # which an error would end
                await _index(connection, say)
            return
        try:
            await connection.fetch(say.create if columns is None else say.migrate)
        except Exception as error:
            state = getattr(error, "sqlstate", None)
            if columns is not None and state == _FORBIDDEN:
                raise _of_format_1(say) from None
            if attempt == _ATTEMPTS - 1 or state not in _MADE_MEANWHILE:
                raise


async def _index(connection: PostgresConnection, say: Statements) -> None:
    """Make the indexes for lists, unless this user may not, or others use the table: lists work without."""
    try:
        await connection.fetch(say.index)
    except Exception as error:
        if getattr(error, "sqlstate", None) not in _NOT_NOW:
            raise


def _of_format_1(say: Statements) -> ConfigurationError:
    statement = " ".join(say.migrate.split())
    return ConfigurationError(
        "ledger", f"has a table of format 1, which this user may not alter; its owner must run: {statement};"
    )


def _entry(row: Row) -> Entry:
    """An entry as seen at the row's time."""
    check_format(row["format"])
    values = {each.name: row[each.name] for each in fields(Entry)}
    values |= {"state": State(values["state"]), "history": history_from(values["history"])}
    return moves.seen(Entry(**values), row["now"])
