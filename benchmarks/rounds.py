"""Rounds in which variants take turns, so that noise of the machine affects all alike, and statistics."""

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, field, frozen
from order import APPROVED, Call, Opener, Scenario
from service import Server

Figure = TypeVar("Figure")


@frozen
class Variant:
    """A client of the comparison.

    Attributes:
        name: Its name in tables.
        open: Opens the client.
        slow: A slow client makes one call where the others make this many.
        loop: Its event loop.
        settle: Finishes deferred work.
    """

    name: str
    open: Opener
    slow: int = 1
    loop: str = "asyncio"
    settle: Callable[[], object] = field(default=lambda: None)


@frozen
class Opened:
    """A variant with an open client, and its event loop."""

    variant: Variant
    call: Call
    runner: asyncio.Runner


def _new_loop(kind: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if kind == "asyncio":
        return None
    import uvloop  # noqa: PLC0415  (not available on Windows)

    return uvloop.new_event_loop


@contextmanager
def opened(
    variants: Sequence[Variant], scenario: Scenario
) -> Iterator[tuple[dict[str, Opened], dict[str, str]]]:
    """Open all variants; yield those whose first call succeeds, and the skipped ones with the reason."""
    good: dict[str, Opened] = {}
    skipped: dict[str, str] = {}
    closing = []
    runners: dict[str, asyncio.Runner] = {}
    try:
        for variant in variants:
            stack = AsyncExitStack()
            try:
                runner = runners.get(variant.loop) or asyncio.Runner(loop_factory=_new_loop(variant.loop))
                runners[variant.loop] = runner
                call = runner.run(_checked_call(stack, variant, scenario))
            except Exception as error:  # noqa: BLE001  (other libraries raise anything; it is reported)
                skipped[variant.name] = f"{type(error).__name__}: {str(error)[:100]}"
            else:
                good[variant.name] = Opened(variant, call, runner)
            closing.append((runner, stack))
        # Exclude the permanent objects of all libraries from garbage collections.
        gc.collect()
        gc.freeze()
        yield good, skipped
    finally:
        gc.unfreeze()
        for runner, stack in closing:
            runner.run(stack.aclose())
        for runner in runners.values():
            runner.close()


async def _checked_call(stack: AsyncExitStack, variant: Variant, scenario: Scenario) -> Call:
    call = await stack.enter_async_context(variant.open(scenario))
    result = await call()
    if result != APPROVED:
        raise ValueError(f"unexpected result: {result}")
    return call


async def calling(call: Call, calls: int, in_flight: int) -> None:
    """Make calls with a concurrency limit, and exit if one is not approved."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            if await call() != APPROVED:
                sys.exit("a request was not approved; the measurement is invalid")

    await asyncio.gather(*(work() for _ in range(in_flight)))


def cost_and_load(client: Opened, server: Server, calls: int, in_flight: int) -> tuple[float, float]:
    """Return the CPU time of this process per call, in microseconds, and the load of the server."""
    calls = max(calls // client.variant.slow, in_flight)
    # This opens connections that were closed meanwhile.
    client.runner.run(calling(client.call, in_flight, in_flight))
    client.variant.settle()
    gc.collect()
    return client.runner.run(_cost_and_load(client, server, calls, in_flight))


async def _cost_and_load(client: Opened, server: Server, calls: int, in_flight: int) -> tuple[float, float]:
    server.busy()
    started = time.process_time()  # user and system, all threads
    await calling(client.call, calls, in_flight)
    client.variant.settle()
    cost = (time.process_time() - started) / calls * 1e6
    return cost, server.busy()


def interleaved(
    measures: Mapping[str, Callable[[], Figure]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[Figure]]:
    """Return the figures of each round; all variants take turns, in a new order in each round."""
    figures: dict[str, list[Figure]] = {name: [] for name in measures}
    order = random.Random(1)  # noqa: S311  (the same order in each run)
    for number in range(-warm_up, rounds):
        for name in order.sample(list(measures), len(measures)):
            figure = measures[name]()
            if number >= 0:
                figures[name].append(figure)
    return figures


@frozen
class Spread:
    """Median and quartiles of the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def spread(figures: Sequence[float], per: Sequence[float] | None = None) -> Spread:
    """Return the spread of figures, or of their ratios to other figures of the same rounds."""
    if per is not None:
        figures = [one / other for one, other in zip(figures, per, strict=True)]
    if len(figures) == 1:
        return Spread(figures[0], figures[0], figures[0])
    low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
    return Spread(median, low, high)


def goal(name: str, figure: Spread, bound: float, word: str = "at most") -> dict[str, Any]:
    """Return a result beside its target."""
    met = figure.median <= bound if word == "at most" else figure.median >= bound
    return {"name": name, "target": f"{word} {bound:g}", "met": met, **asdict(figure)}


def goal_line(goal: Mapping[str, Any]) -> str:
    """Format a result beside its target."""
    figure = Spread(goal["median"], goal["low"], goal["high"])
    return f"{goal['name']}: {figure}, target {goal['target']}: {'met' if goal['met'] else 'lost'}"


def parser_of(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser of the options that scripts share."""
    parser = argparse.ArgumentParser(description=description)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="rounds of each variant")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser


def save(file: Path | None, figures: object) -> None:
    """Write the results to the file that the options name."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
