"""Failures of the user's telemetry are logged once and do not affect calls."""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from loanasync import Approved, InvalidRequestError, Refused, Telemetry
from loanasync._telemetry import log as package_log
from loanasync._telemetry.spans import AttributeCounts, metrics_for
from loanasync.testing import (
    ScriptedTransport,
    TelemetryRecorder,
    approved,
    connection_lost,
    fiscal_code,
    scripted_client,
)
from support import failing_telemetry
from support.builders import FISCAL_CODE, approval_request
from support.failing_telemetry import (
    BROKEN,
    LOCATION,
    NO_CONTEXT,
    PROVIDERS,
    SECRET,
    FailingSampler,
    SpanWithoutContext,
    UnknownRecording,
    calls,
    fail,
    logged_failures,
    provider_of,
)


@pytest.fixture(autouse=True)
def _no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_log, "_warned", set())


@pytest.fixture(params=[RuntimeError, asyncio.CancelledError])
def failure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of the user's telemetry. A future of another thread may raise a CancelledError there."""
    monkeypatch.setattr(failing_telemetry, "RuntimeError", request.param, raising=False)
    return str(request.param.__name__)


@pytest.mark.parametrize("part", PROVIDERS)
async def test_failing_part_of_tracing_does_not_affect_calls(
    part: str, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged once, without its text."""
    expected = await calls()
    for _ in range(2):
        assert await calls(telemetry=Telemetry(tracer_provider=PROVIDERS[part]())) == expected
    assert trace.get_current_span() is trace.INVALID_SPAN, "no span stays current"
    if part != "exporter":  # the SDK logs failures of exporters
        assert SECRET not in caplog.text
        [message] = logged_failures(caplog)
        assert LOCATION.sub("", message) == BROKEN.replace("RuntimeError", failure)
        assert LOCATION.search(message), "the line that failed"


async def test_failing_sampler_keeps_the_trace_of_the_caller() -> None:
    script = ScriptedTransport(approved())
    client = script.client(telemetry=Telemetry(tracer_provider=TracerProvider(sampler=FailingSampler())))
    with TracerProvider().get_tracer("shop").start_as_current_span("checkout") as checkout:
        decision = await client.approve(FISCAL_CODE, approval_request())
        assert trace.get_current_span() is checkout
    trace_id = trace.format_trace_id(checkout.get_span_context().trace_id)
    assert decision.meta.trace_id == trace_id
    assert trace_id in script.sent[0].headers["traceparent"]


@pytest.mark.parametrize("span", [UnknownRecording(NO_CONTEXT), None, SpanWithoutContext(NO_CONTEXT)])
async def test_span_that_cannot_be_recorded_does_not_affect_calls(
    span: object, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await calls()
    assert await calls(telemetry=Telemetry(tracer_provider=provider_of(span))) == expected
    assert trace.get_current_span() is trace.INVALID_SPAN, "no span stays current"
    assert logged_failures(caplog)


async def test_span_without_an_id_has_no_trace_id() -> None:
    client = scripted_client(
        approved(), telemetry=Telemetry(tracer_provider=provider_of(trace.NonRecordingSpan(NO_CONTEXT)))
    )
    decision = await client.approve(FISCAL_CODE, approval_request())
    assert decision.meta.trace_id is None


@pytest.mark.parametrize("name", ["calls", "attempts", "observe"])
async def test_failing_metric_does_not_affect_calls(
    name: str, failure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    provider = MeterProvider([InMemoryMetricReader()])
    if name == "observe":
        monkeypatch.setattr(AttributeCounts, "observe", fail)
    else:
        monkeypatch.setattr(getattr(metrics_for(provider), name), "record", fail)
    client = scripted_client(
        *[approved()] * 2, telemetry=Telemetry(meter_provider=provider), max_concurrency=1
    )
    both = await asyncio.gather(*(client.approve(fiscal_code(), approval_request()) for _ in range(2)))
    assert [type(decision) for decision in both] == [Approved, Approved]
    with pytest.raises(InvalidRequestError):
        await client.approve("RSSMRA", approval_request())
    if name != "observe":  # the SDK logs failures of callbacks
        [message] = logged_failures(caplog)
        assert LOCATION.sub("", message) == BROKEN.replace("RuntimeError", failure)
    provider.shutdown()


@pytest.mark.usefixtures("broken_logging", "failure")
async def test_failing_log_handler_does_not_affect_calls_and_spans(
    tracing: TracerProvider, exporter: Any
) -> None:
    assert (await calls(telemetry=Telemetry(tracer_provider=tracing)))[:2] == [Approved, Refused]
    call_spans = [span for span in exporter.get_finished_spans() if span.name == "loanasync.approve"]
    assert [dict(span.attributes)["loanasync.outcome"] for span in call_spans] == [
        *("approved", "refused", "unknown")
    ]


@pytest.fixture
def _records_with_our_attribute_names() -> Iterator[None]:
    usual = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = usual(*args, **kwargs)
        record.trace_id = record.duration = record.status = "theirs"
        return record

    logging.setLogRecordFactory(make)
    yield
    logging.setLogRecordFactory(usual)


@pytest.mark.usefixtures("_records_with_our_attribute_names")
async def test_record_factory_with_the_same_attributes_keeps_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    await calls()
    logged = [record for record in caplog.records if record.name == "loanasync"]
    assert [record.getMessage().split(",")[0] for record in logged if record.levelno != logging.DEBUG] == [
        "approve: attempt 1: 500",
        "approve: approved",
        "approve: refused",
        "approve: attempt 1: ServerDisconnectedError",
        "approve: ConnectionLostError",
    ]
    assert {vars(record)["duration"] for record in logged} == {"theirs"}


class ProgramEnd(BaseException):
    """Stands for SystemExit, which would end pytest."""


def end(*_: object, **__: object) -> NoReturn:
    raise ProgramEnd


class EndingSampler(FailingSampler):
    should_sample = end


class EndingHandler(logging.Handler):
    emit = end


async def test_call_ended_by_system_exit_is_not_in_flight(metering: MeterProvider) -> None:
    tracing = TracerProvider(sampler=EndingSampler())
    client = scripted_client(
        approved(), telemetry=Telemetry(tracer_provider=tracing, meter_provider=metering)
    )
    with pytest.raises(ProgramEnd):
        await client.create_request({})
    assert set(metrics_for(metering).inflight.counts.values()) == {0}


async def test_call_ended_by_system_exit_has_no_current_span(tracing: TracerProvider, exporter: Any) -> None:
    logger, handler = logging.getLogger("loanasync"), EndingHandler(logging.WARNING)
    client = scripted_client(connection_lost(), telemetry=Telemetry(tracer_provider=tracing))
    logger.addHandler(handler)
    try:
        with pytest.raises(ProgramEnd):
            await client.create_request({})
    finally:
        logger.removeHandler(handler)
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert len(exporter.get_finished_spans()) == 2


async def test_log_handler_that_fails_for_some_events_logs_its_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_at_decisions(record: logging.LogRecord) -> bool:
        return fail() if record.levelno == logging.INFO else True

    caplog.set_level(logging.INFO, "loanasync")
    monkeypatch.setattr(package_log.LOGGER, "filters", [fail_at_decisions])
    await calls()
    assert [LOCATION.sub("", message) for message in logged_failures(caplog)] == [BROKEN]


def test_counts_from_many_threads_are_exact() -> None:
    counts = AttributeCounts("loanasync.operation", ["approve"])

    def count() -> None:
        for _ in range(20_000):
            counts.counts["approve"] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # switch threads as often as possible
    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    [seen] = counts.observe(CallbackOptions())
    assert (seen.value, seen.attributes) == (160_000, {"loanasync.operation": "approve"})


class Unhashable(MeterProvider):
    """A provider that is not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


async def test_provider_that_is_not_hashable_records_metrics() -> None:
    reader = InMemoryMetricReader()
    provider = Unhashable([reader])
    await calls(telemetry=Telemetry(meter_provider=provider))
    data = reader.get_metrics_data()
    assert data is not None
    names = {each.name for each in data.resource_metrics[0].scope_metrics[0].metrics}
    assert "loanasync.call.duration" in names
    provider.shutdown()


async def test_clients_of_one_provider_are_counted_together() -> None:
    recorder = TelemetryRecorder()
    for _ in range(2):
        client = scripted_client(approved(), telemetry=recorder.telemetry)
        await client.approve(FISCAL_CODE, approval_request())
    assert recorder.metric("loanasync.call.duration").count == 2
