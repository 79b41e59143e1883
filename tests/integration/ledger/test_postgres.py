"""The PostgreSQL ledger: conformance, transactions, conflicts, access rights and tables."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import Any

import asyncpg
import pytest

from loanasync import Approved, ConfigurationError, LedgerUnavailableError
from loanasync.ledger import PostgresLedger, Settlement, State, resolve
from loanasync.testing import SharedLedgerConformance, approved
from support.ledger_clients import Shop
from support.servers import Postgres

REFUSED = Settlement(state=State.REFUSED, status=422)


class TestPostgresLedger(SharedLedgerConformance):
    keys = 1000

    @pytest.mark.scheduled
    async def test_very_large_ledger_returns_all_entries(self) -> None:
        self.keys = 100_000
        await self.test_large_ledger_returns_all_entries()

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self, postgres: Postgres) -> None:
        self.opener = partial(PostgresLedger, postgres.url, table=f"t{token_hex(4)}")


@pytest.fixture
def table() -> str:
    return f"t{token_hex(4)}"


@pytest.fixture
async def connection(postgres: Postgres) -> AsyncIterator[Any]:
    """Return a connection that the user opened."""
    opened = await asyncpg.connect(postgres.url)
    yield opened
    await opened.close()


async def test_settlement_in_a_transaction_is_committed_with_it(
    connection: Any, postgres: Postgres, table: str
) -> None:
    await connection.execute("CREATE TEMPORARY TABLE orders (state text)")
    own, other = PostgresLedger(connection, table=table), PostgresLedger(postgres.url, table=table)
    await own.claim("k", token="t", payload="p", lease=60)
    entry = await own.settle("k", token="t", payload="p", settlement=Settlement(state=State.LOST))
    for ends, state in (("ROLLBACK", State.LOST), ("COMMIT", State.REFUSED)):
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO orders VALUES ('refused')")
        assert (await resolve(own, entry, State.REFUSED, "by telephone")).state is State.REFUSED
        assert [each.state async for each in other.scan()] == [State.LOST]
        await connection.execute(ends)
        assert [each.state async for each in other.scan()] == [state]
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    await own.aclose()
    assert not connection.is_closed()
    await other.aclose()


async def test_connection_is_not_reset_after_use(
    postgres: Postgres, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = []

    async def execute(_self: object, statement: str, **_options: Any) -> None:
        statements.append(statement)

    monkeypatch.setattr(asyncpg.Connection, "execute", execute)
    async with PostgresLedger(postgres.url, table=table) as ledger:
        assert await ledger.get("k") is await ledger.get("k") is None
    assert statements == []


async def test_approve_inside_a_transaction_sends_nothing(connection: Any, table: str) -> None:
    shop = Shop(approved(), ledger=PostgresLedger(connection, table=table))
    async with connection.transaction():
        with pytest.raises(ConfigurationError, match="inside a transaction"):
            await shop.approve()
    assert shop.script.left == 1
    assert isinstance(await shop.approve(), Approved)
    assert (await shop.entry()).state is State.APPROVED


async def test_settlement_in_an_aborted_transaction_raises(connection: Any, table: str) -> None:
    ledger = PostgresLedger(connection, table=table)
    await ledger.claim("k", token="t", payload="p", lease=60)
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute("SELECT * FROM no_such_table")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await ledger.settle("k", token="t", payload="p", settlement=REFUSED)
    await transaction.rollback()
    assert (await ledger.settle("k", token="t", payload="p", settlement=REFUSED)).state is State.REFUSED


async def test_table_that_was_rolled_back_is_created_again(connection: Any, table: str) -> None:
    ledger = PostgresLedger(connection, table=table)
    transaction = connection.transaction()
    await transaction.start()
    await ledger.settle("k", token="t", payload="p", settlement=REFUSED)
    await transaction.rollback()
    assert await ledger.get("k") is None


async def test_lease_expires_while_a_transaction_is_open(
    connection: Any, postgres: Postgres, table: str
) -> None:
    own, other = PostgresLedger(connection, table=table), PostgresLedger(postgres.url, table=table)
    await other.claim("k", token="t", payload="p", lease=0.2)
    async with connection.transaction():
        assert await own.get("j") is None  # the transaction's time is fixed
        assert await other.wait("k", 30) == await own.get("k")
    await other.aclose()


async def test_operations_on_one_connection_run_one_at_a_time(connection: Any, table: str) -> None:
    ledger = PostgresLedger(connection, table=table)
    claims = [ledger.claim("k", token=f"t{number}", payload="p", lease=60) for number in range(32)]
    entries = await asyncio.gather(*claims)
    assert [entry.is_claimed_by(f"t{number}") for number, entry in enumerate(entries)].count(True) == 1


async def test_given_pool_is_used_and_stays_open(postgres: Postgres, table: str) -> None:
    async with asyncpg.create_pool(postgres.url, min_size=0, max_size=3) as pool:
        shop = Shop(approved(), ledger=PostgresLedger(pool, table=table))
        assert isinstance(await shop.approve(), Approved)
        await shop.ledger.aclose()
        assert (await shop.entry()).state is State.APPROVED
        assert repr(shop.ledger) == f"PostgresLedger('Pool', table={table!r})"
    assert repr(PostgresLedger(pool)) == "PostgresLedger('Pool')"


@asynccontextmanager
async def set_up(postgres: Postgres, **settings: str) -> AsyncIterator[str]:
    """Create a user with other settings, and return the address with which to connect."""
    user = f"user{token_hex(4)}"
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'word'")
    for name, value in settings.items():
        await connection.execute(f"ALTER ROLE {user} SET {name} = '{value}'")
    await connection.execute(f"CREATE SCHEMA {user} AUTHORIZATION {user}")
    yield f"postgresql://{user}:word@127.0.0.1:{postgres.port}/postgres"
    await connection.execute(f"DROP OWNED BY {user}")
    await connection.execute(f"DROP ROLE {user}")
    await connection.close()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_concurrent_claims_have_one_owner_at_each_isolation_level(
    postgres: Postgres, table: str, isolation: str
) -> None:
    async with set_up(postgres, default_transaction_isolation=isolation) as url:
        ledgers = [PostgresLedger(url, table=table) for _ in range(4)]
        for key in ("k", "l", "m"):
            claims = [
                ledgers[number % 4].claim(key, token=f"t{number}", payload="p", lease=60)
                for number in range(32)
            ]
            entries = await asyncio.gather(*claims)
            won = [entry.is_claimed_by(f"t{number}") for number, entry in enumerate(entries)]
            assert won.count(True) == 1
            assert len({entry.token for entry in entries}) == 1
        for ledger in ledgers:
            await ledger.aclose()


async def test_conflict_in_a_given_transaction_is_raised(
    postgres: Postgres, connection: Any, table: str
) -> None:
    own, other = PostgresLedger(connection, table=table), PostgresLedger(postgres.url, table=table)
    await own.claim("k", token="t", payload="p", lease=60)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await own.get("k")
    unknown = Settlement(state=State.UNKNOWN)
    await other.settle("k", token="t", payload="p", settlement=unknown)
    with pytest.raises(asyncpg.SerializationError):
        await own.settle("k", token="t", payload="p", settlement=REFUSED)
    await transaction.rollback()
    await other.aclose()


@pytest.mark.parametrize("late", ["off", "local"])
async def test_commit_is_synchronous_although_it_is_off_for_the_user(
    postgres: Postgres, table: str, late: str
) -> None:
    async with set_up(postgres, synchronous_commit=late) as url:
        connection = await asyncpg.connect(url)
        ledger = PostgresLedger(connection, table=table)
        await ledger.get("k")
        for operation in (
            partial(ledger.claim, "k", token="t", payload="p", lease=60),
            partial(ledger.settle, "k", token="t", payload="p", settlement=Settlement(state=State.HELD)),
            partial(ledger.claim, "k", token="u", payload="p", lease=60, over="t"),
            partial(ledger.settle, "k", token="u", payload="p", settlement=REFUSED),
        ):
            before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
            await operation()
            written = "SELECT pg_current_wal_flush_lsn() > $1::pg_lsn"
            assert await connection.fetchval(written, before)
            assert await connection.fetchval("SHOW synchronous_commit") == late
        await connection.close()


async def test_user_who_may_not_write_sends_nothing(postgres: Postgres, table: str) -> None:
    async with set_up(postgres, default_transaction_read_only="on") as url:
        shop = Shop(approved(), ledger=PostgresLedger(url, table=table))
        with pytest.raises(LedgerUnavailableError, match="ReadOnlySQLTransactionError"):
            await shop.approve()
        assert shop.script.left == 1
        await shop.ledger.aclose()


async def test_user_who_may_not_create_tables_uses_an_existing_one(
    postgres: Postgres, connection: Any, table: str
) -> None:
    async with set_up(postgres) as url:
        user = url.partition("//")[2].partition(":")[0]
        async with PostgresLedger(url, table=f"public.{table}") as ledger:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await ledger.get("k")
            async with PostgresLedger(postgres.url, table=f"public.{table}") as owner:
                await owner.get("k")
            await connection.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {user}")
            assert (await ledger.claim("k", token="t", payload="p", lease=60)).is_claimed_by("t")


async def test_concurrent_processes_create_one_table(postgres: Postgres) -> None:
    for _ in range(5):
        table = f"t{token_hex(4)}"
        ledgers = [PostgresLedger(postgres.url, table=table) for _ in range(8)]
        assert await asyncio.gather(*(ledger.get("k") for ledger in ledgers)) == [None] * 8
        for ledger in ledgers:
            await ledger.aclose()


@pytest.mark.parametrize("table", ["", "t; DROP TABLE x", 'a"b', "A", "1a", "a.b.c", "a-b", "a" * 64, "a\n"])
def test_invalid_table_name_is_rejected(table: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        PostgresLedger("postgresql://127.0.0.1/shop", table=table)
