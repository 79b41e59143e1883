"""Variants of one thing that take turns, so that a machine's noise meets them alike, and their statistics."""

import asyncio
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import TypeVar

from attrs import field, frozen
from order import APPROVED, Call, Opener
from service import Service

__all__ = ["Opened", "Spread", "Variant", "calling", "interleaved", "opened", "spent", "spread"]

Figure = TypeVar("Figure")


@frozen
class Variant:
    """A client of the comparison, by the name in its table; `settle` ends what it left for later."""

    name: str
    open: Opener
    loop: str = "asyncio"
    settle: Callable[[], object] = field(default=lambda: None)


@frozen
class Opened:
    """A variant whose client is open, and the loop in which it is."""

    variant: Variant
    call: Call
    runner: asyncio.Runner


def _new_loop(kind: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if kind == "asyncio":
        return None
    import uvloop  # noqa: PLC0415  (Windows has none)

    return uvloop.new_event_loop


@contextmanager
def opened(variants: Sequence[Variant], base_url: str) -> Iterator[tuple[dict[str, Opened], dict[str, str]]]:
    """Those variants whose first call is answered well, by name, and why the others are left out."""
    good: dict[str, Opened] = {}
    left_out: dict[str, str] = {}
    closing = []
    runners: dict[str, asyncio.Runner] = {}
    try:
        for variant in variants:
            stack = AsyncExitStack()
            try:
                runner = runners.get(variant.loop) or asyncio.Runner(loop_factory=_new_loop(variant.loop))
                runners[variant.loop] = runner
                call = runner.run(_tried(stack, variant, base_url))
            except Exception as error:  # noqa: BLE001  (whatever a peer raises, it is told)
                left_out[variant.name] = f"{type(error).__name__}: {str(error)[:100]}"
            else:
                good[variant.name] = Opened(variant, call, runner)
            closing.append((runner, stack))
        # What all those libraries keep for good is no part of anybody's collections.
        gc.collect()
        gc.freeze()
        yield good, left_out
    finally:
        gc.unfreeze()
        for runner, stack in closing:
            runner.run(stack.aclose())
        for runner in runners.values():
            runner.close()


async def _tried(stack: AsyncExitStack, variant: Variant, base_url: str) -> Call:
    call = await stack.enter_async_context(variant.open(base_url))
    answer = await call()
    if answer != APPROVED:
        raise ValueError(f"not the answer that was given: {answer}")
    return call


async def calling(call: Call, calls: int, in_flight: int) -> None:
    """So many calls, so many at a time; every answer must be right."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            if await call() != APPROVED:
                sys.exit("not all were approved, so nothing was measured")

    await asyncio.gather(*(work() for _ in range(in_flight)))


def spent(client: Opened, service: Service, calls: int, in_flight: int) -> tuple[float, float]:
    """Microseconds of processor time that this process spends on a call, and how busy the service is."""
    client.runner.run(calling(client.call, in_flight, in_flight))  # opens what has been closed meanwhile
    client.variant.settle()
    gc.collect()
    return client.runner.run(_spent(client, service, calls, in_flight))


async def _spent(client: Opened, service: Service, calls: int, in_flight: int) -> tuple[float, float]:
    service.busy()
    started = time.process_time()  # user and system, all threads
    await calling(client.call, calls, in_flight)
    client.variant.settle()
    cost = (time.process_time() - started) / calls * 1e6
    return cost, service.busy()


def interleaved(
    measures: Mapping[str, Callable[[], Figure]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[Figure]]:
    """The figures of each round, in which all take turns, each time in another order."""
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
    """What rounds came to: the middle, and where their middle half lies."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def spread(figures: Sequence[float], per: Sequence[float] | None = None) -> Spread:
    """The spread of figures, or of their ratios to others of the same rounds."""
    if per is not None:
        figures = [one / other for one, other in zip(figures, per, strict=True)]
    if len(figures) == 1:
        return Spread(figures[0], figures[0], figures[0])
    low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
    return Spread(median, low, high)
