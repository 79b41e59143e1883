"""How a client grows: with calls in flight, with calls made, in bulk; ours beside plain aiohttp, in turns.

The service is that of `calls.py`, on a core of its own. Latencies are by the clock, and good on a quiet
machine only; all else is processor time and memory.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, frozen
from clients_ours import ours
from clients_plain import plain
from rounds import interleaved, spread
from service import Service, more_files, serving
from strain import Client, bytes_each, cost, latencies, longest_steps
from volume import (
    Bulk,
    approve_many,
    import_time,
    in_bulk,
    memory_in_bulk,
    orchestration,
    stretches,
    task_each,
)

CLIENTS: dict[str, Client] = {"ours": ours, "plain": plain}
BULK: dict[Client, Bulk] = {ours: approve_many, plain: task_each}
LATENCY_IN_FLIGHT = 100
Row = dict[str, Any]
Figures = dict[str, list[float]]


@frozen
class Sizes:
    """How long to measure."""

    in_flight: tuple[int, ...]
    calls: int
    items: int
    rounds: int

    @property
    def most(self) -> int:
        """Calls in flight."""
        return max(self.in_flight)


def row(name: str, figures: Figures) -> Row:
    """A line of the table: both figures, and the ratio round by round."""
    both = {each: spread(figures[each]).median for each in CLIENTS}
    ratio = asdict(spread(figures["ours"], figures["plain"])) if min(figures["plain"]) > 0 else None
    return {"name": name, **both, "ratio": ratio}


def rows(names: Sequence[str], figures: dict[str, list[tuple[float, float]]]) -> Iterator[Row]:
    """Lines of figures that come in pairs."""
    for place, name in enumerate(names):
        yield row(name, {each: [pair[place] for pair in pairs] for each, pairs in figures.items()})


def turns(measure: Callable[[Client], Coroutine[Any, Any, Any]], rounds: int) -> dict[str, list[Any]]:
    """Rounds of both clients, each in a loop of its own."""
    ways = {name: partial(_run, measure, client) for name, client in CLIENTS.items()}
    return interleaved(ways, rounds, warm_up=0)  # each measure warms up by itself


def _run(measure: Callable[[Client], Coroutine[Any, Any, Any]], client: Client) -> Any:  # noqa: ANN401  (what it says)
    return asyncio.run(measure(client))


def costs(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Cost of a call by the number of those in flight."""
    for number in sizes.in_flight:
        measure = partial(cost, service=service, calls=max(sizes.calls // 10, number), number=number)
        yield row(f"µs of CPU a call, {number:,} in flight", turns(measure, sizes.rounds))


def stretched(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Cost of a call, and memory, by the number of those made."""
    figures = asyncio.run(stretches(CLIENTS, service, sizes.calls))
    for name, place in (("first", 0), ("last", -1)):
        part = {each: [pairs[place][0]] for each, pairs in figures.items()}
        yield row(f"µs of CPU a call, {name} tenth of {sizes.calls:,}", part)
    grown = {each: [sum(grown for _, grown in pairs)] for each, pairs in figures.items()}
    yield row(f"MB grown in {sizes.calls:,} calls", grown)


def memory(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Bytes of a call in flight."""
    number = min(sizes.most, 1000)
    yield from rows(
        (f"bytes a call of {number:,} and its connection", f"bytes a call of {number:,} in flight"),
        turns(lambda client: bytes_each(client, service, number), 1),
    )


def latency(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Time from call to answer."""
    number = min(sizes.most, LATENCY_IN_FLIGHT)
    calls = max(sizes.calls // 10, number)
    yield from rows(
        (f"ms to an answer, {number} in flight, median", f"ms to an answer, {number} in flight, p99"),
        turns(lambda client: latencies(client, service, calls, number), sizes.rounds),
    )


def steps(service: Service, sizes: Sizes) -> Iterator[Row]:
    """How long the loop stands still."""
    yield from rows(
        (
            f"ms in the loop's longest step, {sizes.most:,} in flight",
            "ms in the longest step, without collections",
        ),
        turns(lambda client: longest_steps(client, service, sizes.most), 1),
    )


def bulk(service: Service, sizes: Sizes) -> Iterator[Row]:
    """Many items: ours by approve_many, plain aiohttp by a task each behind a semaphore."""
    costs = turns(lambda client: in_bulk(client, BULK[client], service, sizes.items), sizes.rounds)
    yield row(f"µs of CPU an item of {sizes.items:,}", costs)
    most = turns(lambda client: memory_in_bulk(client, BULK[client], service, sizes.items), 1)
    yield row(f"kB of memory at most, {sizes.items:,} items", most)
    alone = turns(lambda client: orchestration(BULK[client], sizes.items), sizes.rounds)
    yield row("µs of CPU an item that is not sent", alone)


def imports(_: Service, sizes: Sizes) -> Iterator[Row]:
    """What is paid before the first call."""
    modules = {"ours": partial(import_time, "loanasync"), "plain": partial(import_time, "aiohttp")}
    yield row(
        "ms of CPU to import", interleaved(modules, 5 * sizes.rounds)
    )  # short, and never twice the same


PARTS = {
    "costs": costs,
    "stretches": stretched,
    "memory": memory,
    "latency": latency,
    "steps": steps,
    "bulk": bulk,
    "imports": imports,
}


def shown(line: Row) -> str:
    """A line for people."""
    ratio = line["ratio"]
    compared = f"{ratio['median']:8.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
    return f"{line['name']:48}{line['ours']:10,.1f}{line['plain']:10,.1f}{compared}"


def main() -> None:
    """Read the options, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", default="1,10,100,1000,10000", help="so many calls at a time")
    parser.add_argument("--calls", type=int, default=20_000, help="calls made, up to a million or more")
    parser.add_argument("--items", type=int, default=10_000, help="items in bulk, up to 100000 or more")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each client")
    parser.add_argument("--parts", default=",".join(PARTS), help="only these, comma-separated")
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    options = parser.parse_args()
    files = more_files()
    wanted = tuple(map(int, options.in_flight.split(",")))
    possible = tuple(number for number in wanted if number < files - 100)
    for number in set(wanted) - set(possible):
        print(f"left out: {number:,} in flight: this system opens {files:,} files at most")
    sizes = Sizes(possible, options.calls, options.items, options.rounds)
    lines = []
    print(f"{'':48}{'ours':>10}{'plain':>10}{'ratio':>8} (middle half)")
    with serving() as service:
        for part in options.parts.split(","):
            for line in PARTS[part](service, sizes):
                lines.append(line)
                print(shown(line), flush=True)
    if options.json:
        options.json.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
