"""Measure how cost and memory grow with calls in flight, calls made and bulk items, beside plain aiohttp.

The service is `service.py`, on another core; it can hold its responses. The order is the full one. Where
it is cheap, a session of the user is measured too. Latencies are wall-clock time and need an idle machine;
everything else is CPU time and memory.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from attrs import asdict, frozen
from clients_loanasync import through_users_session
from clients_loanasync import with_loanasync as loanasync
from clients_plain import plain
from rounds import Spread, goal, goal_line, interleaved, parser_of, save, spread
from service import Service, raise_file_limit, serving
from strain import Client, bytes_each, cost, latencies, longest_steps
from volume import (
    Bulk,
    approve_many,
    in_bulk,
    memory_in_bulk,
    orchestration,
    stretches,
    task_per_item,
)

TWO: dict[str, Client] = {"loanasync": loanasync, "plain": plain}
THREE: dict[str, Client] = {"loanasync": loanasync, "user": through_users_session, "plain": plain}
NAMES = {"loanasync": "own session", "user": "session of the user"}
BULK: dict[Client, Bulk] = {loanasync: approve_many, plain: task_per_item}
LATENCY_IN_FLIGHT = 100
FEW = 100  # calls in flight; with many more, a call may cost little more
MANY = 10_000
FLAT = 1.5
LONGEST_STEP = 5.0  # ms, without garbage collections
Row = dict[str, Any]
Figures = dict[str, list[float]]


@frozen
class Sizes:
    """Sizes of the measurements."""

    in_flight: tuple[int, ...]
    calls: int
    items: int
    rounds: int

    @property
    def most(self) -> int:
        """The highest number of calls in flight."""
        return max(self.in_flight)


def row(name: str, figures: Figures) -> Row:
    """Return a line of the table: the figure of each client, and its ratio to plain aiohttp per round."""
    plain = figures["plain"]
    return {
        "name": name,
        **{each: spread(costs).median for each, costs in figures.items()},
        "ratios": {
            each: asdict(spread(costs, plain))
            for each, costs in figures.items()
            if each in NAMES and min(plain) > 0
        },
    }


def rows(names: Sequence[str], figures: dict[str, list[tuple[float, float]]]) -> Iterator[Row]:
    """Yield a line for each of two figures that are measured together."""
    for index, name in enumerate(names):
        yield row(name, {each: [pair[index] for pair in pairs] for each, pairs in figures.items()})


def turns(
    measure: Callable[[Client], Coroutine[Any, Any, Any]],
    rounds: int,
    clients: dict[str, Client] = THREE,
) -> dict[str, list[Any]]:
    """Run rounds of all clients, each in its own event loop."""
    ways = {name: partial(_run, measure, client) for name, client in clients.items()}
    return interleaved(ways, rounds, warm_up=0)  # each measurement has its own warm-up


def _run(measure: Callable[[Client], Coroutine[Any, Any, Any]], client: Client) -> Any:  # noqa: ANN401  (the result of the measurement)
    return asyncio.run(measure(client))


def costs(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Measure CPU per call by calls in flight."""
    for number in sizes.in_flight:
        measure = partial(cost, service=service, calls=max(sizes.calls // 10, number), number=number)
        rounds = sizes.rounds if number < MANY else 1  # a round of many calls is long
        line = row(f"CPU per call, {number:,} in flight (µs)", turns(measure, rounds))
        yield line | {"in_flight": number}


def stretched(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Measure CPU per call and memory growth over many calls."""
    figures = asyncio.run(stretches(TWO, service, sizes.calls))
    for name, index in (("first", 0), ("last", -1)):
        part = {each: [pairs[index][0]] for each, pairs in figures.items()}
        yield row(f"CPU per call, {name} tenth of {sizes.calls:,} (µs)", part)
    grown = {each: [sum(grown for _, grown in pairs)] for each, pairs in figures.items()}
    yield row(f"memory growth in {sizes.calls:,} calls (MB)", grown)


def memory(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Measure memory per call in flight."""
    number = min(sizes.most, 1000)
    yield from rows(
        (
            f"memory per call and connection, {number:,} in flight (bytes)",
            f"memory per call, {number:,} in flight (bytes)",
        ),
        turns(lambda client: bytes_each(client, service, number), 1),
    )


def latency(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Measure the time from call to response."""
    number = min(sizes.most, LATENCY_IN_FLIGHT)
    calls = max(sizes.calls // 10, number)
    yield from rows(
        (f"latency, {number} in flight, median (ms)", f"latency, {number} in flight, p99 (ms)"),
        turns(lambda client: latencies(client, service, calls, number), sizes.rounds),
    )


def steps(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Measure how long one step blocks the event loop."""
    yield from rows(
        (
            f"longest step of the event loop, {sizes.most:,} in flight (ms)",
            "longest step without garbage collection (ms)",
        ),
        turns(lambda client: longest_steps(client, service, sizes.most), 1),
    )


def bulk(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Measure bulk: `approve_many`, and plain aiohttp with a task per item and a semaphore."""
    costs = turns(lambda client: in_bulk(client, BULK[client], service, sizes.items), sizes.rounds, TWO)
    yield row(f"CPU per item of {sizes.items:,} (µs)", costs)
    most = turns(lambda client: memory_in_bulk(client, BULK[client], service, sizes.items), 1, TWO)
    yield row(f"peak memory, {sizes.items:,} items (kB)", most)
    alone = turns(lambda client: orchestration(BULK[client], sizes.items), sizes.rounds, TWO)
    yield row("CPU per item without a request (µs)", alone)


def goals(lines: Sequence[Row]) -> Iterator[Row]:
    """Yield the targets of the lines that have one."""
    for line in lines:
        name = line["name"]
        for client, session in NAMES.items():
            if name.startswith("memory per call"):
                ratio = Spread(**line["ratios"][client])
                yield goal(f"{name.removesuffix(' (bytes)')}, {session} / plain aiohttp", ratio, 1.0)
            if name.startswith("longest step without"):
                yield goal(f"{name}, {session}", spread([line[client]]), LONGEST_STEP)
    costs = {line["in_flight"]: line for line in lines if "in_flight" in line}
    few, most = costs.get(FEW), costs.get(max(costs, default=0))
    if few and most and few is not most:
        for client, session in NAMES.items():
            name = f"CPU per call, {most['in_flight']:,} in flight / {FEW} in flight, {session}"
            yield goal(name, spread([most[client] / few[client]]), FLAT)


PARTS = {
    "costs": costs,
    "stretches": stretched,
    "memory": memory,
    "latency": latency,
    "steps": steps,
    "bulk": bulk,
}


def formatted(line: Row) -> str:
    """Format a line of the results."""
    figures = "".join(f"{line[each]:12,.1f}" if each in line else " " * 12 for each in THREE)
    ratios = (f"{line['ratios'][each]['median']:8.2f}" for each in NAMES if each in line["ratios"])
    return f"{line['name']:60}{figures}{''.join(ratios)}"


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__, 3)
    parser.add_argument("--in-flight", default="1,10,100,1000,10000", help="calls in flight")
    parser.add_argument("--calls", type=int, default=20_000, help="calls to make")
    parser.add_argument("--items", type=int, default=10_000, help="items in bulk")
    parser.add_argument("--parts", default=",".join(PARTS), help="measurements to run, comma-separated")
    options = parser.parse_args()
    files = raise_file_limit()
    wanted = tuple(map(int, options.in_flight.split(",")))
    possible = tuple(number for number in wanted if number < files - 100)
    for number in set(wanted) - set(possible):
        print(f"skipped: {number:,} in flight: this system allows {files:,} open files")
    sizes = Sizes(possible, options.calls, options.items, options.rounds)
    lines = []
    print(f"{'':60}{'loanasync':>12}{'session=':>12}{'plain':>12}{'ratios to plain':>18}")
    with serving() as service:
        for part in options.parts.split(","):
            for line in PARTS[part](service, sizes):
                lines.append(line)
                print(formatted(line), flush=True)
    targets = list(goals(lines))
    for each in targets:
        print(goal_line(each))
    save(options.json, {"rows": lines, "goals": targets})


if __name__ == "__main__":
    main()
