import asyncio
import sys
from collections import deque
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from attrs import evolve

from loanasync import Approved, LoanError, Refused, RetryPolicy, Timeout, errors
from loanasync._protocol.messages import Request, Response
from loanasync._runtime.pipeline import Slots
from loanasync.testing import (
    ScriptedTransport,
    approved,
    connection_lost,
    refused,
    response,
    scripted_client,
    system_error,
    timed_out,
)
from support.ledger_clients import held_response
from support.memory_clients import cancelled, started
from support.separate import Run
from support.virtual_time import VirtualTime


async def failure(run: Run, **policy: object) -> LoanError:
    with pytest.raises(LoanError) as caught:
        await run.approve(**policy)
    return caught.value


@pytest.mark.parametrize(
    ("received", "judgements"),
    [
        (Response(status=404, headers={}, body=b""), ["wrong"]),
        (Response(status=201, headers={}, body=b"<html>"), ["wrong"]),
        (
            Response(status=201, headers={}, body=b'{"approved":true,"fiscalCode":"TSTXYZ00A00A000B"}'),
            ["wrong"],
        ),
        (Response(status=422, headers={}, body=b'{"approved":false}'), ["wrong"]),  # about which customer?
        (Response(status=422, headers={}, body=b'{"approved":false}', is_reused=True), ["stray"]),
        (Response(status=422, headers={}, body=b"", is_reused=True), ["stray"]),
        (Response(status=201, headers={}, body=b"<html>", is_reused=True), ["wrong"]),
        (Response(status=201, headers={}, body=b'{"re', fault="truncated", is_reused=True), ["wrong"]),
        (
            Response(status=422, headers={}, body=b'{"approved":false,"fiscalCode":"TSTXYZ00A00A000A"}'),
            ["trusted"],
        ),
        (Response(status=403, headers={}, body=b"{}"), ["wrong"]),
        (Response(status=400, headers={}, body=b'{"errors":{"city":["Blank"]}}'), ["wrong"]),
        (
            Response(status=500, headers={}, body=b""),
            ["wrong"] * 4,
        ),  # three attempts; the last one is also read
    ],
)
async def test_connection_of_a_response_is_judged(received: Response, judgements: list[str]) -> None:
    """An error in `judge` does not replace the response."""
    judge = mock.Mock(side_effect=OSError)

    class Transport(ScriptedTransport):
        async def send(self, request: Request, *, connect: float, within: float) -> Response:
            del request, connect, within
            return evolve(received, judge=judge)

    run = Run(transport=Transport())
    result: object = None
    try:
        result = await run.approve()
    except LoanError as error:
        result = error
    assert isinstance(result, LoanError | Refused)
    assert [call.args[0] for call in judge.call_args_list] == judgements


async def test_system_fault_with_a_decision_is_not_retried() -> None:
    run = Run(system_error(), response(500, {"approved": True}), approved())
    error = await failure(run)
    assert (type(error), error.outcome) == (errors.UnexpectedResponseError, "unknown")
    assert len(run.transport.sent) == 2


@pytest.mark.parametrize(("retry_after", "attempts"), [(10, 3), (None, 1)], ids=["deadline", "attempts"])
async def test_retry_that_is_not_made_costs_no_quota(retry_after: int | None, attempts: int) -> None:
    run = Run(system_error(retry_after=retry_after), system_error(), approved(), quota=1)
    timeout, retry = Timeout(total=5, attempt=4, connect=1), RetryPolicy(attempts=attempts, base=1e-9)
    assert isinstance(await failure(run, timeout=timeout, retry=retry), errors.SystemFaultError)
    assert isinstance(await run.approve(), Approved)


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
    assert {type(each) for each in outcomes} == {Refused, errors.ConnectionLostError}
    if enough:
        assert isinstance(await run.approve(), Approved)
    else:
        assert isinstance(await failure(run), errors.SystemFaultError)


async def test_attempt_of_another_call_is_limited_by_the_deadline() -> None:
    for total, kind in ((10, errors.DeadlineExceededError), (60, errors.ReadTimeoutError)):
        client = scripted_client(timed_out(), timeout=Timeout(total=total, attempt=30))
        with pytest.raises(kind) as caught:
            await client.create_request({})
        assert caught.value.outcome == "unknown"


async def test_retry_after_the_deadline_is_not_sent() -> None:
    transport = ScriptedTransport(system_error(retry_after=4), approved())

    async def oversleep(seconds: float) -> None:
        transport.clock.time += seconds + 9

    transport.clock.sleep = oversleep  # type: ignore[method-assign]
    run = Run(transport=transport)
    error = await failure(run, timeout=Timeout(total=10, attempt=9))
    assert isinstance(error, errors.DeadlineExceededError)
    assert (error.outcome, error.attempts, len(run.transport.sent)) == ("unknown", 1, 1)


async def test_call_without_a_slot_in_time_is_not_sent() -> None:
    step, arrived, go = held_response(approved())
    run = Run(step, approved(), max_concurrency=1)
    first = await started(run.approve(), arrived)
    error = await failure(run, timeout=Timeout(total=0.01, attempt=5, connect=1))
    assert isinstance(error, errors.PoolTimeoutError)
    assert (error.outcome, error.repeatable, error.attempts) == ("not_sent", True, 0)
    go.set()
    assert isinstance(await first, Approved)
    assert isinstance(await run.approve(), Approved), "the slot is free again"


async def test_calls_get_their_slots_in_the_order_in_which_they_wait() -> None:
    ended: list[int] = []
    held = [held_response(approved()) for _ in range(3)]
    run = Run(*(step for step, _, _ in held), max_concurrency=1)

    async def approve(number: int) -> None:
        await run.approve()
        ended.append(number)

    calls = [asyncio.create_task(approve(number)) for number in range(3)]
    for _, arrived, go in held:
        await arrived.wait()
        go.set()
    await asyncio.gather(*calls)
    assert ended == [0, 1, 2]


async def test_released_slot_passes_over_a_call_that_was_just_cancelled() -> None:
    slots = Slots(1)
    slots.take("holder")
    leaving, waiting = (asyncio.create_task(slots.wait(name)) for name in ("leaving", "waiting"))
    await asyncio.sleep(0)
    leaving.cancel()
    slots.release("holder")
    await asyncio.wait_for(waiting, 1)


async def test_interrupt_in_the_release_of_a_slot_neither_loses_nor_adds_one() -> None:
    left, tracer = 0, sys.gettrace()  # lines until the interrupt; that of the coverage

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        left -= event == "line" and frame.f_code is Slots.release.__code__
        if left == 0:
            sys.settrace(tracer)
            raise KeyboardInterrupt
        return interrupt

    has_ended, line = False, 0
    while not has_ended:
        line += 1
        left, slots = line, Slots(1)
        slots.take("holder")
        first, second = (asyncio.create_task(slots.wait(name)) for name in ("first", "second"))
        await asyncio.sleep(0)
        try:
            sys.settrace(interrupt)
            slots.release("holder")
            has_ended = True
        except KeyboardInterrupt:
            slots.release("holder")
        finally:
            sys.settrace(tracer)
        await asyncio.wait_for(first, 1)
        assert (slots.has("holder"), slots.has("second")) == (False, False)
        slots.release("first")
        await asyncio.wait_for(second, 1)
    assert line > 5


@pytest.mark.parametrize("end", ["drain time", "cancellation"])
def test_aclose_that_does_not_wait_closes_the_transport(end: str) -> None:
    async def close_during_a_call() -> None:
        step, arrived, _ = held_response(approved())
        within = 0.01 if end == "drain time" else 60
        run = Run(step, timeout=Timeout(total=within, attempt=within, connect=within))
        call = await started(run.approve(timeout=Timeout()), arrived)
        closing = asyncio.create_task(run.client.aclose())
        await asyncio.sleep(0)
        if end == "cancellation":
            await cancelled(closing)
        await asyncio.wait((closing,))
        assert run.transport.closed == 1
        if end == "cancellation":
            await cancelled(call)
        else:
            assert isinstance(call.exception(), errors.DeadlineExceededError)

    VirtualTime().run(close_during_a_call())


def test_aclose_waits_for_the_response_of_an_approval_with_a_longer_limit() -> None:
    async def close_during_a_call() -> None:
        step, arrived, go = held_response(approved())
        run = Run(step, timeout=Timeout(total=1, attempt=1, connect=1))
        call = await started(run.approve(timeout=Timeout()), arrived)
        closing = asyncio.create_task(run.client.aclose())
        await asyncio.sleep(15)
        assert not closing.done()
        go.set()
        await closing
        assert isinstance(await call, Approved)

    VirtualTime().run(close_during_a_call())


@pytest.mark.parametrize("kind", [str, bytearray, memoryview])
@pytest.mark.parametrize("headers", [{"Retry-After": 5}, [("Date", "today")], None])
async def test_response_of_other_types_of_a_users_transport_is_read(kind: Any, headers: Any) -> None:
    text = '{"approved": true, "redirectUrl": "https://loans.example.com/Niccol\u00f2"}'
    body: Any = text if kind is str else kind(text.encode())
    decision = await Run(Response(status=201, headers=headers, body=body)).approve()
    assert isinstance(decision, Approved)
    assert decision.redirect_url == "https://loans.example.com/Niccol\u00f2"


async def test_slot_released_to_a_call_that_is_cancelled_then_is_of_this_call() -> None:
    slots = Slots(1)
    slots.take("holder")
    call = asyncio.create_task(slots.wait("call"))
    await asyncio.sleep(0)
    slots.release("holder")
    call.cancel()
    await asyncio.wait({call})
    assert (call.cancelled(), slots.has("call")) == (True, True)
    slots.release("call")
    assert slots.free == 1


class InterruptedQueue(deque[Any]):
    """A queue whose methods are interrupted, once each."""

    def append(self, waiting: Any) -> None:
        super().append(waiting)
        if len(self) == 1:
            raise KeyboardInterrupt

    def popleft(self) -> Any:
        waiting = super().popleft()
        if len(self) == 2:
            raise KeyboardInterrupt
        return waiting


async def test_interrupted_call_does_not_get_a_slot() -> None:
    slots = Slots(1)
    slots.take("holder")
    slots._waiters = InterruptedQueue()
    with pytest.raises(KeyboardInterrupt):
        await slots.wait("call")
    slots.release("holder")
    assert (slots.has("call"), slots.free) == (False, 1)


async def test_slot_whose_release_was_interrupted_is_given_to_a_waiting_call() -> None:
    slots = Slots(1)
    slots.take("holder")
    calls = [asyncio.create_task(slots.wait(name)) for name in ("cancelled", "first", "second")]
    await asyncio.sleep(0)
    slots._waiters = InterruptedQueue(slots._waiters)
    calls[0].cancel()
    with pytest.raises(KeyboardInterrupt):
        slots.release("holder")
    slots.release("holder")
    await asyncio.wait_for(calls[1], 1)
    assert (slots.has("first"), slots.has("second")) == (True, False)
    slots.release("first")
    await asyncio.wait_for(calls[2], 1)
    slots.release("second")
    assert slots.free == 1
