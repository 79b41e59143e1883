"""Overlapping calls for one approval share one request."""

import asyncio
import gc
import logging
from pathlib import Path
from unittest import mock

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from loanasync import Approved, LoanClient, NoResponse, Request, RetryPolicy, Telemetry, Timeout, errors
from loanasync._telemetry import log as package_log
from loanasync.ledger import Ledger, State
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approved,
    computed,
    system_error,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop, held_response
from support.memory_clients import cancelled, request, started
from support.raw_server import until
from support.virtual_time import VirtualTime, turns


@pytest.mark.parametrize("attempts", [1, 3])
async def test_late_500_to_the_last_attempt_is_not_sent_again(attempts: int, ledger: Ledger | None) -> None:
    """The retry policy limits the attempts of all callers together: 1 turns retries off."""
    step, arrived, go = held_response(system_error())
    script = ScriptedTransport(*[system_error()] * (attempts - 1), step, approved())
    client = script.client(retry=RetryPolicy(attempts=attempts), ledger=ledger)
    first = await started(request(client), arrived)
    waiting = [asyncio.create_task(request(client)) for _ in range(2)]
    await asyncio.sleep(0)
    await cancelled(first)
    go.set()
    continued, joined = await asyncio.gather(*waiting)
    assert isinstance(continued, errors.SystemFaultError)
    assert (continued.stopped_by, continued.meta.attempts) == ("attempts", attempts)
    for error in (joined, await request(client)):
        assert isinstance(error, errors.LoanError)
        assert (error.outcome, error.repeatable) == ("unknown", False)
    assert len(script.sent) == attempts


async def test_aclose_waits_for_the_response_and_its_commit() -> None:
    committing, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        committing.set()
        await go_on.wait()

    shop = Shop(approved(), ledger=FailingLedger(settle=slow))
    call = await started(shop.approve(), committing)
    closing = asyncio.create_task(shop.client.aclose())
    await turns()
    assert not closing.done()
    assert not call.done()  # a decision is returned only after it was written
    go_on.set()
    await closing
    assert isinstance(await call, Approved)


async def test_aclose_writes_a_decision_whose_commit_failed_after_the_drain_time(tmp_path: Path) -> None:
    committing, go_on = asyncio.Event(), asyncio.Event()

    async def fail_late() -> None:
        committing.set()
        await go_on.wait()
        ledger.faults.clear()
        raise OSError

    ledger, drain = FailingLedger(settle=fail_late), Timeout(total=0.01, attempt=0.01)
    shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path, options={"timeout": drain})
    call = await started(shop.result(timeout=Timeout()), committing)
    closing = asyncio.create_task(shop.client.aclose())
    await until(lambda: bool(shop.script.closed))
    go_on.set()
    await closing
    assert isinstance(await call, errors.DecisionNotRecordedError)
    assert (await shop.entry()).state is State.APPROVED


def unknown_outcomes() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, errors.OutcomeUnknownError)}


async def test_shared_request_that_ended_leaves_no_reference_cycle() -> None:
    shop = Shop(approved(), timed_out())
    await shop.approve()
    await shop.result(code="TSTXYZ00A00A000B")
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    try:
        before = unknown_outcomes()  # of other tests
        await shop.result()
        await shop.result(code="TSTXYZ00A00A000B")
        await asyncio.sleep(0)
        assert unknown_outcomes() <= before
    finally:
        gc.enable()


def test_row_that_has_joined_an_approval_waits_for_a_late_response() -> None:
    """The response is late if the event loop was blocked, for example."""

    async def run() -> tuple[object, object]:
        step, arrived, go = held_response(approved())
        client = ScriptedTransport(step).client(timeout=Timeout(total=1, attempt=1))
        first = await started(request(client), arrived)
        asyncio.get_running_loop().call_later(60, go.set)
        async with client.approve_many([(FISCAL_CODE, approval_request())]) as results:
            [row] = [result async for result in results]
        return await first, row.decision

    error, decision = VirtualTime().run(run())
    assert isinstance(error, errors.DeadlineExceededError)
    assert isinstance(decision, Approved)


def test_approval_without_a_connection_in_time_is_tried_once() -> None:
    class Unreachable(ScriptedTransport):
        async def send(self, request: Request, *, connect: float, within: float) -> NoResponse:
            del connect, within
            self.sent.append(mock.Mock())
            request.is_sent = False
            await asyncio.sleep(60)
            raise AssertionError

    script = Unreachable()
    error = VirtualTime().run(request(script.client(), timeout=Timeout(total=1, attempt=1)))
    assert isinstance(error, errors.DeadlineExceededError)
    assert (error.outcome, error.cause_type, len(script.sent)) == ("not_sent", "TimeoutError", 1)


async def test_caller_who_joins_a_withdrawn_approval_has_not_run_out_of_time() -> None:
    """After a 500 all callers have left, and the claim is being settled."""
    settling, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        settling.set()
        await go_on.wait()

    ledger = FailingLedger(settle=slow)
    shop = Shop(system_error(), ledger=ledger)
    waiting = asyncio.Event()

    async def wait(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    shop.script.clock.sleep = wait  # type: ignore[assignment,method-assign]
    client = shop.new_client()
    first = await started(shop.approve(client), waiting)
    await cancelled(first)
    await settling.wait()
    second = asyncio.create_task(shop.result(client))
    await asyncio.sleep(0)
    go_on.set()
    error = await second
    assert isinstance(error, errors.OutcomeUnknownError)
    assert len(shop.script.sent) == 1


class ProgramEnd(BaseException):
    """As SystemExit, which would also end pytest."""


async def test_decision_that_arrives_as_the_program_ends_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ledger: Ledger | None
) -> None:
    """A signal handler may raise SystemExit at any time; here it is raised as the response is logged."""

    def end(record: logging.LogRecord) -> bool:
        monkeypatch.setattr(package_log.LOGGER, "filters", [])
        raise ProgramEnd(record)

    script = ScriptedTransport(approved())
    client = script.client(ledger=ledger)
    caplog.set_level(logging.DEBUG, "loanasync")
    monkeypatch.setattr(package_log.LOGGER, "filters", [end])
    with pytest.raises(ProgramEnd):
        await request(client)
    assert isinstance(await request(client), Approved)
    assert len(script.sent) == 1


async def test_joined_caller_has_the_rest_of_its_time_if_the_program_ends() -> None:
    async def token() -> str:
        tokens.append("token")
        if len(tokens) == 1:
            await asyncio.sleep(0.01)
            script.clock.time += 18
            raise ProgramEnd
        return "token"

    tokens: list[str] = []
    script = ScriptedTransport(system_error(retry_after=3), approved())
    client = script.client(auth_token=token, timeout=Timeout(total=20))
    first, second = (asyncio.create_task(request(client)) for _ in range(2))
    with pytest.raises(ProgramEnd):
        await first
    error = await second
    assert isinstance(error, errors.SystemFaultError)
    assert (error.stopped_by, len(script.sent)) == ("deadline", 1)


async def test_joined_caller_has_an_unknown_outcome_if_the_program_ends(ledger: Ledger | None) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def end(_: SentRequest) -> ScriptedResponse:
        arrived.set()
        await go.wait()
        raise ProgramEnd

    client = ScriptedTransport(computed(end)).client(ledger=ledger)
    first, second = (asyncio.create_task(request(client)) for _ in range(2))
    await arrived.wait()
    go.set()
    with pytest.raises(ProgramEnd):
        await first
    error = await second
    assert isinstance(error, errors.LoanError)
    assert error == errors.OutcomeUnknownError("approve", error.entry or "", "unknown", "ProgramEnd")


def test_approval_without_an_owner_leaves_its_slot_to_the_calls_that_wait() -> None:
    async def approve() -> None:
        step, arrived, _ = held_response(timed_out())
        script = ScriptedTransport(step, approved())
        client = script.client(max_concurrency=1)
        first = await started(request(client), arrived)
        waiting = asyncio.create_task(request(client, "TSTXYZ00A00A000B"))
        await turns()
        [flight] = [each for each in client._flights._separate._in_flight.values() if each.is_reading]
        flight._task = None  # an interrupt may leave it so
        assert isinstance(await request(client), errors.OutcomeUnknownError)
        assert isinstance(await waiting, Approved)
        assert isinstance(await first, errors.OutcomeUnknownError)

    VirtualTime().run(approve())


async def test_client_that_a_tracer_creates_in_a_step_does_not_end_the_flight() -> None:
    """A new client ends flights that have no owner. One of them has none while its first step runs."""

    class Creating(SpanProcessor):
        def on_start(self, span: object, parent_context: object = None) -> None:
            del span, parent_context
            created.append(shop.new_client(telemetry=Telemetry()))

    created: list[LoanClient] = []
    tracing = TracerProvider()
    shop = Shop(approved(), approved(), options={"telemetry": Telemetry(tracer_provider=tracing)})
    tracing.add_span_processor(Creating())
    assert isinstance(await shop.result(), Approved)
    assert len(shop.script.sent) == 1
    assert [entry.state for entry in await shop.entries()] == [State.APPROVED]
    assert created
