"""Older ledgers of format 2 have no indexes for lists, and get them when they are opened."""

import asyncio
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from loanasync import ConfigurationError
from loanasync.ledger import (
    DecisionLedger,
    PostgresLedger,
    RedisLedger,
    Settlement,
    SqliteLedger,
    State,
    redis,
)
from support.ledger_file import change
from support.servers import Postgres, Valkey

PERSONS_DECISION = Settlement(state=State.APPROVED, note="ticket 17", source="person")
REFUSED = Settlement(state=State.REFUSED, status=422)


async def fill(ledger: DecisionLedger, number: int = 3) -> None:
    for each in range(number):
        await ledger.claim(f"k{each}", token="t", payload="p", lease=0.0 if each else 60.0)
    await ledger.settle("stated", token="t", payload="p", settlement=PERSONS_DECISION)


async def keys(ledger: DecisionLedger, *states: State, **options: Any) -> list[str]:
    return sorted([entry.key async for entry in ledger.scan(*states, **options)])


async def check(ledger: DecisionLedger) -> None:
    assert await keys(ledger, State.UNKNOWN) == ["k1", "k2"]
    assert await keys(ledger, State.INFLIGHT) == ["k0"]
    assert await keys(ledger, without_redirect=True) == ["stated"]
    assert await keys(ledger) == ["k0", "k1", "k2", "stated"]


async def test_sqlite_file_without_indexes_gets_them(tmp_path: Path) -> None:
    file = tmp_path / "decisions.db"
    async with SqliteLedger(file) as ledger:
        await fill(ledger)
    for index in ("decisions_state", "decisions_without_redirect"):
        await asyncio.to_thread(change, file, f"DROP INDEX {index}")
    async with SqliteLedger(file) as ledger:
        await check(ledger)
        indexes = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND name LIKE 'decisions_%'"
        found = await ledger._database().read(lambda connection: connection.execute(indexes).fetchone())
    assert found == (4,)


INDEXES = """
SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = $1::regclass
AND (pg_get_indexdef(indexrelid) LIKE '%(state, key)' OR pg_get_indexdef(indexrelid) LIKE '%IS TRUE)')
"""


async def test_postgres_table_without_indexes_gets_them_once(postgres: Postgres) -> None:
    table, user = f"t{token_hex(4)}", f"user{token_hex(4)}"
    owner = await asyncpg.connect(postgres.url)
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await fill(ledger)

    async def indexes() -> list[str]:
        return [name for (name,) in await owner.fetch(INDEXES, table)]

    assert len(await indexes()) == 2
    for name in await indexes():
        await owner.execute(f"DROP INDEX {name}")
    await owner.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'word'")
    await owner.execute(f"GRANT SELECT ON {table} TO {user}")
    async with PostgresLedger(
        f"postgresql://{user}:word@127.0.0.1:{postgres.port}/postgres", table=table
    ) as ledger:
        await check(ledger)
        assert await indexes() == [], "this user may not make them, and reads all the same"
    async with owner.transaction():
        await owner.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")  # a lock as a writer holds it
        async with PostgresLedger(postgres.url, table=table) as ledger:
            await check(ledger)
        await check(PostgresLedger(owner, table=table))
        assert await indexes() == [], "not within a transaction, and not while others write for long"
    ledgers = [PostgresLedger(postgres.url, table=table) for _ in range(8)]
    await asyncio.gather(*map(check, ledgers))
    assert len(await indexes()) == 2
    for each in ledgers:
        await each.aclose()
    await owner.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
    await owner.close()


async def test_postgres_statements_in_the_docs_create_the_indexes(postgres: Postgres) -> None:
    table, page = f"t{token_hex(4)}", Path(__file__).parents[3] / "docs" / "howto" / "ledger.md"
    owner = await asyncpg.connect(postgres.url)
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await fill(ledger)
    made = await owner.fetch(INDEXES, table)
    for (name,) in made:
        await owner.execute(f"DROP INDEX {name}")
    text = await asyncio.to_thread(page.read_text, encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("CREATE INDEX"):
            await owner.execute(line.replace("loanasync_decisions", table))
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await check(ledger)
    assert await owner.fetch(INDEXES, table) == made
    await owner.close()


class Unlisted:
    """A ledger on Valkey as the first clients of format 2 wrote it."""

    def __init__(self, url: str) -> None:
        self.prefix = f"{token_hex(4)}:"
        self.ledger = partial(RedisLedger, url, prefix=self.prefix)
        self.client = Redis.from_url(url)

    async def fill(self, number: int = 3) -> None:
        async with self.ledger() as ledger:
            await fill(ledger, number)
        await self.client.set(f"{self.prefix}entries", "2.0")
        async for name in self.client.scan_iter(f"{self.prefix}state:*"):
            await self.client.delete(name)


@pytest.fixture
async def unlisted(valkey: Valkey) -> Any:
    stored = Unlisted(valkey.url)
    yield stored
    await stored.client.aclose()


async def test_redis_ledger_without_sets_gets_them(unlisted: Unlisted) -> None:
    await unlisted.fill()
    ledgers = [unlisted.ledger() for _ in range(4)]
    await asyncio.gather(*map(check, ledgers))
    assert await unlisted.client.get(f"{unlisted.prefix}entries") == b"2.1", "older clients stop"
    for each in ledgers:
        await each.aclose()


async def test_redis_claim_during_the_migration_is_listed(unlisted: Unlisted) -> None:
    await unlisted.fill(1200)
    ledgers = [unlisted.ledger() for _ in range(4)]
    claims = [
        ledgers[number % 4].settle(f"k{number}", token="t", payload="p", settlement=REFUSED)
        for number in range(0, 1200, 50)
    ]
    await asyncio.gather(*claims, *(keys(ledger, State.UNKNOWN) for ledger in ledgers))
    assert len(await keys(ledgers[0], State.REFUSED)) == 24
    assert len(await keys(ledgers[0], State.UNKNOWN, State.INFLIGHT)) == 1200 - 24
    assert len(await keys(ledgers[0])) == 1201
    for each in ledgers:
        await each.aclose()


async def test_redis_interrupted_migration_is_completed(unlisted: Unlisted) -> None:
    """A client died during the migration, after it had locked out older clients."""
    await unlisted.fill(1200)
    begun = await unlisted.client.eval(
        redis._MIGRATE,
        2,
        *(f"{unlisted.prefix}{name}" for name in ("entries", "index", "entry:")),
        500,
        unlisted.prefix,
    )
    assert begun == 500
    async with unlisted.ledger() as ledger:
        assert len(await keys(ledger, State.UNKNOWN, State.INFLIGHT)) == 1200
        assert len(await keys(ledger)) == 1201


async def test_redis_purge_removes_all_names(unlisted: Unlisted) -> None:
    async with unlisted.ledger() as ledger:
        await ledger.settle("k", token="t", payload="p", settlement=PERSONS_DECISION)
        assert await ledger.purge(0) == 1
    left = [key async for key in unlisted.client.scan_iter(f"{unlisted.prefix}*")]
    assert left == [f"{unlisted.prefix}entries".encode()]


@pytest.mark.parametrize("command", [("ZADD", 1, "an order"), ("RPUSH", "an order"), ("SADD", "an order")])
async def test_redis_data_of_another_program_is_unchanged(
    unlisted: Unlisted, command: tuple[Any, ...]
) -> None:
    name = f"{unlisted.prefix}entries"
    await unlisted.client.execute_command(command[0], name, *command[1:])  # type: ignore[no-untyped-call]
    before = await unlisted.client.dump(name)
    async with unlisted.ledger() as ledger:
        with pytest.raises(ConfigurationError, match="name another prefix"):
            await ledger.claim("k", token="t", payload="p", lease=60)
        with pytest.raises(ConfigurationError, match="name another prefix"):
            await keys(ledger)
    assert await unlisted.client.dump(name) == before
    assert [key async for key in unlisted.client.scan_iter(f"{unlisted.prefix}*")] == [name.encode()]
