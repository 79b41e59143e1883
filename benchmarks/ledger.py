"""Measure the cost of each ledger: its claim and settlement alone, and approvals with and without it.

All ledgers and clients take turns in short rounds, and the clients use the same service over real
connections. Valkey and PostgreSQL are started from the wheels that tests use. They run on the core of the
service and write to disk before they respond.

Claim and settlement are compared with SQL by hand: one INSERT and one UPDATE. The cost that a ledger adds
to an approval is the difference to the same approval without one, in the same round. It is compared with
the same INSERT before the request and the same UPDATE after the response.
"""

import asyncio
import gc
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, frozen
from cores import pin
from order import FULL, SHOP, TOKEN
from rounds import interleaved, parser_of, save, spread
from service import DECISION, serving

from loanasync import LoanClient
from loanasync.ledger import (
    Ledger,
    LedgerPolicy,
    MemoryLedger,
    PostgresLedger,
    RedisLedger,
    Settlement,
    SqliteLedger,
    State,
    Subject,
    create_ledger,
)

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.servers import MissingServerError, Postgres, Valkey

T = TypeVar("T")

WITHOUT, MEMORY, SQLITE, BY_HAND = "no ledger", "memory", "SQLite", "SQL by hand"

_COLUMNS = (
    "key TEXT PRIMARY KEY, state TEXT, token TEXT, payload TEXT, customer TEXT, order_id TEXT, "
    "claimed REAL, expires REAL, changed REAL, status INTEGER, body BLOB"
)
_INSERT = "INSERT INTO decisions VALUES (?, 'inflight', ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
_UPDATE = "UPDATE decisions SET state = ?, changed = ?, status = ?, body = ? WHERE key = ?"
POLICY = LedgerPolicy(key=b"0123456789abcdef")
_DIGEST = "0123456789abcdef" * 4  # as long as the digests of a ledger's entry
_STORED = ("approved", "redirectUrl", "amount", "netAmount", "instalments", "zeroInterestRate", "orderToken")


def _key(order: str) -> str:
    return sha256(order.encode()).hexdigest()


def _body(raw: Mapping[str, object]) -> bytes:
    """Return the members of a decision that a ledger stores."""
    return json.dumps({name: raw[name] for name in _STORED if name in raw}, separators=(",", ":")).encode()


_BODY = _body(DECISION)
_SETTLEMENT = Settlement(state=State.APPROVED, status=201, body=_BODY)


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

    async def insert(self, key: str, order: str) -> None:
        """Write the claim of an approval."""
        now = time.time()
        await self._run(_INSERT, (key, _DIGEST[:32], _DIGEST, _DIGEST, order, now, now + 30, now))

    async def update(self, key: str, state: str, status: int, body: bytes) -> None:
        """Write the decision."""
        await self._run(_UPDATE, (state, time.time(), status, body, key))

    async def _run(self, statement: str, row: Sequence[object]) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._connection.execute, statement, row
        )

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown()
        self._connection.close()


async def _spread_over_tasks(call: Callable[[T], Awaitable[object]], each: Iterable[T], tasks: int) -> None:
    left = iter(each)

    async def work() -> None:
        for one in left:
            await call(one)

    await asyncio.gather(*(work() for _ in range(tasks)))


@frozen
class Operations:
    """The claim and the settlement of entries, without approvals.

    The digests and the settlement are made before the measurement, with the sizes of a full order.
    """

    store: Ledger | Table
    orders: Iterator[str]

    async def claim_and_settle(self, place: tuple[str, Subject]) -> None:
        """Write one entry twice, or one row."""
        key, subject = place
        if isinstance(self.store, Table):
            await self.store.insert(key, subject.order)
            await self.store.update(key, "approved", 201, _BODY)
            return
        token = key[:32]
        entry = await self.store.claim(key, token=token, payload=_DIGEST, lease=50.0, subject=subject)
        if entry.is_claimed_by(token):
            entry = await self.store.settle(
                key, token=token, payload=_DIGEST, settlement=_SETTLEMENT, claimed=entry
            )
        if entry.state is not State.APPROVED:
            sys.exit("an entry was not written; the measurement is invalid")

    async def measured(self, calls: int, in_flight: int) -> dict[str, float]:
        """Return microseconds per entry: CPU time and wall-clock time."""
        places = [
            (_key(order), Subject(customer=_key(f"c{order}"), order=order, order_token=_key(f"o{order}")))
            for order in islice(self.orders, calls)
        ]
        gc.collect()
        worked, began = time.process_time(), time.perf_counter()
        await _spread_over_tasks(self.claim_and_settle, places, in_flight)
        figures = {"cpu": time.process_time() - worked, "wall": time.perf_counter() - began}
        return {name: seconds / calls * 1e6 for name, seconds in figures.items()}


@frozen
class Shop:
    """A client that requests approvals, each for another customer and order."""

    client: LoanClient
    orders: Iterator[str]
    table: Table | None = None

    async def approve(self, order: str) -> None:
        """Request one approval."""
        key = _key(order)
        if self.table is not None:
            await self.table.insert(key, order)
        decision = await self.client.approve(f"TST{order[-13:]:0>13}", FULL.request(), order_id=order)
        if not decision.approved:
            sys.exit("a request was not approved; the measurement is invalid")
        if self.table is not None:
            await self.table.update(key, "approved", decision.meta.status, _body(decision.raw))

    async def measured(self, calls: int, in_flight: int) -> dict[str, float]:
        """Return microseconds per approval: CPU time, wall-clock time, and that of a replayed decision."""
        used = list(islice(self.orders, calls))
        gc.collect()
        worked, began = time.process_time(), time.perf_counter()
        await _spread_over_tasks(self.approve, used, in_flight)
        figures = {"cpu": time.process_time() - worked, "wall": time.perf_counter() - began}
        if self.client.ledger is not None:
            began = time.perf_counter()
            for order in used:
                await self.approve(order)
            figures["replay"] = time.perf_counter() - began
        return {name: seconds / calls * 1e6 for name, seconds in figures.items()}


def ledgers(stack: ExitStack) -> tuple[dict[str, Ledger | None], dict[str, str]]:
    """Return each ledger by name, and the skipped ones with the reason."""
    pin(os.getpid(), -1)  # servers that start now stay on the core of the service
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    found: dict[str, Ledger | None] = {WITHOUT: None, MEMORY: MemoryLedger()}
    found[SQLITE] = SqliteLedger(Path(folder) / "decisions.db")
    skipped = {}
    servers: dict[str, tuple[type[Valkey | Postgres], Callable[[str], Ledger]]] = {
        "Valkey": (Valkey, RedisLedger),
        "PostgreSQL": (Postgres, PostgresLedger),
    }
    for name, (kind, ledger) in servers.items():
        try:
            found[name] = ledger(stack.enter_context(kind()).url)
        except MissingServerError as missing:
            skipped[name] = str(missing)
    return found, skipped


def measured(
    runner: asyncio.Runner, measure: Operations | Shop, *, calls: int, in_flight: int
) -> dict[str, float]:
    """Run one round."""
    return runner.run(measure.measured(calls, in_flight))


def operation_rows(figures: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the cost of claim and settlement, and the ratio to SQL by hand in the same round."""
    made = []
    for name, each in figures.items():
        row: dict[str, Any] = {"name": name}
        for what in ("cpu", "wall"):
            cost, by_hand = ([one[what] for one in rounds] for rounds in (each, figures[BY_HAND]))
            row[what] = {"cost": asdict(spread(cost)), "by_hand": asdict(spread(cost, by_hand))}
        made.append(row)
    return made


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


def table(head: str, rows: list[dict[str, Any]]) -> str:
    """Format the results for one number of calls in flight."""
    has_added = "added" in rows[0]["cpu"]
    measures = {"cost": (16, 1), "added": (7, 1), "by_hand": (13, 2)}  # width and decimals
    kinds = {"cpu": "µs of CPU", "wall": "wall-clock µs"}
    added = "  added" if has_added else ""
    lines = ["\n" + head.ljust(31) + "".join(f"{kind:>16}{added}  by hand = 1" for kind in kinds.values())]
    lines[0] += f"{'replayed':>11}" if has_added else ""
    for row in rows:
        line = f"{row['name']:31}"
        for kind in kinds:
            for measure, (width, digits) in measures.items():
                if measure in row[kind]:
                    line += f"{row[kind][measure]['median']:{width}.{digits}f}"
        lines.append(line + (f"{row['replay']['median']:11.0f}" if "replay" in row else ""))
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__, 15)
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--in-flight", default="1,32", help="calls in flight, comma-separated")
    options = parser.parse_args()
    levels: list[dict[str, Any]] = []
    orders = map(str, itertools.count(time.time_ns()))  # not used by an earlier run
    with ExitStack() as stack, asyncio.Runner() as runner:
        found, skipped = ledgers(stack)
        for name, reason in skipped.items():
            print(f"skipped: {name}: {reason}")
        service = stack.enter_context(serving())
        client = partial(LoanClient, service.base_url, shop_id=SHOP, auth_token=TOKEN)
        for ledger in found.values():
            if isinstance(ledger, SqliteLedger | RedisLedger | PostgresLedger):
                runner.run(create_ledger(ledger, base_url=service.base_url, policy=POLICY))
        shops = {
            name: Shop(client(ledger=ledger, ledger_policy=None if ledger is None else POLICY), orders)
            for name, ledger in found.items()
        }
        by_hand = Table(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "decisions.db")
        stack.callback(by_hand.close)
        shops[BY_HAND] = Shop(client(), orders, by_hand)
        stores: dict[str, Ledger | Table | None] = {**found, BY_HAND: by_hand}
        operations = {name: Operations(store, orders) for name, store in stores.items() if store is not None}
        for in_flight in map(int, options.in_flight.split(",")):
            measure = partial(measured, runner, calls=options.calls, in_flight=in_flight)
            turns = {name: partial(measure, each) for name, each in operations.items()}
            level: dict[str, Any] = {"in_flight": in_flight}
            level["operations"] = operation_rows(interleaved(turns, options.rounds))
            print(table(f"{in_flight} in flight: claim and settle", level["operations"]), flush=True)
            turns = {name: partial(measure, shop) for name, shop in shops.items()}
            level["rows"] = rows(interleaved(turns, options.rounds))
            print(table(f"{in_flight} in flight: whole approval", level["rows"]), flush=True)
            levels.append(level)
        for each in (*(shop.client for shop in shops.values()), *found.values()):
            if each is not None:
                runner.run(each.aclose())
    print(f"\n{options.rounds} rounds of {options.calls} calls each")
    sizes = {"rounds": options.rounds, "calls": options.calls}
    save(options.json, {**sizes, "skipped": skipped, "levels": levels})


if __name__ == "__main__":
    main()
