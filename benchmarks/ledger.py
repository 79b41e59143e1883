"""Measure the cost of each ledger: the same approvals without a ledger and with each backend.

All clients use the same service over real connections and take turns in short rounds. Valkey and
PostgreSQL are started from the wheels that tests use, unless you pass addresses. They run on the core of
the service and write to disk before they respond.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, frozen
from cores import pin
from order import CODE, FIELDS, SHOP, TOKEN
from rounds import interleaved, spread
from service import serving

from loanasync import ApprovalRequest, LoanClient
from loanasync.ledger import DecisionLedger, MemoryLedger, PostgresLedger, RedisLedger, SqliteLedger

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.servers import MissingServerError, Postgres, Valkey

WITHOUT = "no ledger"


@frozen
class Shop:
    """A client that requests approvals for one customer, each in a new scope."""

    client: LoanClient
    scopes: Iterator[str]

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
        decision = await self.client.approve(CODE, ApprovalRequest(**FIELDS), scope=scope)
        if not decision.approved:
            sys.exit("a request was not approved; the measurement is invalid")

    async def measured(self, calls: int, in_flight: int) -> dict[str, float]:
        """Return microseconds per approval: CPU time, wall-clock time, and that of a replayed decision."""
        gc.collect()
        worked, began = time.process_time(), time.perf_counter()
        used = await self.approve(calls, in_flight)
        figures = {"cpu": time.process_time() - worked, "wall": time.perf_counter() - began}
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
    found: dict[str, DecisionLedger | None] = {WITHOUT: None, "memory": MemoryLedger()}
    found["SQLite"] = SqliteLedger(Path(folder) / "decisions.db")
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
    """Return the cost of each ledger, and its ratio to the call without one in the same round."""
    bare = figures[WITHOUT]
    made = []
    for name, each in figures.items():
        row: dict[str, Any] = {"name": name}
        for what in ("cpu", "wall"):
            costs, per = ([one[what] for one in those] for those in (each, bare))
            row[what] = {"cost": asdict(spread(costs)), "ratio": asdict(spread(costs, per))}
        row["replay"] = asdict(spread([one["replay"] for one in each]))
        made.append(row)
    return made


def table(level: dict[str, Any]) -> str:
    """Format the results for one number of calls in flight."""
    head = f"\n{level['in_flight']} in flight"
    lines = [f"{head:16}{'µs of CPU':>10}{'ratio':>7}{'wall-clock µs':>17}{'ratio':>7}{'replayed':>19}"]
    for row in level["rows"]:
        pairs = (row["cpu"], row["wall"])
        (cpu, cpus), (wall, walls) = ((pair["cost"]["median"], pair["ratio"]["median"]) for pair in pairs)
        again = "" if row["name"] == WITHOUT else f"{row['replay']['median']:.0f}"
        lines.append(f"{row['name']:15}{cpu:10.0f}{cpus:7.2f}{wall:17.0f}{walls:7.2f}{again:>15}")
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
        shops = {
            name: Shop(LoanClient(service.base_url, shop_id=SHOP, auth_token=TOKEN, ledger=ledger), scopes)
            for name, ledger in found.items()
        }
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
