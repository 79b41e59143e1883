"""Spans and metrics of a call, without personal data."""

import contextlib
import logging
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import opentelemetry
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags

from loanasync import Approved, LoanError, Response, Telemetry, errors
from loanasync._protocol import endpoints
from loanasync._settings import Propagate
from loanasync._shop import configure
from loanasync._telemetry import spans
from loanasync._telemetry.spans import CallTelemetry, Instruments
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    TelemetryRecorder,
    approved,
    computed,
    connection_lost,
    refused,
    system_error,
    timed_out,
)
from support.failing_telemetry import FailingSampler, with_processor
from support.separate import Run

TEMPLATE = "/api/shops/{shopId}/requests/{fiscalCode}"
SHOP = configure("https://loans.example.com", "shop", "token")


@pytest.fixture
def telemetry(tracing: TracerProvider, metering: MeterProvider) -> Telemetry:
    return Telemetry(tracer_provider=tracing, meter_provider=metering)


@pytest.fixture
def run(telemetry: Telemetry) -> Run:
    return Run(telemetry=telemetry)


async def spans_of(
    run: Run, exporter: InMemorySpanExporter, *responses: ScriptedResponse
) -> Sequence[ReadableSpan]:
    run.transport.add(*responses)
    with contextlib.suppress(LoanError):
        await run.approve()
    return exporter.get_finished_spans()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_transport_error_has_the_trace_id(run: Run, exporter: InMemorySpanExporter) -> None:
    run.transport.add(connection_lost())
    with pytest.raises(errors.ConnectionLostError) as caught:
        await run.approve()
    assert caught.value.trace_id == trace.format_trace_id(exporter.get_finished_spans()[-1].context.trace_id)


async def test_trace_is_passed_from_the_caller_to_headers_and_meta(
    run: Run, exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    run.transport.add(approved())
    before = context.get_current()
    with tracing.get_tracer("shop").start_as_current_span("checkout"):
        token = context.attach(baggage.set_baggage("customer", "anna"))
        decision = await run.approve()
        context.detach(token)
    attempt, call, checkout = exporter.get_finished_spans()
    assert call.parent == checkout.context
    assert attempt.context is not None
    headers = run.transport.sent[0].headers
    trace_id, span_id = f"{attempt.context.trace_id:032x}", f"{attempt.context.span_id:016x}"
    assert headers["traceparent"] == f"00-{trace_id}-{span_id}-{attempt.context.trace_flags:02x}"
    assert "baggage" not in headers, "it would go to a third party"
    assert isinstance(decision, Approved)
    assert decision.meta.trace_id == trace_id
    assert context.get_current() == before


@pytest.mark.parametrize(("propagate", "sent"), [("off", set()), ("global", {"traceparent", "baggage"})])
async def test_propagation_can_be_global_or_off(
    exporter: InMemorySpanExporter, tracing: TracerProvider, propagate: Propagate, sent: set[str]
) -> None:
    run = Run(telemetry=Telemetry(tracer_provider=tracing, propagate=propagate))
    token = context.attach(baggage.set_baggage("a", "b"))
    attempt, _ = await spans_of(run, exporter, approved())
    context.detach(token)
    headers = run.transport.sent[0].headers
    assert {"traceparent", "baggage"} & headers.keys() == sent
    assert attempt.context is not None
    if "traceparent" in sent:
        assert f"{attempt.context.span_id:016x}" in headers["traceparent"], "the attempt's, not the call's"


def test_unknown_propagate_setting_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="propagate: must be one of traceparent, global, off"):
        Telemetry(propagate="b3")  # type: ignore[arg-type]


def test_propagator_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PROPAGATORS", "tracecontext,carrier-pigeon")
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate", raising=False)
    monkeypatch.delattr(opentelemetry, "propagate", raising=False)
    with pytest.raises(
        errors.ConfigurationError, match="propagate: cannot be global: OTEL_PROPAGATORS contains"
    ):
        Instruments(Telemetry(propagate="global"))


async def test_attempts_with_different_errors_are_counted_apart() -> None:
    recorder = TelemetryRecorder()
    run = Run(telemetry=recorder.telemetry)
    run.transport.add(connection_lost(), timed_out())
    for _ in range(2):
        with pytest.raises(errors.TransportError):
            await run.approve()
    kinds = {attributes(span)["error.type"] for span in recorder.spans(f"POST {TEMPLATE}")}
    counts = [recorder.metric("http.client.request.duration", {"error.type": each}).count for each in kinds]
    assert counts == [1, 1]


@pytest.mark.parametrize(
    ("status", "fault", "error_type"),
    [(399, None, None), (400, None, "400"), (201, "truncated", "body truncated"), (500, "truncated", "500")],
)
def test_attempt_with_status_400_or_incomplete_body_is_an_error(
    telemetry: Telemetry,
    exporter: InMemorySpanExporter,
    status: int,
    fault: str | None,
    error_type: str | None,
) -> None:
    call = endpoints.Call(endpoints.CREATE_REQUEST, SHOP, None, b"{}")
    parent = CallTelemetry(Instruments(telemetry), call)
    parent.begin_attempt(1)
    parent.end_attempt(Response(status=status, headers={}, body=b"", fault=fault))
    parent.end(None)
    made = exporter.get_finished_spans()[0]
    assert attributes(made)["http.response.status_code"] == status
    assert attributes(made).get("error.type") == error_type
    assert (made.status.status_code is StatusCode.ERROR) == (error_type is not None)


async def test_status_of_a_wrong_type_is_an_unexpected_status(
    run: Run, exporter: InMemorySpanExporter
) -> None:
    """A user's transport may return anything; the telemetry of its attempt must not fail the call."""
    before = context.get_current()
    run.transport.add(Response(status="201", headers={}, body=b""))  # type: ignore[arg-type]
    with pytest.raises(errors.UnexpectedStatusError) as caught:
        await run.approve()
    assert caught.value.outcome == "unknown"
    assert [span.name for span in exporter.get_finished_spans()] == [f"POST {TEMPLATE}", "loanasync.approve"]
    assert context.get_current() == before


def test_durations_of_call_and_attempt_are_measured(
    telemetry: Telemetry,
    reader: InMemoryMetricReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "loanasync")
    monkeypatch.setattr("loanasync._telemetry.spans.perf_counter", iter([9.0, 10.0, 10.25, 11.0]).__next__)
    call = endpoints.Call(endpoints.CREATE_REQUEST, SHOP, None, b"{}")
    parent = CallTelemetry(Instruments(telemetry), call)
    parent.begin_attempt(1)
    parent.end_attempt(Response(status=201, headers={}, body=b""))
    parent.outcome = "done"
    parent.end(None)
    data = reader.get_metrics_data()
    assert data is not None
    metrics: Any = data.resource_metrics[0].scope_metrics[0].metrics
    durations = {each.name: [point.sum for point in each.data.data_points] for each in metrics[:2]}
    assert durations == {"loanasync.call.duration": [2.0], "http.client.request.duration": [0.25]}
    assert [vars(record)["duration"] for record in caplog.records] == [0.25, 2.0]


class OnlyAttempts(FailingSampler):
    """Samples attempts, but not calls."""

    def should_sample(self, *arguments: Any, **_: Any) -> SamplingResult:
        _context, _trace_id, name, *_rest = arguments
        return SamplingResult(Decision.RECORD_AND_SAMPLE if name.startswith("POST") else Decision.DROP)


async def test_unsampled_call_starts_no_attempt_span(exporter: InMemorySpanExporter) -> None:
    tracing = with_processor(SimpleSpanProcessor(exporter), OnlyAttempts())
    run = Run(approved(), telemetry=Telemetry(tracer_provider=tracing))
    tracing.get_tracer("shop").start_span("POST of its own").end()
    assert isinstance(await run.approve(), Approved)
    assert [span.name for span in exporter.get_finished_spans()] == ["POST of its own"]


class Interrupt(BaseException):
    """Raised anywhere, as KeyboardInterrupt is."""


async def test_interrupt_before_the_request_is_sent_ends_both_spans(
    run: Run, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints.Call, "request", mock.Mock(side_effect=Interrupt))
    with pytest.raises(Interrupt):
        await run.approve()
    assert len(exporter.get_finished_spans()) == 2


class Numbering(FailingSampler):
    """Adds an attribute of another name to each span, in place."""

    def __init__(self) -> None:
        self.count = 0

    def should_sample(self, *arguments: Any, **_: Any) -> SamplingResult:
        _context, _trace_id, _name, _kind, sampled, *_rest = arguments
        self.count += 1
        sampled[f"sampled.{self.count}"] = True
        return SamplingResult(Decision.RECORD_AND_SAMPLE, sampled)


async def test_sampler_that_changes_attributes_changes_one_span_only(exporter: InMemorySpanExporter) -> None:
    tracing = with_processor(SimpleSpanProcessor(exporter), Numbering())
    run = Run(telemetry=Telemetry(tracer_provider=tracing))
    await spans_of(run, exporter, system_error(), approved())
    spans = await spans_of(run, exporter, refused())
    added = [[name for name in attributes(span) if name.startswith("sampled.")] for span in spans]
    assert [len(each) for each in added] == [1, 1, 1, 1, 1]


async def test_without_an_sdk_no_trace_header_is_sent() -> None:
    run = Run(approved())
    decision = await run.approve()
    assert isinstance(decision, Approved)
    assert decision.meta.trace_id is None
    assert "traceparent" not in run.transport.sent[0].headers


@pytest.mark.parametrize("name", ["as it is", "renamed"])
async def test_without_an_sdk_the_trace_of_the_caller_is_propagated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "renamed":  # a later OpenTelemetry may rename the private attribute
        renamed = {name: value for name, value in vars(trace).items() if name != "_TRACER_PROVIDER"}
        monkeypatch.setattr(spans, "trace", SimpleNamespace(**renamed))
    run = Run(approved())
    incoming = SpanContext(trace_id=0xAB, span_id=0xCD, is_remote=True, trace_flags=TraceFlags(1))
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(incoming)))
    try:
        decision = await run.approve()
    finally:
        context.detach(token)
    assert isinstance(decision, Approved)
    assert decision.meta.trace_id == f"{0xAB:032x}"
    assert run.transport.sent[0].headers["traceparent"] == f"00-{0xAB:032x}-{0xCD:016x}-01"


class CountingSpan(NonRecordingSpan):
    """A span that is recorded, and keeps the attributes of each call of `set_attributes`."""

    def __init__(self) -> None:
        super().__init__(SpanContext(trace_id=0xAB, span_id=0xCD, is_remote=False))
        self.sets: list[dict[str, Any]] = []
        self.others = mock.Mock()
        self.set_attribute = self.set_status = self.others  # type: ignore[method-assign]

    def is_recording(self) -> bool:
        return True

    def set_attributes(self, attributes: Any) -> None:
        self.sets.append(dict(attributes))


async def test_attributes_of_a_span_are_set_at_its_start_and_at_once_at_its_end() -> None:
    spans = CountingSpan(), CountingSpan()
    provider = mock.create_autospec(trace.TracerProvider, instance=True)
    provider.get_tracer.return_value.start_span.side_effect = spans
    await Run(approved(), telemetry=Telemetry(tracer_provider=provider)).approve()
    started = [call.args[3].keys() for call in provider.get_tracer.return_value.start_span.call_args_list]
    names = ("request.method", "server.address", "server.port", "url.full", "url.template")
    assert started == [set(), {name.replace("request", "http.request") for name in names}]
    call, attempt = spans
    assert attempt.sets == [{"http.response.status_code": 201}]
    assert [each.keys() for each in call.sets] == [
        {f"loanasync.{name}" for name in ("operation", "outcome", "approved", "attempts")}
    ]
    for span in spans:
        span.others.assert_not_called()


async def test_span_of_an_attempt_is_current_in_the_transport_of_the_user() -> None:
    recorder, seen = TelemetryRecorder(), []

    def look(_: SentRequest) -> ScriptedResponse:
        seen.append(trace.get_current_span().get_span_context())
        return approved()

    await Run(computed(look), telemetry=recorder.telemetry).approve()
    [attempt] = recorder.spans(f"POST {TEMPLATE}")
    assert seen == [attempt.context]
