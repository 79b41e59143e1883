"""Spans and metrics of approvals that the memory remembers, joins or blocks."""

import asyncio
from typing import Any

import attrs
import pytest
from opentelemetry.sdk.trace import ReadableSpan

from loanasync import DecisionForgottenError, LoanClient, OutcomeUnknownError, PayloadMismatchError
from loanasync.ledger import Ledger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    TelemetryRecorder,
    approved,
    connection_lost,
    fiscal_code,
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import held_response
from support.memory_clients import cancelled
from support.virtual_time import turns


async def approve(client: LoanClient) -> object:
    return await client.approve(FISCAL_CODE, approval_request())


def calls(recorder: TelemetryRecorder) -> list[dict[str, Any]]:
    names = ("loanasync.attempts", "loanasync.outcome", "loanasync.ledger")

    def selected(span: ReadableSpan) -> dict[str, Any]:
        return {name.removeprefix("loanasync."): (span.attributes or {}).get(name) for name in names}

    return [selected(span) for span in recorder.spans() if span.name == "loanasync.approve"]


def client_of(recorder: TelemetryRecorder, *responses: ScriptedResponse, **options: Any) -> LoanClient:
    providers = {"telemetry": recorder.telemetry}
    return ScriptedTransport(*responses).client(**providers, **options)


async def test_remembered_decision_has_its_own_span_and_no_attempt() -> None:
    recorder = TelemetryRecorder()
    client = client_of(recorder, approved())
    for _ in range(2):
        await approve(client)
    assert calls(recorder) == [
        {"attempts": 1, "outcome": "approved", "ledger": None},
        {"attempts": 0, "outcome": "approved", "ledger": "remembered"},
    ]


async def test_call_after_unknown_outcome_is_blocked() -> None:
    recorder = TelemetryRecorder()
    client = client_of(recorder, connection_lost())
    with pytest.raises(Exception, match="the service may have received"):
        await approve(client)
    with pytest.raises(OutcomeUnknownError):
        await approve(client)
    assert calls(recorder)[1] == {"attempts": 0, "outcome": "unknown", "ledger": "blocked"}


async def test_forgotten_decision_blocks_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MAX_RESPONSES", 0)
    recorder = TelemetryRecorder()
    client = client_of(recorder, approved())
    await approve(client)
    with pytest.raises(DecisionForgottenError):
        await approve(client)
    assert calls(recorder)[1] == {"attempts": 0, "outcome": "approved", "ledger": "blocked"}


async def test_joined_call_has_its_own_span_and_no_attempt(ledger: Ledger | None) -> None:
    recorder, (step, arrived, go) = TelemetryRecorder(), held_response(approved())
    client = client_of(recorder, step, ledger=ledger)
    first = asyncio.create_task(approve(client))
    await arrived.wait()
    second = asyncio.create_task(approve(client))
    with pytest.raises(PayloadMismatchError):
        await client.approve(FISCAL_CODE, attrs.evolve(approval_request(), amount=46_000))
    go.set()
    await asyncio.gather(first, second)
    ends = sorted(
        (each["ledger"] or "claimed", each["attempts"], each["outcome"]) for each in calls(recorder)
    )
    assert ends == [("claimed", 1, "approved"), ("joined", 0, "approved"), ("joined", 0, "unknown")]


async def test_cancelled_call_ends_its_span_with_the_outcome(ledger: Ledger | None) -> None:
    recorder, (step, arrived, go) = TelemetryRecorder(), held_response(approved())
    client = client_of(recorder, step, ledger=ledger)
    caller = asyncio.create_task(approve(client))
    await arrived.wait()
    await cancelled(caller)
    go.set()
    await client.aclose()
    [call] = calls(recorder)
    assert (call["attempts"], call["outcome"]) == (1, "approved")


async def test_call_cancelled_before_its_request_is_not_sent(ledger: Ledger | None) -> None:
    recorder, (step, arrived, go) = TelemetryRecorder(), held_response(approved())
    client = client_of(recorder, step, ledger=ledger, max_concurrency=1)
    first = asyncio.create_task(approve(client))
    await arrived.wait()
    waiting = asyncio.create_task(client.approve(fiscal_code(), approval_request()))
    await turns()
    await cancelled(waiting)
    go.set()
    await first
    assert [call["outcome"] for call in calls(recorder)] == ["not_sent", "approved"]


@pytest.mark.parametrize("at_once", [False, True])
async def test_joined_call_has_a_link_to_the_span_of_the_request(*, at_once: bool) -> None:
    recorder, (step, arrived, go) = TelemetryRecorder(), held_response(approved())
    client = client_of(recorder, step)
    first = asyncio.create_task(approve(client))
    if not at_once:
        await arrived.wait()
    second = asyncio.create_task(approve(client))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, second)
    spans = {span.attributes["loanasync.attempts"]: span for span in recorder.spans("loanasync.approve")}  # type: ignore[index]
    assert [link.context for link in spans[0].links] == [spans[1].context]
    assert spans[1].links == ()
