"""Calls leak no tasks, connections, files or memory, and create no reference cycles.

With `LOANASYNC_SOAK=1`, they are a hundred times as many calls (`nox -s soak`).
"""

import asyncio
import contextlib
import gc
import logging
import os
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loanasync import LoanClient, LoanError, RetryPolicy, Timeout
from loanasync.testing import (
    ScriptedTransport,
    approved,
    computed,
    connection_lost,
    domain_error,
    forget_approvals,
    not_connected,
    refused,
    response,
    system_error,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, FAULT, REFUSAL, approve, response_bytes, serving
from support.virtual_time import turns

TIMES = 100 if os.environ.get("LOANASYNC_SOAK") else 1
FEWER = min(TIMES, 10)  # over sockets
AT_ONCE = RetryPolicy(base=0.001, cap=0.001, quota=10**9)

GOOD_AND_BAD = (
    *(approved(), refused(), domain_error("User already evaluated for approval"), response(418, {})),
    *(system_error(), approved(), system_error(), system_error(), system_error()),
    *(response(201, b"{"), response(204), connection_lost(), not_connected(), timed_out()),
)


@pytest.fixture(autouse=True)
def _no_records_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loanasync")  # pytest would keep each record


async def request_approval(client: LoanClient, fiscal_code: str = FISCAL_CODE, **changes: object) -> None:
    with contextlib.suppress(LoanError):
        await client.approve(fiscal_code, approval_request(**changes))


async def play(script: ScriptedTransport, client: LoanClient) -> None:
    script.add(*GOOD_AND_BAD)
    while script.left:
        await request_approval(client)
    script.sent.clear()
    script.clock.slept.clear()


async def growth(work: Callable[[], Awaitable[object]], times: int, *, first: int) -> int:
    """Return the bytes by which the memory grows when work is done many times, after the first times."""
    for _ in range(first):  # caches are filled once
        await work()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(max(1, first // 10)):
            await work()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(times):
            await work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


async def test_calls_leak_no_memory_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MAX_AGE", 0)  # each approval is sent, and forgotten
    script = ScriptedTransport()
    client = script.client(retry=AT_ONCE, max_concurrency=5)
    tasks = asyncio.all_tasks()
    # Fourteen calls each time: 500, or fifty thousand; less than 100 bytes per call, or 1.
    assert await growth(lambda: play(script, client), 36 * TIMES, first=10) < 50_000
    assert asyncio.all_tasks() == tasks


RESPONSES = (
    *(APPROVAL, REFUSAL, FAULT, APPROVAL, response_bytes(201, b"{"), FAULT, FAULT),
    response_bytes(302, b"", "Location: /"),
)


async def test_calls_over_a_socket_leak_no_file_and_no_memory() -> None:
    def files() -> int:
        listing = Path("/proc/self/fd")
        return len(list(listing.iterdir())) if listing.exists() else 0

    async def crowd() -> None:
        async with server.client(retry=AT_ONCE, max_concurrency=20) as client:
            calls = [asyncio.create_task(request_approval(client)) for _ in range(100)]
            for call in calls[::10]:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        forget_approvals()  # the process remembers them otherwise
        if server.open:
            await server.all_closed.wait()

    async with serving() as server:
        server.script = lambda number: RESPONSES[number % len(RESPONSES)]
        await crowd()
        tasks, open_files = asyncio.all_tasks(), files()
        assert await growth(crowd, 4 * FEWER, first=2) < 100_000
        assert (asyncio.all_tasks(), files(), server.open) == (tasks, open_files, set())


async def test_closed_clients_leak_no_memory() -> None:
    async with serving(APPROVAL) as server:

        async def use_client() -> None:
            async with server.client() as client:
                await approve(client)
            forget_approvals()

        assert await growth(use_client, 50 * FEWER, first=20) < 30_000


@pytest.fixture
def garbage() -> Iterator[Callable[[], list[object]]]:
    """Return objects of the package that only the garbage collector could free."""
    gc.collect()
    gc.freeze()  # later collections visit only the objects of the test
    gc.set_debug(gc.DEBUG_SAVEALL)

    def collect() -> list[object]:
        gc.collect()
        return [each for each in gc.garbage if (type(each).__module__ or "").startswith("loanasync")]

    yield collect
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()


async def hang(_: object) -> Any:
    await asyncio.Event().wait()


FAILING = {
    "faults": (system_error(),) * 3,
    "a fault, then an approval": (system_error(), approved()),
    "lost": (connection_lost(),),
    "a fault, then lost": (system_error(), connection_lost()),
    "unexpected status": (response(418, {}),),
    "unexpected response": (response(201, b"{"),),
    "domain": (domain_error("User not found"),),
    "cancelled": (computed(hang),),
    "cancelled in the second attempt": (system_error(), computed(hang)),
}


@pytest.mark.parametrize("name", FAILING)
async def test_failure_creates_no_reference_cycle(name: str, garbage: Callable[[], list[object]]) -> None:
    client = ScriptedTransport(*FAILING[name]).client()

    call = asyncio.create_task(request_approval(client))
    await turns(20)
    call.cancel()  # some would never end
    await asyncio.wait({call})
    del call
    assert garbage() == []


async def test_invalid_request_creates_no_reference_cycle(garbage: Callable[[], list[object]]) -> None:
    client = ScriptedTransport().client()
    await request_approval(client, "short", amount=1)
    assert garbage() == []


@pytest.mark.parametrize(
    "response",
    [FAULT, APPROVAL, response_bytes(418), b"no HTTP\r\n\r\n", None],
    ids=lambda each: str(each)[:20],
)
async def test_call_over_a_socket_creates_no_reference_cycle(
    response: bytes | None, garbage: Callable[[], list[object]]
) -> None:
    async with serving(response) as server:
        client = server.client(retry=AT_ONCE, timeout=Timeout(total=0.2, attempt=0.2))
        await request_approval(client)
        await client.aclose()
        del client
        assert garbage() == []
