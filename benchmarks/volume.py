"""Measurements of many calls: cost and memory over time, and bulk calls."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import repeat

import psutil
from order import APPROVED, CODE, FULL, Call, Result, Scenario
from rounds import calling
from service import Service
from strain import Client

from loanasync import Approved, Decision, Meta
from loanasync.bulk import Approvals, Row
from loanasync.bulk.options import BulkOptions
from loanasync.bulk.turns import Turns

CONCURRENCY = 64  # calls in flight
STRETCHES = 10
DECISION = Approved(amount=45_000, net_amount=43_650, meta=Meta(status=201, attempts=1, elapsed=0.1))
Bulk = Callable[[Call, int], Awaitable[None]]


def resident() -> float:
    """Return the memory of this process in MB."""
    return float(psutil.Process().memory_info().rss) / 1e6


async def stretches(
    clients: dict[str, Client], service: Service, calls: int
) -> dict[str, list[tuple[float, float]]]:
    """Return CPU time per call in microseconds and memory growth in MB, for each tenth of the calls."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    each = max(calls // STRETCHES, CONCURRENCY)
    async with AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(client(Scenario(service.base_url), CONCURRENCY))
            for name, client in clients.items()
        }
        for number in range(STRETCHES + 1):
            for name, call in opened.items():
                await calling(call, CONCURRENCY, CONCURRENCY)
                gc.collect()
                before, started = resident(), time.process_time()
                await calling(call, each, CONCURRENCY)
                cost = (time.process_time() - started) / each * 1e6
                gc.collect()
                if number:  # the first is a warm-up
                    figures[name].append((cost, resident() - before))
    return figures


async def approve_many(call: Call, items: int) -> None:
    """Use the pool of `approve_many`."""

    async def approve(*_: object, **__: object) -> Decision:
        assert await call() == APPROVED
        return DECISION

    row = Row(CODE, FULL.request())
    options, turns = BulkOptions(concurrency=CONCURRENCY), Turns(lambda: None, asyncio.sleep)
    async with Approvals(approve, repeat(row, items), options, turns) as results:
        async for result in results:
            assert result.is_decided


async def task_per_item(call: Call, items: int) -> None:
    """Use a task for each item and a semaphore."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one() -> None:
        async with slots:
            assert await call() == APPROVED

    async with asyncio.TaskGroup() as group:
        for _ in range(items):
            group.create_task(one())


async def in_bulk(client: Client, bulk: Bulk, service: Service, items: int) -> float:
    """Return CPU time per item, in microseconds."""
    async with client(Scenario(service.base_url), CONCURRENCY) as call:
        await calling(call, CONCURRENCY, CONCURRENCY)
        gc.collect()
        started = time.process_time()
        await bulk(call, items)
        return (time.process_time() - started) / items * 1e6


async def memory_in_bulk(client: Client, bulk: Bulk, service: Service, items: int) -> float:
    """Return the peak memory in kilobytes."""
    async with client(Scenario(service.base_url), CONCURRENCY) as call:
        await calling(call, CONCURRENCY, CONCURRENCY)
        gc.collect()
        tracemalloc.start()
        try:
            await bulk(call, items)
            return tracemalloc.get_traced_memory()[1] / 1e3
        finally:
            tracemalloc.stop()


async def orchestration(bulk: Bulk, items: int) -> float:
    """Return CPU time per item without a request, in microseconds."""

    async def nothing() -> Result:
        return APPROVED

    gc.collect()
    started = time.process_time()
    await bulk(nothing, items)
    return (time.process_time() - started) / items * 1e6
