"""A fault test with many workers: kill workers, restart the queue, lose responses, check each customer.

`python -m support.fleet.run --write` writes its results to docs/howto/workers.md.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from loanasync.ledger import LedgerPolicy, State, import_orphans
from loanasync.ledger.keys import places_of
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, fiscal_code
from loanasync.worker import message
from support.fleet import worker_process
from support.fleet.workers import Fleet, kill, posts
from support.servers import Nats, Postgres, Server, Valkey

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["PAGE", "Plan", "Report", "render_tables", "run", "with_table"]

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "workers.md"
FAULTS = ("500after", "resetafter", "hangafter")
AT_ONCE = 50


@frozen(kw_only=True)
class Plan:
    """The settings of a run: its size, its faults, its servers."""

    customers: int = 20_000
    workers: int = 4
    slots: int = 16
    faults: float = 0.02
    kills_every: float = 5.0  # seconds; 0: kill no worker
    kills: int = 1_000  # maximum number
    restarts: int = 1  # of the broker, and of the ledger's server
    broker: type[Server] = Nats
    ledger: type[Server] | None = None  # None: SQLite
    times: dict[str, float] = field(
        factory=lambda: {"total": 10.0, "patience": 5.0, "cap": 1.0, "redelivery": 50.0}
    )


@frozen(kw_only=True)
class Report:
    """The results of a run."""

    plan: Plan
    seconds: float
    states: Counter[str]
    faulted: int
    killed: int
    by_faults: int
    by_kills: int
    repeated: int
    imported: int  # orphan files
    deliveries: int
    wrong: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Customers per second."""
        return self.plan.customers / self.seconds


def tags(plan: Plan) -> Iterator[str]:
    """Yield the e-mail tag of each customer: the planned faults; a third of the others are refused."""
    choose = random.Random(7)  # noqa: S311  (the same ones each time)
    faults = round(plan.customers * plan.faults)
    all_of_them = [FAULTS[number % len(FAULTS)] for number in range(faults)]
    remaining = plan.customers - faults
    all_of_them += ["refused" if number % 3 == 0 else "approved" for number in range(remaining)]
    choose.shuffle(all_of_them)
    return iter(all_of_them)


class FleetRun:
    """One run, with its sandbox, its servers and its workers."""

    def __init__(self, plan: Plan, folder: Path, stack: ExitStack) -> None:
        self.plan = plan
        size = plan.customers
        self.sandbox = stack.enter_context(Sandbox.in_thread(customers=size, journal=3 * size))
        self.broker: Any = stack.enter_context(plan.broker())
        self.servers: list[Server] = [self.broker]
        where = str(folder / "decisions.db")
        if plan.ledger is not None:
            self.servers.append(stack.enter_context(plan.ledger()))
            where = self.servers[-1].url
        self.fleet = Fleet(self.sandbox, self.broker.url, where, folder, **plan.times)
        self.claims_file = folder / "claims.jsonl"
        self.stack = stack
        self.tagged = {fiscal_code(): tag for tag in tags(plan)}
        self.requests = {
            code: approval_request(email=f"anna+{tag}@example.com") for code, tag in self.tagged.items()
        }
        self.workers: list[BaseProcess] = []
        self.killed: list[int] = []

    def start_worker(self) -> None:
        settings = {"claims_file": str(self.claims_file), "slots": self.plan.slots, "attempts": 3}
        self.workers.append(self.stack.enter_context(self.fleet.worker(**settings)))

    async def prepare(self) -> list[str]:
        """Create the ledger and all customers, and put their messages into the queue."""
        await self.fleet.create_ledger()
        codes = list(self.tagged)
        async with self.sandbox.client() as client:
            for chunk in chunks(codes):
                await asyncio.gather(*(client.create_request({"fiscalCode": code}) for code in chunk))
        return await self.fleet.put(*(message(code, self.requests[code]) for code in codes))

    async def work(self, tasks: Sequence[str]) -> float:
        """Run the workers until each message has a result; return the seconds that it took."""
        for _ in range(self.plan.workers):
            self.start_worker()
        finished: set[str] = set()
        started = next_kill = time.monotonic()
        next_kill += self.plan.kills_every
        restarts = 0
        with self.fleet.results.open("a+", encoding="utf-8") as lines:
            lines.seek(0)
            while not finished.issuperset(tasks):
                finished.update(json.loads(line)["task"] for line in complete_lines(lines))
                await asyncio.sleep(0.05)
                self.check()
                if not finished:  # measure from the first result, when the workers have started
                    started, next_kill = time.monotonic(), time.monotonic() + self.plan.kills_every
                is_busy = len(finished) < 0.9 * len(tasks)
                if self.plan.kills_every and is_busy and time.monotonic() >= next_kill:
                    if len(self.killed) < self.plan.kills:
                        await asyncio.to_thread(self.kill_one)
                    next_kill = time.monotonic() + self.plan.kills_every
                if restarts < self.plan.restarts and len(finished) > 0.5 * len(tasks):
                    restarts += 1
                    await asyncio.to_thread(self.restart)
        return time.monotonic() - started

    def check(self) -> None:
        """Raise an AssertionError if a worker has ended by itself."""
        if any(not each.is_alive() for each in self.workers):
            raise AssertionError(f"a worker has ended: {self.fleet.log.read_text(encoding='utf-8')[-2000:]}")

    def kill_one(self) -> None:
        oldest = self.workers.pop(0)
        assert oldest.pid is not None
        self.killed.append(oldest.pid)
        kill(oldest)
        self.start_worker()

    def restart(self) -> None:
        for server in self.servers:
            server.kill()
            server.start()

    def stop(self) -> None:
        for each in self.workers:
            each.terminate()
        for each in self.workers:
            each.join(60)

    async def compare(self, seconds: float) -> Report:
        """Compare the ledger with the sandbox's journal."""
        plan, wrong = self.plan, []
        keys = self.keys()
        async with self.fleet.ledger() as ledger:
            imported = await import_orphans(ledger, self.fleet.settings["orphans"])
            states = {entry.key: entry.state async for entry in ledger.scan()}
        claims_file = unfinished_claims(self.claims_file, self.killed)
        received = posts(self.sandbox)
        evaluated = Counter(each.fiscal_code for each in received if each.evaluated)
        decided = {each.fiscal_code: each.status for each in received if each.evaluated}
        known = {201: State.APPROVED, 422: State.REFUSED}
        by_faults = by_kills = 0
        for code, tag in self.tagged.items():
            state = states.get(keys[code])
            if state is None or not (state.is_decided or state in (State.UNKNOWN, State.LOST)):
                wrong.append(f"a customer is {state}")
            elif state.is_decided:
                if known.get(decided.get(code) or 0) is not state or tag in FAULTS:
                    wrong.append(f"{state} in the ledger, {decided.get(code)} at the service, {tag}")
            elif tag in FAULTS:
                by_faults += 1
            else:
                by_kills += 1
                if keys[code] not in claims_file:
                    wrong.append(f"{state} without a cause")
        refused = {each.fiscal_code for each in received if each.status == 422}
        times = Counter(each.fiscal_code for each in received)
        repeated = sum(evaluated[code] > 1 or (code in refused and times[code] > 1) for code in self.tagged)
        if repeated:
            wrong.append(f"{repeated} customers were evaluated twice, or requested after a refusal")
        faulted = sum(tag in FAULTS for tag in self.tagged.values())
        return Report(
            plan=plan, seconds=seconds, states=Counter(state.value for state in states.values()),
            faulted=faulted, killed=len(self.killed), by_faults=by_faults, by_kills=by_kills,
            repeated=repeated, imported=imported, wrong=tuple(wrong),
            deliveries=len(worker_process.results(self.fleet.results)),
        )  # fmt: skip

    def keys(self) -> dict[str, str]:
        """Return the key of each customer's ledger entry."""
        policy, shop = LedgerPolicy(), self.sandbox.shop_id
        return {code: places_of(shop, code, [worker_process.KEY], policy)[0].key for code in self.requests}


def chunks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    return (items[start_worker : start_worker + AT_ONCE] for start_worker in range(0, len(items), AT_ONCE))


def complete_lines(lines: Any) -> Iterator[str]:
    """Yield the new lines of a file that are complete."""
    while line := lines.readline():
        if not line.endswith("\n"):
            lines.seek(lines.tell() - len(line.encode()))
            return
        yield line


def unfinished_claims(file: Path, killed: Sequence[int]) -> set[str]:
    """Return the keys that killed workers had begun to claim and had not settled."""
    claims_file: dict[int, set[str]] = {pid: set() for pid in killed}
    for each in worker_process.results(file):
        if each["pid"] in claims_file:
            claims = claims_file[each["pid"]]
            claims.add(each["has"]) if "has" in each else claims.discard(each["had"])
    return set().union(*claims_file.values())


async def run(plan: Plan) -> Report:
    """Run a fleet, and return its results."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleet_run = await asyncio.to_thread(FleetRun, plan, Path(folder), stack)
        seconds = await fleet_run.work(await fleet_run.prepare())
        await asyncio.to_thread(fleet_run.stop)
        return await fleet_run.compare(seconds)


RUNS = (
    Plan(broker=Nats, ledger=Postgres),
    Plan(broker=Valkey, ledger=Valkey),
    Plan(broker=Nats, ledger=Valkey),
    Plan(broker=Valkey),
)
CALM = {"faults": 0.0, "kills_every": 0.0, "restarts": 0}
BEGIN, END = "<!-- fleet begin -->", "<!-- fleet end -->"


def render_tables(reports: Sequence[Report], undisturbed: Sequence[Report]) -> str:
    """Return the two tables of the page: the runs with faults, and the speed without faults."""
    lines = ["| | " + " | ".join(_name(report.plan) for report in reports) + " |"]
    lines.append("|---" * (len(reports) + 1) + "|")
    rows: dict[str, Callable[[Report], str]] = {
        "customers": lambda each: f"{each.plan.customers:,}",
        "responses lost on purpose after the decision": lambda each: f"{each.faulted:,}",
        "workers killed (kill -9)": lambda each: f"{each.killed}",
        "restarts of each server (kill -9)": lambda each: f"{each.plan.restarts}",
        "approved in the ledger and at the service": lambda each: f"{each.states['approved']:,}",
        "refused in the ledger and at the service": lambda each: f"{each.states['refused']:,}",
        "`unknown` or `lost`, to be resolved by a person": lambda each: (
            f"{each.states['unknown'] + each.states['lost']:,}"
        ),
        "of these, response lost on purpose": lambda each: f"{each.by_faults:,}",
        "of these, in progress in a killed worker": lambda each: f"{each.by_kills:,}",
        "evaluated twice, or requested again after a refusal": lambda each: f"{each.repeated}",
        "seconds": lambda each: f"{each.seconds:,.0f}",
    }
    for name, value in rows.items():
        lines.append(f"| {name} | " + " | ".join(value(report) for report in reports) + " |")
    head = " | ".join(f"{report.plan.workers}" for report in undisturbed)
    lines += ["", f"| workers, without faults | {head} |", "|---" * (len(undisturbed) + 1) + "|"]
    rates = " | ".join(f"{report.rate:,.0f}" for report in undisturbed)
    return "\n".join([*lines, f"| customers per second ({_name(undisturbed[0].plan)}) | {rates} |"])


def _name(plan: Plan) -> str:
    broker = "Redis streams" if plan.broker is Valkey else "NATS JetStream"
    ledgers: dict[type[Server] | None, str] = {None: "SQLite", Postgres: "PostgreSQL", Valkey: "Redis"}
    return f"{broker}, {ledgers[plan.ledger]} ledger"


def with_table(page: str, table: str) -> str:
    """Return the page with new tables."""
    before, _, remaining = page.partition(BEGIN)
    _, _, after = remaining.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    """Run the fleets, print the results, and with --write put them into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--customers", type=int, default=8_000, help="customers of each run")
    options = parser.parse_args()
    size = options.customers
    reports = [asyncio.run(run(evolve(plan, customers=size))) for plan in RUNS]
    undisturbed = [
        asyncio.run(run(Plan(broker=Valkey, customers=size // 2, workers=workers, **CALM)))  # type: ignore[arg-type]  # numbers
        for workers in (1, 2, 3, 4)
    ]
    table = render_tables(reports, undisturbed)
    print(table)  # noqa: T201  (a script)
    wrong = [each for report in (*reports, *undisturbed) for each in report.wrong]
    if wrong:
        raise SystemExit("\n".join(sorted(set(wrong))))
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    main()
