"""Calls that are cancelled at each of their awaits leave no task, slot, span or open file behind."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from loanasync import Approved, RetryPolicy, Timeout
from loanasync._telemetry.spans import Telemetry
from loanasync.testing import approved, system_error
from support.cancellation import Moment, Stepwise, cancelled_at
from support.canned_server import APPROVAL, FAULT, approve, serving
from support.scripted_pipeline import Run

MOMENTS = pytest.mark.parametrize("moment", ["waiting", "waking"])
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


def points(awaits: int) -> Iterator[int]:
    assert awaits > 3
    yield from range(1, awaits + 1)


async def awaits_of(run: Run) -> int:
    steps = Stepwise(run.approve())
    assert isinstance(await asyncio.get_running_loop().create_task(steps), Approved)
    return steps.awaits


@MOMENTS
async def test_scripted_call_cancelled_at_any_await_leaves_nothing(
    moment: Moment, tracing: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    faults = (system_error(), system_error())
    for at in points(await awaits_of(Run(*faults, approved(), slots=1))):
        exporter.clear()
        run = Run(*faults, approved(), approved(), slots=1)
        run.pipeline._telemetry = Telemetry(tracing, None, "traceparent")
        before = asyncio.all_tasks()
        task, was_reached = await cancelled_at(run.approve(), at, moment)
        assert was_reached
        assert task.cancelled(), at
        sent = len(run.transport.sent)
        *attempts, call = exporter.get_finished_spans()
        assert call.name == "loanasync.approve"
        assert len(attempts) == sent
        assert_cancelled((*attempts, call))
        assert asyncio.all_tasks() == before
        lane = run.pipeline._per_loop.current()
        assert (lane.calls, lane.slots.free) == (0, 1)
        await asyncio.sleep(0)
        assert len(run.transport.sent) == sent, "no request is sent for a cancelled caller"


@MOMENTS
async def test_queued_call_cancelled_at_any_await_passes_its_turn(moment: Moment) -> None:
    for at in (1, 2):  # in the queue, and together with the first response
        held = asyncio.Event()
        run = Run(held, *[approved()] * 3, slots=1)
        first = asyncio.create_task(run.approve())
        await run.arrived.wait()
        second = asyncio.create_task(cancelled_at(run.approve(), at, moment))
        third = asyncio.create_task(run.approve())
        await asyncio.sleep(0)
        held.set()
        task, _ = await second
        assert task.cancelled()
        assert isinstance(await first, Approved)
        assert isinstance(await third, Approved), "the slot of the cancelled call was lost"


@MOMENTS
@pytest.mark.parametrize("faults", [0, 1])
async def test_socket_call_cancelled_at_any_await_leaves_nothing(
    moment: Moment, faults: int, tracing: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    async with serving(*[FAULT] * faults, APPROVAL) as server:
        server.parts = 3
        server.base_url = server.base_url.replace(
            "127.0.0.1", "localhost"
        )  # so that name resolution is awaited, too
        async with server.client(retry=AT_ONCE) as client:
            steps = Stepwise(approve(client))
            assert isinstance(await asyncio.get_running_loop().create_task(steps), Approved)
        await server.all_closed.wait()
        for at in points(steps.awaits):
            exporter.clear()
            server.requests = 0
            tasks, files = asyncio.all_tasks(), open_files()
            async with server.client(retry=AT_ONCE, max_concurrency=1, tracer_provider=tracing) as client:
                task, was_reached = await cancelled_at(approve(client), at, moment)
                if was_reached:  # data that arrives early saves an await
                    assert task.cancelled(), at
                    assert_cancelled(exporter.get_finished_spans())
                    assert exporter.get_finished_spans()[-1].name == "loanasync.approve"
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


async def test_cancelled_call_closes_its_connection() -> None:
    async with serving(None) as server, server.client() as client:
        call = asyncio.create_task(approve(client))
        await server.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.all_closed.wait()
        assert server.requests == 1


async def test_caller_timeout_ends_a_call_like_a_cancellation() -> None:
    async with serving(None) as server, server.client() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await approve(client, timeout=Timeout(total=60, attempt=30))
        await server.all_closed.wait()


async def test_task_group_failure_cancels_all_its_calls() -> None:
    async def fails() -> None:
        raise LookupError

    async with serving(None) as server, server.client(max_concurrency=3) as client:
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  (a task group needs several statements)
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(approve(client))
                await server.arrived.wait()
                group.create_task(fails())
        assert [type(error) for error in caught.value.exceptions] == [LookupError]
        await server.all_closed.wait()
        assert server.requests <= 3
