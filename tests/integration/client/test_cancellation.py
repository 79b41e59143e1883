"""Cancelled calls that are no approvals leave no task, slot, span, connection or open file behind."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from loanasync import LoanClient, RetryPolicy, Telemetry
from support.builders import FISCAL_CODE
from support.cancellation import Moment, Stepwise, cancelled_at
from support.canned_server import FAULT, response_bytes, serving

AT_ONCE = RetryPolicy(base=0.001, cap=0.001)


def open_files() -> set[str]:
    """Return the open files and sockets of this process."""
    found: set[str] = set()
    listing = Path("/proc/self/fd")
    for each in listing.iterdir() if listing.exists() else ():
        try:
            found.add(f"{each.name} {os.readlink(each)}")  # noqa: PTH115  (the target of a socket is not a path)
        except FileNotFoundError:  # the descriptor of the listing
            continue
    return found


def assert_cancelled(spans: tuple[ReadableSpan, ...]) -> None:
    """Check that spans without a response have ended without a status."""
    for span in spans:
        attributes = span.attributes or {}
        assert span.end_time is not None
        if "http.response.status_code" not in attributes:
            assert (span.status.status_code, attributes.get("error.type")) == (StatusCode.UNSET, None)


async def create(client: LoanClient) -> object:
    return await client.create_request({"fiscalCode": FISCAL_CODE})


def points(awaits: int) -> Iterator[int]:
    assert awaits > 3
    yield from range(1, awaits + 1)


@pytest.mark.parametrize("moment", ["waiting", "waking"])
@pytest.mark.parametrize("faults", [0, 1])
async def test_socket_call_cancelled_at_any_await_leaves_nothing(
    moment: Moment, faults: int, tracing: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    async with serving(*[FAULT] * faults, response_bytes(200)) as server:
        server.parts = 3
        server.base_url = server.base_url.replace(
            "127.0.0.1", "localhost"
        )  # so that name resolution is awaited, too
        async with server.client(retry=AT_ONCE) as client:
            steps = Stepwise(create(client))
            await asyncio.get_running_loop().create_task(steps)
        await server.all_closed.wait()
        for at in points(steps.awaits):
            exporter.clear()
            server.requests = 0
            tasks, files = asyncio.all_tasks(), open_files()
            async with server.client(
                retry=AT_ONCE, max_concurrency=1, telemetry=Telemetry(tracer_provider=tracing)
            ) as client:
                task, was_reached = await cancelled_at(create(client), at, moment)
                if was_reached:  # data that arrives early saves an await
                    assert task.cancelled(), at
                    assert_cancelled(exporter.get_finished_spans())
                    assert exporter.get_finished_spans()[-1].name == "loanasync.create_request"
                lane = client._pipeline._per_loop.current()
                assert (lane.calls, lane.slots.free) == (0, 1)
            if server.open:
                await server.all_closed.wait()
            assert server.requests <= 1 + faults, "a request was sent for a cancelled caller"
            assert asyncio.all_tasks() == tasks
            # The server may still have to accept and close a connection that was cancelled while connecting.
            async with asyncio.timeout(10):
                while open_files() != files:  # noqa: ASYNC110  (there is no event for open files)
                    await asyncio.sleep(0)


async def test_task_group_failure_cancels_all_its_calls() -> None:
    async def fails() -> None:
        raise LookupError

    async with serving(None) as server, server.client(max_concurrency=3) as client:
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  (a task group needs several statements)
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(create(client))
                await server.arrived.wait()
                group.create_task(fails())
        assert [type(error) for error in caught.value.exceptions] == [LookupError]
        await server.all_closed.wait()
        assert server.requests <= 3
