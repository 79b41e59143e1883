"""All spans and metrics, checked against the semantic conventions and the reference page."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import Gauge, Histogram, HistogramDataPoint, Metric, Sum
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import url_attributes as incubating_url
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    server_attributes,
    url_attributes,
)
from opentelemetry.semconv.metrics import http_metrics
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

import loanasync
from loanasync import LoanClient, LoanError, Timeout
from loanasync._protocol.endpoints import OPERATIONS
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    TelemetryRecorder,
    approved,
    computed,
    connection_lost,
    denied,
    domain_error,
    fiscal_code,
    not_connected,
    refused,
    response,
    system_error,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request, user_data

OPERATION = "loanasync.operation"
SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
# The attributes of a CLIENT span that are always set, and their types.
REQUIRED = {
    http_attributes.HTTP_REQUEST_METHOD: str,
    server_attributes.SERVER_ADDRESS: str,
    server_attributes.SERVER_PORT: int,
    url_attributes.URL_FULL: str,
    incubating_url.URL_TEMPLATE: str,
}
CONDITIONAL = {
    http_attributes.HTTP_RESPONSE_STATUS_CODE: int,  # if a response arrived
    http_attributes.HTTP_REQUEST_RESEND_COUNT: int,  # from the second attempt
    error_attributes.ERROR_TYPE: str,  # if it ended in an error
}
# Attributes that this package defines, with their types and possible values.
OWN: dict[str, tuple[type, set[object] | None]] = {
    OPERATION: (str, set(OPERATIONS)),
    "loanasync.attempts": (int, None),
    "loanasync.outcome": (str, {"approved", "refused", "done", "unknown", "not_sent", "not_evaluated"}),
    "loanasync.approved": (bool, None),
    "loanasync.stopped_by": (str, {"attempts", "deadline", "quota", "slot", "cancelled"}),
    "loanasync.ledger": (str, {"claimed", "hit", "joined", "remembered", "blocked", "unavailable"}),
}
# The unit, kind, attributes and description of each metric.
METRICS: dict[str, tuple[str, type, set[str], str]] = {
    http_metrics.HTTP_CLIENT_REQUEST_DURATION: (
        "s",
        Histogram,
        {*REQUIRED, *CONDITIONAL} - {url_attributes.URL_FULL, http_attributes.HTTP_REQUEST_RESEND_COUNT},
        "Duration of HTTP client requests.",
    ),
    "loanasync.call.duration": (
        "s",
        Histogram,
        {OPERATION, "loanasync.outcome", "loanasync.attempts", error_attributes.ERROR_TYPE},
        "Duration of calls, however they end.",
    ),
    "loanasync.circuit.openings": ("{opening}", Sum, set(), "Pauses of approvals by the circuit breaker."),
    "loanasync.orphan.files": (
        "{file}",
        Sum,
        set(),
        "Orphan files, written because the ledger could not store a response.",
    ),
    "loanasync.worker.dead_letters": ("{message}", Sum, set(), "Messages that became dead letters."),
    "loanasync.worker.paused": ("{task}", Sum, set(), "Tasks that are paused in this worker."),
    "loanasync.worker.backlog": (
        "{message}",
        Gauge,
        {"messaging.destination.name"},
        "Messages in the queue that are not finished, as a worker last saw them.",
    ),
    "loanasync.inflight": (
        "{call}",
        Sum,
        {OPERATION},
        "Calls in progress, including calls that wait for a slot.",
    ),
}
GAUGES = {"loanasync.inflight", "loanasync.worker.paused"}
# for request durations
RECOMMENDED = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


async def approve(client: LoanClient, **options: Any) -> None:
    await client.approve(fiscal_code(), approval_request(), **options)


async def create(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})


async def upload(client: LoanClient) -> None:
    await client.upload_documents(FISCAL_CODE, {"front": "..."})


async def complete(client: LoanClient) -> None:
    await client.complete(FISCAL_CODE, user_data())


async def cancelled(client: LoanClient) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.create_task(approve(client))


async def crowded(client: LoanClient) -> None:
    await asyncio.gather(approve(client), approve(client), approve(client, timeout=Timeout(total=0.001)))


async def too_late(client: LoanClient) -> None:
    await approve(client, timeout=Timeout(total=1, attempt=1, connect=0.5))


async def _long(_: SentRequest) -> ScriptedResponse:
    await asyncio.sleep(0.05)
    return approved()


async def _cancel_caller(_: SentRequest) -> ScriptedResponse:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return approved()


Action = Callable[[LoanClient], Awaitable[None]]
FAULT, EVALUATED = system_error(), domain_error("User already evaluated for approval")
ERROR, UNSET = StatusCode.ERROR, StatusCode.UNSET
# The responses, the action of the shop, and the span status and outcome of the last call.
CALLS: dict[str, tuple[list[ScriptedResponse], Action, StatusCode, str]] = {
    "approved": ([approved()], approve, UNSET, "approved"),
    "refused": ([refused()], approve, UNSET, "refused"),
    "approved after faults": ([FAULT, FAULT, approved()], approve, UNSET, "approved"),
    "a fault that stays": ([FAULT] * 3, approve, ERROR, "unknown"),
    "a fault, and no time": ([system_error(retry_after=9)], too_late, ERROR, "unknown"),
    "already evaluated": ([EVALUATED], approve, ERROR, "unknown"),
    "lost to a fault": ([FAULT, EVALUATED], approve, ERROR, "unknown"),
    "denied": ([denied()], approve, ERROR, "not_evaluated"),
    "a redirect": ([response(307, {})], approve, ERROR, "not_evaluated"),
    "a gateway's time-out": ([response(504, {})], approve, ERROR, "unknown"),
    "half a refusal": ([response(422, b'{"appr')], approve, ERROR, "unknown"),
    "an empty approval": ([response(201, b"")], approve, ERROR, "unknown"),
    "refused with 201": ([response(201, {"approved": False})], approve, UNSET, "refused"),
    "a contradiction": ([response(422, {"approved": True})], approve, ERROR, "unknown"),
    "not connected": ([not_connected()], approve, ERROR, "not_sent"),
    "lost": ([connection_lost()], approve, ERROR, "unknown"),
    "timed out": ([timed_out()], approve, ERROR, "unknown"),
    "cancelled": ([computed(_cancel_caller)], cancelled, UNSET, "unknown"),
    "crowded": ([computed(_long), approved()], crowded, ERROR, "not_sent"),
    "created": ([response(201, {})], create, UNSET, "done"),
    "not created": ([denied()], create, ERROR, "not_evaluated"),
    "uploaded": ([response(200, {})], upload, UNSET, "done"),
    "completed": ([response(200, {})], complete, UNSET, "done"),
    "not completed": ([connection_lost()], complete, ERROR, "unknown"),
}


@pytest.fixture(params=CALLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def recorder(name: str) -> TelemetryRecorder:
    """Record the telemetry of one row of CALLS."""
    recorder = TelemetryRecorder()
    responses, action, _, _ = CALLS[name]
    async with ScriptedTransport(*responses).client(
        max_concurrency=1, telemetry=recorder.telemetry
    ) as client:
        with contextlib.suppress(LoanError):
            await action(client)
    return recorder


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def of_kind(recorder: TelemetryRecorder, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in recorder.spans() if span.kind is kind]


def metrics(recorder: TelemetryRecorder) -> dict[str, Metric]:
    data = recorder._reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("loanasync", loanasync.__version__)
    assert scope.scope.schema_url == SCHEMA
    return {metric.name: metric for metric in scope.metrics}


@pytest.mark.skipif(not hasattr(Schemas, "V1_40_0"), reason="this OpenTelemetry knows older schemas only")
def test_schema_is_published() -> None:
    assert Schemas["V1_40_0"].value == SCHEMA


def test_each_span_has_this_version_and_a_published_schema(recorder: TelemetryRecorder) -> None:
    assert recorder.spans()
    for span in recorder.spans():
        scope = span.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.version) == ("loanasync", loanasync.__version__)
        assert scope.schema_url == SCHEMA
        assert span.status.status_code is not StatusCode.OK, "only the application may set OK"
        assert span.status.description is None
        assert not span.events, "exceptions are not recorded"


def test_attempt_span_follows_the_http_client_conventions(recorder: TelemetryRecorder, name: str) -> None:
    attempts = of_kind(recorder, SpanKind.CLIENT)
    assert bool(attempts) == bool(CALLS[name][0])
    for span in attempts:
        found = attributes(span)
        assert found.keys() >= REQUIRED.keys()
        assert found.keys() <= {*REQUIRED, *CONDITIONAL}
        for attribute, value in found.items():
            assert type(value) is {**REQUIRED, **CONDITIONAL}[attribute], attribute
        method = found[http_attributes.HTTP_REQUEST_METHOD]
        template = found[incubating_url.URL_TEMPLATE]
        assert method in {each.value for each in http_attributes.HttpRequestMethodValues}
        assert span.name == f"{method} {template}"
        redacted = re.sub(r"\{\w+\}", "REDACTED", template)
        assert found[url_attributes.URL_FULL] == f"https://loans.example.com{redacted}"
        status = found.get(http_attributes.HTTP_RESPONSE_STATUS_CODE)
        error = found.get(error_attributes.ERROR_TYPE)
        if status is not None and status >= 400:
            assert error == str(status)
        elif status is None and name != "cancelled":
            assert error, "a missing response is an error"
        assert (span.status.status_code is StatusCode.ERROR) == (error is not None)


def test_attempt_spans_have_a_resend_count_from_the_second(recorder: TelemetryRecorder) -> None:
    calls = {span.context.span_id: span for span in of_kind(recorder, SpanKind.INTERNAL)}
    below: dict[int, list[int]] = {span_id: [] for span_id in calls}
    for span in of_kind(recorder, SpanKind.CLIENT):
        assert span.parent is not None
        below[span.parent.span_id].append(attributes(span).get(http_attributes.HTTP_REQUEST_RESEND_COUNT, 0))
    assert below, "no call was recorded"
    for span_id, counts in below.items():
        assert counts == list(range(len(counts)))
        assert attributes(calls[span_id])["loanasync.attempts"] == len(counts)


def test_call_span_has_the_result_of_the_call(recorder: TelemetryRecorder, name: str) -> None:
    _, _, status, outcome = CALLS[name]
    spans = of_kind(recorder, SpanKind.INTERNAL)
    for span in spans:
        found = attributes(span)
        assert found.keys() <= {*OWN, error_attributes.ERROR_TYPE}
        for attribute, (kind, values) in OWN.items():
            if attribute in found:
                assert type(found[attribute]) is kind
                assert values is None or found[attribute] in values
        assert span.name == f"loanasync.{found['loanasync.operation']}"
        assert (span.status.status_code is StatusCode.ERROR) == (error_attributes.ERROR_TYPE in found)
        assert hasattr(loanasync, found.get(error_attributes.ERROR_TYPE, "LoanError"))
        assert found.get("loanasync.approved") == {"approved": True, "refused": False}.get(
            found["loanasync.outcome"]
        )
    first = min(spans, key=lambda span: attributes(span).get(error_attributes.ERROR_TYPE, "~"))
    assert first.status.status_code is status
    assert attributes(first)["loanasync.outcome"] == outcome


def test_metrics_have_the_published_names_units_and_boundaries(recorder: TelemetryRecorder) -> None:
    found = metrics(recorder)
    assert found.keys() <= METRICS.keys()
    for metric in found.values():
        unit, kind, names, description = METRICS[metric.name]
        assert (metric.unit, metric.description) == (unit, description)
        assert type(metric.data) is kind
        if isinstance(metric.data, Sum):
            assert metric.data.is_monotonic == (metric.name not in GAUGES)
        for point in metric.data.data_points:
            assert (point.attributes or {}).keys() <= names
            if isinstance(point, HistogramDataPoint):
                assert point.explicit_bounds == RECOMMENDED


def test_metrics_agree_with_spans(recorder: TelemetryRecorder) -> None:
    recorded = [attributes(span).items() for span in recorder.spans()]
    compared = set()
    for metric in metrics(recorder).values():
        for point in metric.data.data_points:
            if getattr(point, "value", 1):  # a zero has no span
                labels = dict(point.attributes or {}).items()
                assert any(labels <= each for each in recorded), (metric.name, labels)
                compared.add(metric.name)
    assert compared


def test_attempts_and_calls_are_counted_once_and_inflight_is_zero(
    recorder: TelemetryRecorder, name: str
) -> None:
    ended = [] if name == "cancelled" else of_kind(recorder, SpanKind.CLIENT)
    assert recorder.metric(http_metrics.HTTP_CLIENT_REQUEST_DURATION).count == len(ended)
    assert recorder.metric("loanasync.inflight").sum == 0
    late = recorder.metric("loanasync.call.duration", {"error.type": "PoolTimeoutError"})
    assert late.count == (name == "crowded")
    _, _, names, _ = METRICS["loanasync.call.duration"]
    calls = [attributes(span).items() for span in of_kind(recorder, SpanKind.INTERNAL)]
    ends = [{key: value for key, value in call if key in names} for call in calls]
    assert recorder.metric("loanasync.call.duration").count == len(ends)
    for end in ends:
        assert recorder.metric("loanasync.call.duration", end).count == ends.count(end)


async def test_inflight_counts_calls_in_progress() -> None:
    recorder = TelemetryRecorder()
    seen: list[float] = []

    async def respond(_: SentRequest) -> ScriptedResponse:
        await asyncio.sleep(0)  # until all calls have begun
        seen.append(recorder.metric("loanasync.inflight", {"loanasync.operation": "approve"}).sum)
        return approved()

    client = ScriptedTransport(*[computed(respond)] * 3).client(telemetry=recorder.telemetry)
    await asyncio.gather(*(approve(client) for _ in range(3)))
    assert seen[0] == 3
    assert recorder.metric("loanasync.inflight").sum == 0


def test_telemetry_page_lists_all_spans_metrics_and_attributes() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "telemetry.md"
    names = set(re.findall(r"`([a-z_.]+)`", page.read_text(encoding="utf-8")))
    assert names >= {*REQUIRED, *CONDITIONAL, *OWN, *METRICS}
