"""Many concurrent calls: slots, queue time, full pools, and closing."""

import asyncio
import time
from collections.abc import Iterator

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider

from loanasync import (
    Approved,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    LoanClient,
    PoolTimeoutError,
    Refused,
    RetryPolicy,
    Telemetry,
    Timeout,
)
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    TelemetryRecorder,
    approved,
    computed,
    system_error,
)
from support.canned_server import APPROVAL, REFUSAL, approve, serving
from support.direct_path import each_path
from support.scripted_pipeline import Run

PATIENT = Timeout(total=300, attempt=200, connect=100)  # seconds; 10,000 calls take a while to start
IN_A_MOMENT = Timeout(total=60, attempt=30, connect=0.1)


@pytest.mark.scheduled  # test_loop_kinds.py makes 500
async def test_ten_thousand_calls_use_at_most_max_concurrency_connections() -> None:
    async with (
        serving(APPROVAL) as server,
        server.client(max_concurrency=200, timeout=PATIENT) as client,
    ):
        decisions = await asyncio.gather(*(approve(client) for _ in range(10_000)))
        assert {type(decision) for decision in decisions} == {Approved}
        assert server.requests == 10_000
        assert server.most_open <= 200


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files for 2,000 connections and their server side."""
    resource = pytest.importorskip("resource", reason="a limit of open files is POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 5000:
        pytest.skip(f"this machine allows only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 5000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_two_thousand_calls_are_in_flight_with_that_concurrency() -> None:
    async with (
        serving(None) as server,
        server.client(max_concurrency=2000, timeout=PATIENT) as client,
    ):
        calls = [asyncio.create_task(approve(client)) for _ in range(2000)]
        await server.wait_for_requests(2000)
        assert server.most_open == 2000
        server.respond_to_all(REFUSAL)
        assert {type(decision) for decision in await asyncio.gather(*calls)} == {Refused}


async def test_slots_are_acquired_in_order() -> None:
    run = Run(*[approved()] * 50, slots=1)
    order: list[int] = []

    async def call(number: int) -> None:
        await run.approve()
        order.append(number)

    await asyncio.gather(*(call(number) for number in range(50)))
    assert order == list(range(50))


async def test_queue_duration_is_recorded() -> None:
    recorder = TelemetryRecorder()
    async with (
        serving(None) as server,
        server.client(
            max_concurrency=1,
            telemetry=recorder.telemetry,
        ) as client,
    ):
        first = asyncio.create_task(approve(client))
        await server.arrived.wait()
        with pytest.raises(PoolTimeoutError):
            await approve(client, timeout=Timeout(total=0.2))
        timed_out = recorder.metric("loanasync.queue.duration", {"error.type": "PoolTimeoutError"})
        assert timed_out.count == 1
        assert timed_out.sum == pytest.approx(0.2, abs=0.1) or timed_out.sum > 0.2
        approvals = {"loanasync.operation": "approve"}
        assert recorder.metric("loanasync.queue.duration", approvals).count == 1, (
            "the first call did not wait"
        )
        server.respond_to_all(REFUSAL)
        assert isinstance(await first, Refused)


async def test_queue_duration_uses_the_clock_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    limited, unlimited = TelemetryRecorder(), TelemetryRecorder()
    script = ScriptedTransport()

    async def slow(_: SentRequest) -> ScriptedResponse:
        await asyncio.sleep(0)  # until the second call has begun
        script.clock.time += 7
        return approved()

    script.add(computed(slow), system_error(), approved(), approved())
    client = script.client(
        retry=RetryPolicy(base=5.0, cap=5.0),
        max_concurrency=1,
        telemetry=limited.telemetry,
    )
    await asyncio.gather(approve(client, scope="first"), approve(client, scope="second"))
    await approve(client)
    waited = limited.metric("loanasync.queue.duration")
    assert waited.count == 1, "once per call that had to wait, even if it is retried"
    assert waited.sum == pytest.approx(7)
    async with serving(APPROVAL) as server, aiohttp.ClientSession() as session:
        await approve(server.client(session=session, telemetry=unlimited.telemetry))
    assert unlimited.metric("loanasync.queue.duration").count == 0


@each_path
@pytest.mark.parametrize("limit", ["limit", "limit_per_host"])
async def test_full_pool_of_user_session_is_pool_timeout(limit: str, *, is_direct: bool) -> None:
    connector = aiohttp.TCPConnector(**{limit: 2})  # type: ignore[arg-type]
    async with serving(None) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session, direct_connections=is_direct)
        held = [asyncio.create_task(approve(client)) for _ in range(2)]
        await server.wait_for_requests(2)
        errors = await asyncio.gather(
            *(approve(client, timeout=IN_A_MOMENT) for _ in range(5)), return_exceptions=True
        )
        for error in errors:
            assert isinstance(error, PoolTimeoutError), error
            assert (error.outcome, error.cause_type) == ("not_sent", "ConnectionTimeoutError")
        assert server.requests == 2
        server.respond_to_all(REFUSAL)
        assert {type(decision) for decision in await asyncio.gather(*held)} == {Refused}


async def test_slow_connection_is_connect_error_not_pool_timeout() -> None:
    class Never(aiohttp.TCPConnector):
        async def _create_connection(self, *_: object) -> aiohttp.client_proto.ResponseHandler:
            await asyncio.Event().wait()
            raise AssertionError

    async with aiohttp.ClientSession(connector=Never(limit=1)) as session:
        client = LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session=session)
        both = (approve(client, timeout=IN_A_MOMENT) for _ in range(2))
        errors = await asyncio.gather(*both, return_exceptions=True)
    assert {type(error) for error in errors} <= {ConnectError, PoolTimeoutError}
    assert isinstance(errors[0], ConnectError)


async def test_close_waits_for_calls_in_flight_and_queued() -> None:
    async with serving(None) as server:
        client = server.client(max_concurrency=3)
        calls = [asyncio.create_task(approve(client)) for _ in range(10)]
        await server.wait_for_requests(3)
        closing = asyncio.create_task(client.aclose())
        await asyncio.sleep(0)
        with pytest.raises(ClientClosedError):
            await approve(client)
        server.script = lambda _: APPROVAL
        server.respond_to_all(APPROVAL)
        assert {type(decision) for decision in await asyncio.gather(*calls)} == {Approved}
        await closing
        await server.all_closed.wait()


async def test_close_ends_calls_after_the_total_timeout(tracing: TracerProvider) -> None:
    async with serving(None) as server:
        before = asyncio.all_tasks()
        client = server.client(
            timeout=Timeout(total=0.2, attempt=0.2),
            max_concurrency=2,
            telemetry=Telemetry(tracer_provider=tracing),
        )
        patient = Timeout(total=60, attempt=30)
        calls = [asyncio.create_task(approve(client, timeout=patient)) for _ in range(4)]
        await server.wait_for_requests(2)
        started = time.monotonic()
        await client.aclose()
        assert time.monotonic() - started < 15, "far less than the timeout of the calls"
        errors = await asyncio.gather(*calls, return_exceptions=True)
        in_flight = [error for error in errors if isinstance(error, ConnectionLostError)]
        queued = [error for error in errors if isinstance(error, ConnectError)]
        assert [error.outcome for error in in_flight] == ["unknown"] * 2
        assert [error.outcome for error in queued] == ["not_sent"] * 2
        await server.all_closed.wait()
        assert server.requests == 2
        assert asyncio.all_tasks() == before


async def test_close_waits_for_a_call_between_two_attempts() -> None:
    run = Run(system_error(), approved())
    asleep, awake = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await awake.wait()

    run.pipeline.sleep = sleep
    call = asyncio.create_task(run.approve(retry=RetryPolicy(attempts=2)))
    await asleep.wait()
    closing = asyncio.create_task(run.pipeline.aclose(60))
    await asyncio.sleep(0)
    assert not closing.done(), "a call between two attempts is in progress"
    awake.set()
    assert isinstance(await call, Approved)
    await closing
