"""Lists and lookups read only the entries that they return, by an index."""

import asyncio
import json
import sqlite3
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
from redis.asyncio import Redis

from loanasync.ledger import (
    DecisionLedger,
    Entry,
    PostgresLedger,
    RedisLedger,
    Settlement,
    SqliteLedger,
    State,
    Subject,
    sweep,
)
from support.servers import Postgres, Valkey

MANY = 1600  # two entries each: unknown, with an expired lease, and approved without a redirect
DECISIONS = Settlement(
    state=State.APPROVED, status=201, body=b'{"redirectUrl":"https://loans.example.com/x"}'
)
PERSONS_DECISION = Settlement(state=State.APPROVED, note="ticket 17", source="person")


async def fill(ledger: DecisionLedger) -> None:
    """Create many decisions, and a few entries of each kind that a person must resolve."""

    async def put(number: int) -> None:
        key, subject = f"k{number:05}", Subject(customer=f"c{number}", order=f"o{number}")
        kind = number % (MANY // 2)
        lease = 0.0 if kind == 1 else 60.0
        await ledger.claim(key, token="t", payload="p", lease=lease, subject=subject)
        settlement = {0: Settlement(state=State.UNKNOWN), 1: None, 2: PERSONS_DECISION}.get(kind, DECISIONS)
        if settlement is not None:
            await ledger.settle(key, token="t", payload="p", settlement=settlement)

    for begin in range(0, MANY, 200):
        await asyncio.gather(*(put(number) for number in range(begin, begin + 200)))


async def run_every_list(ledger: DecisionLedger) -> None:
    """Run each list and lookup once."""

    async def listed(*states: State, **options: Any) -> list[Entry]:
        return [entry async for entry in ledger.scan(*states, **options)]

    assert len(await sweep(ledger)) == 2
    assert len(await listed(State.UNKNOWN, State.LOST)) == 4
    assert len(await listed(without_redirect=True)) == 2
    assert [entry.key for entry in await listed(begins="k0100")] == [f"k0100{digit}" for digit in range(10)]
    assert len(await ledger.find(customer="c7")) == len(await ledger.find(order="o7")) == 1
    assert len(await ledger.find(customer="c7", order="o7")) == 1


async def test_sqlite_lists_use_an_index_without_sorting(tmp_path: Path) -> None:
    statements: list[str] = []
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        await fill(ledger)
        await ledger._database().read(lambda connection: connection.set_trace_callback(statements.append))
        await run_every_list(ledger)

        def plan(statement: str, connection: sqlite3.Connection) -> str:
            return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}"))

        read = [each for each in statements if each.startswith("SELECT")]
        plans = {statement: await ledger._database().read(partial(plan, statement)) for statement in read}
    used = " ".join(plans.values())
    for index in ("decisions_state", "decisions_without_redirect", "decisions_customer", "decisions_order"):
        assert f"USING INDEX {index} " in used
    assert [plan for plan in plans.values() if "SCAN decisions" in plan or "TEMP B-TREE" in plan] == []
    assert [statement for statement in read if "WHERE TRUE AND key >= ''" in statement] == []


class Explaining:
    """A connection that explains each reading statement before it runs it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.plans: list[str] = []

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        if query.startswith("SELECT extract"):
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"
            self.plans.append(await self._connection.fetchval(explained, *arguments))
        rows: list[Any] = await self._connection.fetch(query, *arguments)
        return rows

    def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())


def rows_of(plan: Any) -> float:
    """Return the number of rows that each node of a plan read, including the filtered ones."""
    if isinstance(plan, list):
        return sum(map(rows_of, plan))
    if not isinstance(plan, dict):
        return 0
    read = (
        plan.get("Actual Rows", 0) + plan.get("Rows Removed by Filter", 0)
        if "Scan" in str(plan.get("Node Type"))
        else 0
    )
    return float(read + sum(map(rows_of, plan.values())))


async def test_postgres_lists_use_an_index(postgres: Postgres) -> None:
    table = f"t{token_hex(4)}"
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await fill(ledger)
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(f"ANALYZE {table}")
    # A small table may be read and sorted faster than by its index. Now this happens only without an index.
    await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
    explaining = Explaining(connection)
    await run_every_list(PostgresLedger(explaining, table=table))
    await connection.close()
    assert len(explaining.plans) > 9
    assert [plan for plan in explaining.plans if "Seq Scan" in plan or '"Sort"' in plan] == []
    assert max(rows_of(json.loads(plan)) for plan in explaining.plans) <= 500, "a page at the most"


async def test_redis_lists_read_only_their_entries(valkey: Valkey) -> None:
    async def reads() -> int:
        return int((await client.info("commandstats"))["cmdstat_hmget"]["calls"])

    async with (
        RedisLedger(valkey.url, prefix=f"{token_hex(4)}:") as ledger,
        Redis.from_url(valkey.url) as client,
    ):
        await fill(ledger)
        before = await reads()
        await run_every_list(ledger)
        assert await reads() - before < 550, "the page of a short key, and the entries of the lists"
