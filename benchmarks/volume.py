"""What many calls after each other come to: cost and memory as they go on, in bulk, and before the first."""

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import repeat

import psutil
from order import APPROVED, CODE, FIELDS, Answer, Call
from rounds import calling
from service import Service
from strain import Client

from loanasync import ApprovalRequest, Approved, Decision, Meta
from loanasync.bulk import Approvals, Row

__all__ = [
    "WINDOW",
    "Bulk",
    "approve_many",
    "import_time",
    "in_bulk",
    "orchestration",
    "stretches",
    "task_each",
]

WINDOW = 64  # at once
STRETCHES = 10
DECISION = Approved(amount=45_000, net_amount=43_650, meta=Meta(status=201, attempts=1, elapsed=0.1))
Bulk = Callable[[Call, int], Awaitable[None]]


def resident() -> float:
    """Memory of this process, MB."""
    return float(psutil.Process().memory_info().rss) / 1e6


async def stretches(
    clients: dict[str, Client], service: Service, calls: int
) -> dict[str, list[tuple[float, float]]]:
    """For each tenth of so many calls: microseconds of processor time a call, and MB by which memory grew."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    each = max(calls // STRETCHES, WINDOW)
    async with AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(client(service.base_url, WINDOW))
            for name, client in clients.items()
        }
        for number in range(STRETCHES + 1):
            for name, call in opened.items():
                await calling(call, WINDOW, WINDOW)
                gc.collect()
                before, started = resident(), time.process_time()
                await calling(call, each, WINDOW)
                cost = (time.process_time() - started) / each * 1e6
                gc.collect()
                if number:  # the first warms up
                    figures[name].append((cost, resident() - before))
    return figures


async def approve_many(call: Call, items: int) -> None:
    """Ours: a few tasks that share one row of items, a result for each, a reader; flat memory."""

    async def approve(*_: object, **__: object) -> Decision:
        assert await call() == APPROVED
        return DECISION

    row = Row(CODE, ApprovalRequest(**FIELDS))
    async with Approvals(approve, repeat(row, items), concurrency=WINDOW) as results:
        async for result in results:
            assert result.is_decided


async def task_each(call: Call, items: int) -> None:
    """A task for each item, and a semaphore in front of the call: what comes to mind first."""
    places = asyncio.Semaphore(WINDOW)

    async def one() -> None:
        async with places:
            assert await call() == APPROVED

    async with asyncio.TaskGroup() as group:
        for _ in range(items):
            group.create_task(one())


async def in_bulk(client: Client, bulk: Bulk, service: Service, items: int) -> float:
    """Microseconds of processor time for an item of so many."""
    async with client(service.base_url, WINDOW) as call:
        await calling(call, WINDOW, WINDOW)
        gc.collect()
        started = time.process_time()
        await bulk(call, items)
        return (time.process_time() - started) / items * 1e6


async def memory_in_bulk(client: Client, bulk: Bulk, service: Service, items: int) -> float:
    """Kilobytes that Python gave out at most for so many items."""
    async with client(service.base_url, WINDOW) as call:
        await calling(call, WINDOW, WINDOW)
        gc.collect()
        tracemalloc.start()
        try:
            await bulk(call, items)
            return tracemalloc.get_traced_memory()[1] / 1e3
        finally:
            tracemalloc.stop()


async def orchestration(bulk: Bulk, items: int) -> float:
    """Microseconds of processor time for an item whose call takes none."""

    async def nothing() -> Answer:
        return APPROVED

    gc.collect()
    started = time.process_time()
    await bulk(nothing, items)
    return (time.process_time() - started) / items * 1e6


def import_time(module: str) -> float:
    """Milliseconds of processor time until a fresh Python has a module."""
    code = (
        f"import time; started = time.process_time(); import {module}; print(time.process_time() - started)"
    )
    # Without -P it would be the sources where one stands, perhaps never compiled, and not what is installed.
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout) * 1e3
