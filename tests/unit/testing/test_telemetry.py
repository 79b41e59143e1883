"""`TelemetryRecorder` of `loanasync.testing`."""

import sys

import pytest
from opentelemetry import trace

from loanasync import ConfigurationError, LoanClient, testing
from loanasync.testing import (
    Metric,
    ScriptedResponse,
    TelemetryRecorder,
    approval_request,
    approved,
    refused,
    scripted_client,
    system_error,
)

CODE = "TSTXYZ50A01X000A"


def recorded(recorder: TelemetryRecorder, *responses: ScriptedResponse, **options: object) -> LoanClient:
    return scripted_client(*responses, telemetry=recorder.telemetry, **options)


async def test_spans_are_returned_by_name_in_the_order_of_their_ends() -> None:
    recorder = TelemetryRecorder()
    assert recorder.spans() == ()
    decision = await recorded(recorder, system_error(), approved()).approve(CODE, approval_request())
    attempt = "POST /api/shops/{shopId}/requests/{fiscalCode}"
    assert [span.name for span in recorder.spans()] == [attempt, attempt, "loanasync.approve"]
    [call] = recorder.spans("loanasync.approve")
    assert recorder.attributes(call) == {
        "loanasync.operation": "approve",
        "loanasync.outcome": "approved",
        "loanasync.approved": True,
        "loanasync.attempts": 2,
    }
    assert [recorder.attributes(span).get("error.type") for span in recorder.spans(attempt)] == ["500", None]
    assert call.context is not None
    assert decision.meta.trace_id == trace.format_trace_id(call.context.trace_id)
    assert recorder.spans("loanasync.complete") == ()


async def test_metrics_are_summed_and_counted_by_attributes() -> None:
    recorder = TelemetryRecorder()
    client = recorded(recorder, system_error(), approved(), refused(), refused())
    for order in ("1", "2", "3"):
        await client.approve(CODE, approval_request(), order_id=order)
    calls = recorder.metric("loanasync.call.duration")
    assert calls.count == 3
    assert 0 < calls.sum < 5
    assert recorder.metric("loanasync.call.duration", {"loanasync.outcome": "refused"}).count == 2
    assert recorder.metric("loanasync.call.duration", {"loanasync.outcome": "neither"}).count == 0
    assert recorder.metric("loanasync.inflight", {"loanasync.operation": "approve"}) == Metric(sum=0)
    duration = recorder.metric("http.client.request.duration")
    assert duration.count == 4
    assert 0 < duration.sum < 5
    refused_calls = {"http.response.status_code": 422}
    assert recorder.metric("http.client.request.duration", refused_calls).count == 2
    assert recorder.metric("loanasync.call.duration") == calls, "reading takes nothing away"


async def test_metric_of_the_client_is_zero_before_it_is_recorded() -> None:
    recorder = TelemetryRecorder()
    assert recorder.metric("loanasync.inflight") == Metric(sum=0)
    assert recorder.metric("http.client.request.duration") == Metric(sum=0, count=0)
    with pytest.raises(LookupError, match=r"no metric has the name loanasync\.flights; .*\.inflight"):
        recorder.metric("loanasync.flights")
    meter = recorder.meter_provider.get_meter("shop")
    meter.create_counter("shop.orders").add(3)
    meter.create_histogram("shop.baskets").record(7)
    assert recorder.metric("shop.orders") == Metric(sum=3)
    assert recorder.metric("shop.baskets") == Metric(sum=7, count=1)


async def test_recorder_knows_all_metrics_of_a_client() -> None:
    recorder = TelemetryRecorder()
    await recorded(recorder, approved()).approve(CODE, approval_request())
    assert set(recorder._metrics()) == set(testing.telemetry._CLIENT_METRICS) - {"loanasync.worker.backlog"}


async def test_recorders_are_independent_of_each_other_and_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    first, second = TelemetryRecorder(), TelemetryRecorder()
    await recorded(first, approved()).approve(CODE, approval_request())
    assert (len(first.spans()), second.spans()) == (2, ())
    assert second.metric("loanasync.call.duration").count == 0


@pytest.mark.parametrize("absent", ["opentelemetry.sdk", "opentelemetry.sdk.metrics.export"])
def test_recorder_without_the_sdk_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ConfigurationError, match=r"pip install opentelemetry-sdk, or '\.\[cli\]'") as caught:
        TelemetryRecorder()
    assert caught.value.__suppress_context__, "the failed import adds no information"


@pytest.mark.parametrize("value", ["true", " True "])
def test_recorder_with_a_disabled_sdk_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", value)
    with pytest.raises(ConfigurationError, match="OTEL_SDK_DISABLED: must not be true"):
        TelemetryRecorder()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
    recorder = TelemetryRecorder()
    recorder.tracer_provider.get_tracer("shop").start_span("checkout").end()
    [span] = recorder.spans("checkout")
    assert recorder.attributes(span) == {}
