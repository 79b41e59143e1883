"""Lists and lookups read only the entries that they return, by an index."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg

from loanasync.ledger import (
    Entry,
    Ledger,
    LedgerPolicy,
    PostgresLedger,
    Settlement,
    SqliteLedger,
    State,
    Subject,
    create_ledger,
    sweep,
)
from loanasync.ledger.sqlite import _SqliteStore
from support.servers import Postgres

MANY = 800  # two entries each: unknown, with an expired lease, and approved without a redirect
DECISIONS = Settlement(
    state=State.APPROVED, status=201, body=b'{"redirectUrl":"https://loans.example.com/x"}'
)
PERSONS_DECISION = Settlement(state=State.APPROVED, note="ticket 17", source="person")


async def fill(ledger: Ledger) -> None:
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


async def run_every_list(ledger: Ledger) -> None:
    """Run each list and lookup once."""

    async def listed(*states: State, **options: Any) -> list[Entry]:
        return [entry async for entry in ledger.scan(*states, **options)]

    assert len(await sweep(ledger)) == 2
    assert len(await listed(State.UNKNOWN, State.LOST)) == 4
    assert [entry.key for entry in await listed(begins="k0070")] == [f"k0070{digit}" for digit in range(10)]
    assert [entry.order for entry in await ledger.entries_of("c7")] == ["o7"]


async def test_sqlite_lists_use_an_index(tmp_path: Path) -> None:
    statements: list[str] = []
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        await create_ledger(ledger, base_url="https://loans.example.com")
        await fill(ledger)
        store = ledger._store
        assert isinstance(store, _SqliteStore)
        database = store.database()
        await database.read(lambda connection: connection.set_trace_callback(statements.append))
        await run_every_list(ledger)

        def plan(statement: str, connection: sqlite3.Connection) -> str:
            return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}"))

        read = [each for each in statements if each.lstrip().startswith("SELECT")]
        plans = {statement: await database.read(partial(plan, statement)) for statement in read}
    used = " ".join(plans.values())
    for index in ("entries_state", "entries_customer"):
        assert f"SEARCH entries USING INDEX {index} " in used
    assert [plan for plan in plans.values() if "SCAN entries" in plan] == []
    # The few entries of a customer are sorted: an index with their keys would be large.
    sorting = [plan for plan in plans.values() if "TEMP B-TREE" in plan]
    assert [plan for plan in sorting if "entries_customer" not in plan] == []
    assert [statement for statement in read if "WHERE key >= ''" in statement] == []


class Explaining:
    """A connection that explains each reading statement before it runs it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.plans: list[str] = []

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        if query.lstrip().startswith("SELECT extract") and "LEFT JOIN" in query:
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"
            self.plans.append(await self._connection.fetchval(explained, *arguments))
        rows: list[Any] = await self._connection.fetch(query, *arguments)
        return rows

    def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    def transaction(self, **options: Any) -> Any:
        return self._connection.transaction(**options)


def nodes_of(plan: Any) -> Iterator[dict[str, Any]]:
    """Return the nodes of a plan."""
    for part in plan if isinstance(plan, list) else plan.values():
        if isinstance(part, list | dict):
            yield from nodes_of(part)
    if "Node Type" in plan:
        yield plan


def rows_of(plan: Any) -> float:
    """Return the number of rows that each node of a plan read, including the filtered ones."""
    scans = [node for node in nodes_of(plan) if "Relation Name" in node]
    return float(sum(node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0) for node in scans))


async def test_postgres_lists_use_an_index(postgres: Postgres) -> None:
    table = f"t{token_hex(4)}"
    async with PostgresLedger(postgres.url, table=table) as ledger:
        policy = LedgerPolicy(key=b"0123456789abcdef")
        await create_ledger(ledger, base_url="https://loans.example.com", policy=policy)
        await fill(ledger)
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(f"ANALYZE {table}")
    # A small table may be read and sorted faster than by its index. Now this happens only without an index.
    await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
    explaining = Explaining(connection)
    await run_every_list(PostgresLedger(explaining, table=table))
    await connection.close()
    assert len(explaining.plans) > 9
    nodes = [node for plan in explaining.plans for node in nodes_of(json.loads(plan))]
    assert [node for node in nodes if node["Node Type"] == "Sort"] == []
    assert {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"} <= {f"{table}_header"}
    assert max(rows_of(json.loads(plan)) for plan in explaining.plans) <= 510, (
        "a page, the header, and a few entries that are not listed"
    )
