import asyncio
import contextlib
import traceback
from unittest import mock

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    Refused,
    RetryPolicy,
    SystemFaultError,
    Timeout,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync._protocol.messages import Request, Response
from loanasync._runtime import run as call_in_progress
from loanasync._runtime.retry import Quota
from loanasync.testing import (
    ScriptedTransport,
    approved,
    connection_lost,
    domain_error,
    not_connected,
    refused,
    response,
    scripted_client,
    system_error,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request
from support.raw_server import PATIENCE
from support.scripted_pipeline import Run, Step, approval


async def failure(run: Run, **policy: object) -> LoanError:
    with pytest.raises(LoanError) as caught:
        await run.approve(**policy)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("received", "calls"),
    [
        (Response(status=404, headers={}, body=b""), 1),
        (Response(status=201, headers={}, body=b"<html>"), 1),
        (Response(status=201, headers={}, body=b'{"approved":true,"fiscalCode":"TSTXYZ00A00A000B"}'), 1),
        (Response(status=422, headers={}, body=b'{"approved":false}'), 1),  # about which customer?
        (Response(status=422, headers={}, body=b'{"approved":false,"fiscalCode":"TSTXYZ00A00A000A"}'), 0),
        (Response(status=403, headers={}, body=b"{}"), 1),
        (Response(status=400, headers={}, body=b'{"errors":{"city":["Blank"]}}'), 1),
        (Response(status=500, headers={}, body=b""), 4),  # three attempts; the last one is also read
    ],
)
async def test_connection_of_an_error_is_discarded(received: Response, calls: int) -> None:
    """An error in `discard` does not replace the response."""
    discard = mock.Mock(side_effect=OSError)

    class Transport(ScriptedTransport):
        async def send(self, request: Request, *, connect: float, within: float) -> Response:
            del request, connect, within
            return evolve(received, discard=discard)

    run = Run()
    run.transport = Transport()
    result: object = None
    try:
        result = await run.approve()
    except LoanError as error:
        result = error
    assert isinstance(result, LoanError | Refused)
    assert discard.call_count == calls


async def test_system_fault_with_a_decision_is_not_retried() -> None:
    run = Run(system_error(), response(500, {"approved": True}), approved())
    error = await failure(run)
    assert (type(error), error.outcome) == (UnexpectedResponseError, "unknown")
    assert len(run.transport.sent) == 2


async def test_already_evaluated_after_a_system_fault_has_after_retry() -> None:
    evaluated = domain_error("User already evaluated for approval")
    after = await failure(Run(system_error(), evaluated))
    at_once = await failure(Run(evaluated))
    assert isinstance(after, AlreadyEvaluatedError)
    assert isinstance(at_once, AlreadyEvaluatedError)
    assert (after.after_retry, at_once.after_retry) == (True, False)


async def test_deadline_stops_retries_before_a_wait_beyond_it() -> None:
    run = Run(system_error(retry_after=10), approved())
    error = await failure(run, timeout=Timeout(total=5, attempt=4, connect=1), retry=RetryPolicy(base=1e-9))
    assert isinstance(error, SystemFaultError)
    assert (error.stopped_by, error.attempts, run.clock.slept) == ("deadline", 1, [])


@pytest.mark.parametrize(("retry_after", "attempts"), [(10, 3), (None, 1)], ids=["deadline", "attempts"])
async def test_retry_that_is_not_made_costs_no_quota(retry_after: int | None, attempts: int) -> None:
    run = Run(system_error(retry_after=retry_after), system_error(), approved(), quota=1)
    timeout, retry = Timeout(total=5, attempt=4, connect=1), RetryPolicy(attempts=attempts, base=1e-9)
    assert isinstance(await failure(run, timeout=timeout, retry=retry), SystemFaultError)
    assert isinstance(await run.approve(), Approved)


async def test_quota_limits_the_retries() -> None:
    run = Run(system_error(), system_error(), system_error(), quota=1)
    error = await failure(run)
    assert isinstance(error, SystemFaultError)
    assert (error.stopped_by, error.attempts) == ("quota", 2)


async def test_failing_service_gets_at_most_calls_plus_quota_requests() -> None:
    run = Run(*[system_error()] * 400, quota=20)
    outcomes = await asyncio.gather(*(run.approve() for _ in range(100)), return_exceptions=True)
    assert all(isinstance(outcome, SystemFaultError) for outcome in outcomes)
    assert len(run.transport.sent) == 100 + 20


def test_ten_refills_return_one_retry_up_to_the_capacity() -> None:
    quota = Quota(1)
    assert [quota.take(), quota.take()] == [True, False]
    for _ in range(9):
        quota.refill()
    assert not quota.take()
    for _ in range(100):
        quota.refill()
    assert [quota.take(), quota.take()] == [True, False]


@pytest.mark.parametrize(("responses", "enough"), [(9, False), (10, True)])
async def test_ten_calls_with_a_response_return_one_retry(
    responses: int,
    enough: bool,  # noqa: FBT001  (parametrised)
) -> None:
    run = Run(
        system_error(),
        approved(),
        *[refused()] * responses,
        *[connection_lost()] * 5,
        system_error(),
        approved(),
        quota=1,
    )
    await run.approve()
    outcomes = await asyncio.gather(*(run.approve() for _ in range(responses + 5)), return_exceptions=True)
    assert {type(each) for each in outcomes} == {Refused, ConnectionLostError}
    if enough:
        assert isinstance(await run.approve(), Approved)
    else:
        assert isinstance(await failure(run), SystemFaultError)


@given(
    attempts=st.integers(1, 6),
    base=st.floats(0.01, 3),
    total=st.floats(1, 30),
    quota=st.integers(0, 5),
    faults=st.integers(0, 8),
)
async def test_retries_stay_within_policy_and_deadline(
    attempts: int, base: float, total: float, quota: int, faults: int
) -> None:
    run = Run(*[system_error()] * faults, approved(), quota=quota)
    started = run.clock.now()
    with contextlib.suppress(SystemFaultError):
        await run.approve(
            Timeout(total=total, attempt=20, connect=0.5), RetryPolicy(attempts=attempts, base=base)
        )
    assert 1 <= len(run.transport.sent) <= min(attempts, quota + 1, faults + 1)
    assert run.clock.now() < started + total
    assert all(wait <= base * 2**number for number, wait in enumerate(run.clock.slept))


async def test_attempt_of_an_approval_may_end_after_the_deadline() -> None:
    run = Run(system_error(retry_after=4), approved())
    await run.approve(Timeout(total=9, attempt=8))
    assert [sent.within for sent in run.transport.sent] == [8, 8]


async def test_attempt_of_another_call_is_limited_by_the_deadline() -> None:
    for total, kind in ((10, DeadlineExceededError), (60, ReadTimeoutError)):
        client = scripted_client(timed_out(), timeout=Timeout(total=total, attempt=30))
        with pytest.raises(kind) as caught:
            await client.create_request({})
        assert caught.value.outcome == "unknown"


async def test_retry_after_the_deadline_is_not_sent() -> None:
    run = Run(system_error(retry_after=4), approved())

    async def oversleep(seconds: float) -> None:
        run.clock.time += seconds + 9

    run.pipeline.sleep = oversleep
    error = await failure(run, timeout=Timeout(total=10, attempt=9))
    assert isinstance(error, DeadlineExceededError)
    assert (error.outcome, error.attempts, len(run.transport.sent)) == ("unknown", 1, 1)


async def test_call_without_a_slot_in_time_is_not_sent() -> None:
    held = asyncio.Event()
    run = Run(held, approved(), slots=1)
    first = asyncio.create_task(run.approve())
    await run.arrived.wait()
    error = await failure(run, timeout=Timeout(total=0.01, attempt=5, connect=1))
    assert isinstance(error, PoolTimeoutError)
    assert (error.outcome, error.repeatable, error.attempts) == ("not_sent", True, 0)
    held.set()
    assert isinstance(await first, Approved)
    assert isinstance(await run.approve(), Approved), "the slot is free again"


async def test_acquire_slot_after_the_deadline_does_not_wait() -> None:
    """The ledger may have used up the time of the call before the slot is acquired."""
    held = asyncio.Event()
    run = Run(held, slots=1)
    first = asyncio.create_task(run.approve())
    await run.arrived.wait()
    with call_in_progress.Run(run.pipeline, approval(), Timeout(), RetryPolicy()) as call:
        assert call.must_wait
        await run.clock.sleep(Timeout().total)
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await call.acquire_slot(), PoolTimeoutError)
    held.set()
    assert isinstance(await first, Approved)


async def test_cancelled_call_releases_its_slot() -> None:
    run = Run(asyncio.Event(), approved(), slots=1)
    task = asyncio.create_task(run.approve())
    await run.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(await run.approve(), Approved)
    assert len(run.transport.sent) == 2


async def test_call_cancelled_in_its_second_attempt_is_cancelled() -> None:
    run = Run(system_error(), asyncio.Event())
    task = asyncio.create_task(run.approve())
    await run.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(run.transport.sent) == 2


async def test_aclose_waits_for_calls_in_progress_and_refuses_new_ones() -> None:
    held = asyncio.Event()
    run = Run(held)
    call = asyncio.create_task(run.approve())
    await run.arrived.wait()
    closing = asyncio.create_task(run.pipeline.aclose(60))
    await asyncio.sleep(0)
    assert isinstance(await failure(run), ClientClosedError)
    assert run.transport.closed == 0
    held.set()
    assert isinstance(await call, Approved)
    await closing
    assert run.transport.closed == 1
    await run.pipeline.aclose(60)
    assert run.transport.closed == 1


async def test_aclose_ends_calls_after_the_drain_time() -> None:
    run = Run(asyncio.Event())
    call = asyncio.create_task(run.approve())
    await run.arrived.wait()
    await run.pipeline.aclose(0.01)
    assert run.transport.closed == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_cancelled_aclose_closes_the_transport() -> None:
    run = Run(asyncio.Event())
    call = asyncio.create_task(run.approve())
    await run.arrived.wait()
    closing = asyncio.create_task(run.pipeline.aclose(60))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert run.transport.closed == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_close_from_outside_refuses_new_calls_and_passes_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(approved())
    limits: list[float] = []
    monkeypatch.setattr(run.pipeline._per_loop, "close_from_outside", limits.append)
    run.pipeline.close_from_outside(7)
    assert limits == [7]
    assert isinstance(await failure(run), ClientClosedError)


async def test_client_with_a_clock_uses_no_other_clock() -> None:
    script = ScriptedTransport(system_error(retry_after=2), approved())
    began = script.clock.now()
    async with script.client() as client:
        decision = await client.approve(FISCAL_CODE, approval_request())
    assert decision.meta.elapsed == script.clock.now() - began == 2
    assert len(script.sent) == 2


@pytest.mark.parametrize(
    "responses",
    [(response(418, {}),), (system_error(),) * 3, (not_connected(),), (connection_lost(),)],
    ids=["status", "fault", "no connection", "lost"],
)
async def test_no_error_carries_a_cause_or_a_frame_with_personal_data(
    responses: tuple[Step, ...],
) -> None:
    run = Run(*responses)
    error = await failure(run)
    assert isinstance(error, UnexpectedStatusError | SystemFaultError | ConnectError | ConnectionLostError)
    assert error.__cause__ is None
    assert error.__context__ is None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    client_frames = [frame for frame in frames if frame.f_globals["__name__"].startswith("loanasync")]
    assert client_frames
    values = " ".join(repr(value) for frame in client_frames for value in frame.f_locals.values())
    assert FISCAL_CODE not in values
    assert "token" not in values.replace("order_token", "")
