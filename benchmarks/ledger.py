"""Measure the cost of each ledger: the same approvals without a ledger and with each backend.

All clients use the same service over real connections and take turns in short rounds. Valkey and
PostgreSQL are started from the wheels that tests use, unless you pass addresses. They run on the core of
the service and write to disk before they respond.

The cost of a ledger is the difference to the same approval without one, in the same round. `SqliteLedger`
is also compared with SQL by hand: one INSERT before the request and one UPDATE after the response.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from attrs import asdict, frozen
from cores import pin
from order import CODE, FULL, SHOP, TOKEN
from rounds import interleaved, spread
from service import serving

from loanasync import Decision, LoanClient
from loanasync.ledger import (
    DecisionLedger,
    LedgerPolicy,
    MemoryLedger,
    PostgresLedger,
    RedisLedger,
    SqliteLedger,
)

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.servers import MissingServerError, Postgres, Valkey

WITHOUT, MEMORY, SQLITE, BY_HAND = "no ledger", "memory", "SQLite", "SQL by hand"

_COLUMNS = (
    "key TEXT PRIMARY KEY, state TEXT, token TEXT, payload TEXT, customer TEXT, scope TEXT, "
    "claimed REAL, expires REAL, changed REAL, status INTEGER, body BLOB"
)
_INSERT = "INSERT INTO decisions VALUES (?, 'inflight', ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
_UPDATE = "UPDATE decisions SET state = ?, changed = ?, status = ?, body = ? WHERE key = ?"
POLICY = LedgerPolicy(key=b"0123456789abcdef")
_DIGEST = "0123456789abcdef" * 4  # as long as the digests of a ledger's entry
_STORED = ("approved", "redirectUrl", "amount", "netAmount", "instalments", "zeroInterestRate", "orderToken")


def _key(scope: str) -> str:
    return sha256(scope.encode()).hexdigest()


class Table:
    """A table that a shop could write by hand, with the durability of `SqliteLedger`.

    A thread runs the statements, so that the event loop does not wait for the disk. Each statement is
    committed before the call goes on. There is no lease, no search, and no check of the entry's owner.
    """

    def __init__(self, file: Path) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA fullfsync = ON")
        self._connection.execute(f"CREATE TABLE decisions ({_COLUMNS})")

    async def insert(self, scope: str) -> None:
        """Write the claim of an approval."""
        now = time.time()
        row = (_key(scope), _DIGEST[:32], _DIGEST, _DIGEST, scope, now, now + 30, now)
        await self._run(_INSERT, row)

    async def update(self, scope: str, decision: Decision) -> None:
        """Write the decision."""
        raw = decision.raw
        body = json.dumps({name: raw[name] for name in _STORED if name in raw}).encode()
        state = "approved" if decision.approved else "refused"
        await self._run(_UPDATE, (state, time.time(), decision.meta.status, body, _key(scope)))

    async def _run(self, statement: str, row: Sequence[object]) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._connection.execute, statement, row
        )

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown()
        self._connection.close()


@frozen
class Shop:
    """A client that requests approvals for one customer, each in a new scope."""

    client: LoanClient
    scopes: Iterator[str]
    table: Table | None = None

    async def approve(self, calls: int, in_flight: int) -> list[str]:
        """Request approvals with a concurrency limit, and return their scopes."""
        used: list[str] = []
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                used.append(next(self.scopes))
                await self.approve_one(used[-1])

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return used

    async def approve_one(self, scope: str) -> None:
        """Request one approval."""
        if self.table is not None:
            await self.table.insert(scope)
        decision = await self.client.approve(CODE, FULL.request(), scope=scope)
        if not decision.approved:
            sys.exit("a request was not approved; the measurement is invalid")
        if self.table is not None:
            await self.table.update(scope, decision)

    async def measured(self, calls: int, in_flight: int) -> dict[str, float]:
        """Return microseconds per approval: CPU time, wall-clock time, and that of a replayed decision."""
        gc.collect()
        worked, began = time.process_time(), time.perf_counter()
        used = await self.approve(calls, in_flight)
        figures = {"cpu": time.process_time() - worked, "wall": time.perf_counter() - began}
        if self.client.ledger is not None:
            began = time.perf_counter()
            for scope in used:
                await self.approve_one(scope)
            figures["replay"] = time.perf_counter() - began
        return {name: seconds / calls * 1e6 for name, seconds in figures.items()}


def ledgers(
    stack: ExitStack, redis: str | None, postgres: str | None
) -> tuple[dict[str, DecisionLedger | None], dict[str, str]]:
    """Return each ledger by name, and the skipped ones with the reason."""
    pin(os.getpid(), -1)  # servers that start now stay on the core of the service
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    found: dict[str, DecisionLedger | None] = {WITHOUT: None, MEMORY: MemoryLedger()}
    found[SQLITE] = SqliteLedger(Path(folder) / "decisions.db")
    skipped = {}
    servers: dict[str, tuple[type[Valkey | Postgres], str | None, Callable[[str], DecisionLedger]]] = {
        "Valkey": (Valkey, redis, RedisLedger),
        "PostgreSQL": (Postgres, postgres, PostgresLedger),
    }
    for name, (kind, url, ledger) in servers.items():
        try:
            found[name] = ledger(url or stack.enter_context(kind()).url)
        except MissingServerError as missing:
            skipped[name] = str(missing)
    return found, skipped


def measured(runner: asyncio.Runner, shop: Shop, *, calls: int, in_flight: int) -> dict[str, float]:
    """Run one round of a shop."""
    return runner.run(shop.measured(calls, in_flight))


def rows(figures: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the cost of each ledger, and how it compares to the call without one in the same round.

    `added` is the difference to that call, and `by_hand` the ratio of this difference to that of SQL by hand.
    """
    made = []
    for name, each in figures.items():
        row: dict[str, Any] = {"name": name}
        for what in ("cpu", "wall"):
            costs = {which: [one[what] for one in figures[which]] for which in (name, WITHOUT, BY_HAND)}
            cost, bare = costs[name], costs[WITHOUT]
            added, extra = (
                [one - per for one, per in zip(costs[which], bare, strict=True)] for which in (name, BY_HAND)
            )
            spreads = {"cost": spread(cost), "ratio": spread(cost, bare), "added": spread(added)}
            spreads["by_hand"] = spread(added, extra)
            row[what] = {measure: asdict(figure) for measure, figure in spreads.items()}
        if "replay" in each[0]:
            row["replay"] = asdict(spread([one["replay"] for one in each]))
        made.append(row)
    return made


def table(level: dict[str, Any]) -> str:
    """Format the results for one number of calls in flight."""
    head = f"\n{level['in_flight']} in flight"
    kinds = {"cpu": "µs of CPU", "wall": "wall-clock µs"}
    lines = [head.ljust(16) + "".join(f"{kind:>15}  added  by hand = 1" for kind in kinds.values())]
    lines[0] += f"{'replayed':>11}"
    for row in level["rows"]:
        line = f"{row['name']:15}"
        for kind in kinds:
            cost, added, per = (row[kind][measure]["median"] for measure in ("cost", "added", "by_hand"))
            line += f"{cost:16.0f}{added:7.1f}{per:13.2f}"
        lines.append(line + (f"{row['replay']['median']:11.0f}" if "replay" in row else ""))
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each ledger")
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--in-flight", default="1,32", help="calls in flight, comma-separated")
    parser.add_argument(
        "--redis", help="address of a Valkey or Redis server to use; the entries are not deleted"
    )
    parser.add_argument(
        "--postgres", help="address of a PostgreSQL server to use; the entries are not deleted"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    levels = []
    scopes = map(str, itertools.count(time.time_ns()))  # not used by an earlier run
    with ExitStack() as stack, asyncio.Runner() as runner:
        found, skipped = ledgers(stack, options.redis, options.postgres)
        for name, reason in skipped.items():
            print(f"skipped: {name}: {reason}")
        service = stack.enter_context(serving())
        client = partial(LoanClient, service.base_url, shop_id=SHOP, auth_token=TOKEN)
        shops = {
            name: Shop(client(ledger=ledger, ledger_policy=None if ledger is None else POLICY), scopes)
            for name, ledger in found.items()
        }
        by_hand = Table(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "decisions.db")
        stack.callback(by_hand.close)
        shops[BY_HAND] = Shop(client(), scopes, by_hand)
        for in_flight in map(int, options.in_flight.split(",")):
            measure = partial(measured, runner, calls=options.calls, in_flight=in_flight)
            turns = {name: partial(measure, shop) for name, shop in shops.items()}
            figures = interleaved(turns, options.rounds)
            levels.append({"in_flight": in_flight, "rows": rows(figures)})
            print(table(levels[-1]), flush=True)
        for each in (*(shop.client for shop in shops.values()), *found.values()):
            if each is not None:
                runner.run(each.aclose())
    print(f"\n{options.rounds} rounds of {options.calls} calls each")
    if options.json:
        written = {"rounds": options.rounds, "calls": options.calls, "skipped": skipped, "levels": levels}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
