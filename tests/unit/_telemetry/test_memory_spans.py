"""Spans of approvals that the memory has forgotten, whose caller has left, or that share a request."""

import asyncio

import pytest

from loanasync import DecisionForgottenError, LoanClient
from loanasync.ledger import Ledger
from loanasync.testing import TelemetryRecorder, approved, scripted_client
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import held_response
from support.memory_clients import cancelled, started

CALL = "loanasync.approve"


async def approve(client: LoanClient) -> object:
    return await client.approve(FISCAL_CODE, approval_request())


async def test_forgotten_decision_blocks_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MAX_RESPONSES", 0)
    recorder = TelemetryRecorder()
    client = scripted_client(approved(), telemetry=recorder.telemetry)
    await approve(client)
    with pytest.raises(DecisionForgottenError):
        await approve(client)
    blocked = recorder.attributes(recorder.spans(CALL)[1])
    names = ("attempts", "outcome", "ledger")
    assert [blocked[f"loanasync.{name}"] for name in names] == [0, "approved", "blocked"]


async def test_cancelled_call_ends_its_span_with_the_outcome(ledger: Ledger | None) -> None:
    recorder, (step, arrived, go) = TelemetryRecorder(), held_response(approved())
    client = scripted_client(step, telemetry=recorder.telemetry, ledger=ledger)
    caller = await started(approve(client), arrived)
    await cancelled(caller)
    go.set()
    await client.aclose()
    [call] = map(recorder.attributes, recorder.spans(CALL))
    assert (call["loanasync.attempts"], call["loanasync.outcome"]) == (1, "approved")


@pytest.mark.parametrize("at_once", [False, True])
async def test_joined_call_has_a_link_to_the_span_of_the_request(*, at_once: bool) -> None:
    recorder, (step, arrived, go) = TelemetryRecorder(), held_response(approved())
    client = scripted_client(step, telemetry=recorder.telemetry)
    first = asyncio.create_task(approve(client))
    if not at_once:
        await arrived.wait()
    second = asyncio.create_task(approve(client))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, second)
    spans = {recorder.attributes(span)["loanasync.attempts"]: span for span in recorder.spans(CALL)}
    assert [link.context for link in spans[0].links] == [spans[1].context]
    assert spans[1].links == ()
