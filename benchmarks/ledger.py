"""What a ledger adds to a call: the same approvals without one, and over each kind there is, in one run.

All clients ask the same service over real connections and take turns in short rounds. The servers are real,
write to the disk before they say so, and work on the service's core: Valkey and PostgreSQL are started from
the wheels that tests use, unless their addresses are given.
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
    """A client, and what it asks: for one customer, each time in another scope."""

    client: LoanClient
    scopes: Iterator[str]

    async def approve(self, calls: int, in_flight: int) -> list[str]:
        """So many approvals, so many at a time; every one must be right. Their scopes."""
        asked: list[str] = []
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                asked.append(next(self.scopes))
                await self.ask(asked[-1])

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return asked

    async def ask(self, scope: str) -> None:
        """One approval."""
        decision = await self.client.approve(CODE, ApprovalRequest(**FIELDS), scope=scope)
        if not decision.approved:
            sys.exit("not all were approved, so nothing was measured")

    async def measured(self, calls: int, in_flight: int) -> dict[str, float]:
        """Microseconds for each: of this process's work, and by the clock; and of one that is remembered."""
        gc.collect()
        worked, began = time.process_time(), time.perf_counter()
        asked = await self.approve(calls, in_flight)
        figures = {"cpu": time.process_time() - worked, "wall": time.perf_counter() - began}
        began = time.perf_counter()
        for scope in asked:
            await self.ask(scope)
        figures["again"] = time.perf_counter() - began
        return {name: seconds / calls * 1e6 for name, seconds in figures.items()}


def ledgers(
    stack: ExitStack, redis: str | None, postgres: str | None
) -> tuple[dict[str, DecisionLedger | None], dict[str, str]]:
    """Each ledger by its name, and why others are left out."""
    pin(os.getpid(), -1)  # until the service is started: servers stay where they begin
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    found: dict[str, DecisionLedger | None] = {WITHOUT: None, "memory": MemoryLedger()}
    found["SQLite"] = SqliteLedger(Path(folder) / "decisions.db")
    left_out = {}
    servers: dict[str, tuple[type[Valkey | Postgres], str | None, Callable[[str], DecisionLedger]]] = {
        "Valkey": (Valkey, redis, RedisLedger),
        "PostgreSQL": (Postgres, postgres, PostgresLedger),
    }
    for name, (kind, url, ledger) in servers.items():
        try:
            found[name] = ledger(url or stack.enter_context(kind()).url)
        except MissingServerError as missing:
            left_out[name] = str(missing)
    return found, left_out


def measured(runner: asyncio.Runner, shop: Shop, *, calls: int, in_flight: int) -> dict[str, float]:
    """One round of a shop's."""
    return runner.run(shop.measured(calls, in_flight))


def rows(figures: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """What each costs, and its ratio to the call without a ledger of the same round."""
    bare = figures[WITHOUT]
    made = []
    for name, each in figures.items():
        row: dict[str, Any] = {"name": name}
        for what in ("cpu", "wall"):
            costs, per = ([one[what] for one in those] for those in (each, bare))
            row[what] = {"cost": asdict(spread(costs)), "ratio": asdict(spread(costs, per))}
        row["again"] = asdict(spread([one["again"] for one in each]))
        made.append(row)
    return made


def table(level: dict[str, Any]) -> str:
    """A level for people."""
    head = f"\n{level['in_flight']} in flight"
    lines = [
        f"{head:16}{'µs of CPU':>10}{'ratio':>7}{'µs by the clock':>17}{'ratio':>7}{'known, one by one':>19}"
    ]
    for row in level["rows"]:
        pairs = (row["cpu"], row["wall"])
        (cpu, cpus), (wall, walls) = ((pair["cost"]["median"], pair["ratio"]["median"]) for pair in pairs)
        again = "" if row["name"] == WITHOUT else f"{row['again']['median']:.0f}"
        lines.append(f"{row['name']:15}{cpu:10.0f}{cpus:7.2f}{wall:17.0f}{walls:7.2f}{again:>15}")
    return "\n".join(lines)


def main() -> None:
    """Read the options, measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each ledger")
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--in-flight", default="1,32", help="so many calls at a time, comma-separated")
    parser.add_argument("--redis", help="address of a Valkey or Redis to use; it keeps what is measured")
    parser.add_argument("--postgres", help="address of a PostgreSQL to use; it keeps what is measured")
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    options = parser.parse_args()
    levels = []
    scopes = map(str, itertools.count(time.time_ns()))  # no other run's
    with ExitStack() as stack, asyncio.Runner() as runner:
        found, left_out = ledgers(stack, options.redis, options.postgres)
        for name, reason in left_out.items():
            print(f"left out: {name}: {reason}")
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
        written = {"rounds": options.rounds, "calls": options.calls, "left_out": left_out, "levels": levels}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
