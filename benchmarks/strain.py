"""Measurements with many calls in flight: CPU, memory, latency, and the longest step of the event loop."""

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self
from unittest import mock

from counts import in_flight
from order import APPROVED, Call, Result, Scenario
from rounds import calling
from service import Service


class Client(Protocol):
    """A client with a concurrency limit."""

    def __call__(self, scenario: Scenario, limit: int) -> AbstractAsyncContextManager[Call]:
        """Open the client."""


async def cost(client: Client, service: Service, calls: int, number: int) -> float:
    """Return CPU time per call in microseconds, with `number` in flight on open connections."""
    async with client(Scenario(service.base_url), number) as call:
        await calling(call, number, number)
        gc.collect()
        started = time.process_time()
        await calling(call, calls, number)
        return (time.process_time() - started) / calls * 1e6


async def bytes_each(client: Client, service: Service, number: int) -> tuple[float, float]:
    """Return memory per call in flight in bytes: with a new connection, and on an open one."""
    async with client(Scenario(service.base_url), number) as call:
        await call()
        tracemalloc.start()
        try:
            with_connection = await in_flight(call, service, number, _traced)
            return with_connection, await in_flight(call, service, number, _traced)
        finally:
            tracemalloc.stop()


def _traced() -> float:
    return tracemalloc.get_traced_memory()[0]


async def latencies(client: Client, service: Service, calls: int, number: int) -> tuple[float, float]:
    """Return milliseconds from call to response: the median and the 99th percentile."""
    taken: list[float] = []
    async with client(Scenario(service.base_url), number) as call:

        async def timed() -> Result:
            started = time.perf_counter()
            result = await call()
            taken.append((time.perf_counter() - started) * 1e3)
            return result

        await calling(call, number, number)
        gc.collect()
        await calling(timed, calls, number)
    return statistics.median(taken), statistics.quantiles(taken, n=100)[-1]


class _Steps:
    """Measures the thread's CPU time of each step of the loop, and the share of garbage collections."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_without_collector = 0.0
        self._collected = 0.0
        self._collecting = 0.0
        self._patch = mock.patch.object(asyncio.Handle, "_run", self._timed(asyncio.Handle._run))  # noqa: SLF001  (all steps call it)

    def __enter__(self) -> Self:
        self._patch.start()
        gc.callbacks.append(self._collector)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collector)
        self._patch.stop()

    def _timed(self, run: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        def timed(handle: asyncio.Handle) -> None:
            started, collected = time.thread_time(), self._collected
            run(handle)
            if self._collector not in gc.callbacks:  # the last step did other work afterwards
                return
            taken = time.thread_time() - started
            self.longest = max(self.longest, taken * 1e3)
            without = taken - (self._collected - collected)
            self.longest_without_collector = max(self.longest_without_collector, without * 1e3)

        return timed

    def _collector(self, phase: str, _: object) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting


async def _twice(call: Call) -> None:
    assert await call() == await call() == APPROVED


async def longest_steps(client: Client, service: Service, number: int) -> tuple[float, float]:
    """Return the duration of the longest step in milliseconds, with and without garbage collections.

    `number` calls are in flight, all get their responses at once, and as many calls follow.
    """
    async with client(Scenario(service.base_url), number) as call:
        await in_flight(call, service, number, lambda: 0)  # opens the connections
        gc.collect()
        service.hold()
        with _Steps() as steps:
            async with asyncio.TaskGroup() as group:
                for index in range(number):
                    group.create_task(_twice(call))
                    if index % 10 == 0:  # keep the steps of this function short
                        await asyncio.sleep(0)
                while await asyncio.to_thread(service.held) < number:
                    pass
                await asyncio.to_thread(service.release)
    return steps.longest, steps.longest_without_collector
