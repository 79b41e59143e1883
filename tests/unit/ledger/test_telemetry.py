"""Ledger attributes of spans and metrics."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from opentelemetry.trace import format_trace_id

from loanasync import DecisionNotRecordedError, LedgerUnavailableError
from loanasync.testing import TelemetryRecorder, approved, refused, timed_out
from support.builders import approval_request
from support.ledger_clients import FailingLedger, Shop, broken, held_response
from support.memory_clients import started

CALL = "loanasync.approve"


def recorded(*steps: object, **options: object) -> tuple[Shop, TelemetryRecorder]:
    recorder = TelemetryRecorder()
    providers = {"telemetry": recorder.telemetry}
    return Shop(*steps, options=providers, **options), recorder  # type: ignore[arg-type]


def ledger_results(recorder: TelemetryRecorder) -> list[tuple[object, object]]:
    spans = [recorder.attributes(span) for span in recorder.spans(CALL)]
    return [(span["loanasync.ledger"], span.get("loanasync.outcome")) for span in spans]


async def test_span_has_the_result_of_the_ledger() -> None:
    step, arrived, go = held_response(approved())
    shop, recorder = recorded(step)
    call = await started(shop.approve(), arrived)
    joining = asyncio.create_task(shop.approve())
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(call, joining)
    await shop.approve()
    assert sorted(ledger_results(recorder)) == [
        ("claimed", "approved"),
        ("hit", "approved"),
        ("joined", "approved"),
    ]
    (attempt,) = [span for span in recorder.spans() if span.name.startswith("POST")]
    assert attempt.parent is not None
    calls = {span.context and span.context.span_id: span for span in recorder.spans(CALL)}
    assert recorder.attributes(calls[attempt.parent.span_id])["loanasync.ledger"] == "claimed"


async def test_span_has_the_reason_why_nothing_was_sent() -> None:
    ledger = FailingLedger()
    shop, recorder = recorded(timed_out(), ledger=ledger)
    results = [await shop.result(), await shop.result()]
    results.append(await shop.result(request=approval_request(amount=99_000)))
    ledger.faults["entries_of"] = broken
    results.append(await shop.result())
    traces = [span.context and format_trace_id(span.context.trace_id) for span in recorder.spans(CALL)]
    assert [getattr(error, "trace_id", None) for error in results] == traces
    assert ledger_results(recorder) == [
        ("claimed", "unknown"),
        ("blocked", "unknown"),
        ("blocked", "unknown"),
        ("unavailable", "not_sent"),
    ]


async def test_unrecorded_decision_is_counted_as_a_decision(tmp_path: Path) -> None:
    shop, recorder = recorded(refused(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    assert isinstance(await shop.result(), DecisionNotRecordedError)
    assert ledger_results(recorder) == [("claimed", "refused")]
    end = {"error.type": "DecisionNotRecordedError", "loanasync.outcome": "refused", "loanasync.attempts": 1}
    assert recorder.metric("loanasync.call.duration", end).count == 1


async def test_span_of_a_decision_that_cannot_be_decrypted_has_no_hit() -> None:
    cipher = SimpleNamespace(encrypt=bytes, decrypt=bytes)
    shop, recorder = recorded(approved(), encrypt=cipher)
    await shop.approve()
    cipher.decrypt = lambda _: broken()
    assert isinstance(await shop.result(), LedgerUnavailableError)
    assert ledger_results(recorder) == [("claimed", "approved"), ("unavailable", "not_sent")]
