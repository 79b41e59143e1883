"""`loanasync demo --otlp` with the real exporter, and a collector that decodes what it receives."""

import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from rich.console import Console

import loanasync
from loanasync.cli import demo as otlp
from loanasync.cli.demo import Recording
from support.cli import run, run_process
from support.otlp_collector import Collector, collecting, plain

SHOP = "/api/shops/{shopId}/requests"
CUSTOMER = f"{SHOP}/{{fiscalCode}}"
BOUNDARIES = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
SPANS_ONLY = ("url.full", "http.request.resend_count")  # too many values for metric attributes
OPERATIONS = ["create_request", "approve", "upload_documents", "complete"]
# Data of the two customers, their documents, their applications, and the shop.
PERSONAL = "TSTNNA TSTBRN Anna anna Bruno bruno Prova example.com 3330000000 00100 12/A AA00000AA Roma"
PERSONAL += " #token /apply/ sandbox-shop sandbox-token"


@pytest.fixture(autouse=True, scope="module")
def _only_settings_of_the_test() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("OTEL_")]:
            patch.delenv(name)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


def run_demo(url: str) -> subprocess.CompletedProcess[str]:
    return run(None, "demo", "--otlp", url)


def port_of(output: str) -> int:
    found = re.search(r"with a sandbox at http://127\.0\.0\.1:(\d+)\n", output)
    assert found is not None
    return int(found[1])


def call(operation: str, **attributes: Any) -> tuple[dict[str, Any], int]:
    decided = {f"loanasync.{name}": value for name, value in attributes.items()}
    own = {"loanasync.operation": operation, "loanasync.attempts": 1, **decided}
    return own, Status.STATUS_CODE_UNSET


def attempt(
    port: int, method: str, template: str, status: int, resend: int = 0
) -> tuple[dict[str, Any], int]:
    path = template.replace("{shopId}", "REDACTED").replace("{fiscalCode}", "REDACTED")
    attributes = {
        "http.request.method": method,
        "http.response.status_code": status,
        "server.address": "127.0.0.1",
        "server.port": port,
        "url.template": template,
        "url.full": f"http://127.0.0.1:{port}{path}",
    }
    if resend:
        attributes["http.request.resend_count"] = resend
    if status < 400:
        return attributes, Status.STATUS_CODE_UNSET
    return {**attributes, "error.type": str(status)}, Status.STATUS_CODE_ERROR


def expected_spans(port: int) -> list[tuple[tuple[dict[str, Any], int], ...]]:
    """Return the calls of the demo, each with its attempts, in the order of their starts."""
    created = (call("create_request"), attempt(port, "POST", SHOP, 201))
    return [
        created,
        (
            call("approve", attempts=3, outcome="approved", approved=True),
            attempt(port, "POST", CUSTOMER, 500),
            attempt(port, "POST", CUSTOMER, 500, resend=1),
            attempt(port, "POST", CUSTOMER, 201, resend=2),
        ),
        (call("upload_documents"), attempt(port, "POST", f"{CUSTOMER}/documents", 201)),
        (
            call("complete", attempts=3),
            attempt(port, "PATCH", CUSTOMER, 500),
            attempt(port, "PATCH", CUSTOMER, 500, resend=1),
            attempt(port, "PATCH", CUSTOMER, 200, resend=2),
        ),
        created,
        (call("approve", outcome="refused", approved=False), attempt(port, "POST", CUSTOMER, 422)),
    ]


def attributes_and_status(span: Span) -> tuple[dict[str, Any], int]:
    return plain(span.attributes), span.status.code


def with_attempts(call: Span, spans: list[Span]) -> list[Span]:
    return [call, *(span for span in spans if span.parent_span_id == call.span_id)]


@pytest.mark.parametrize(
    ("base", "path", "compression"), [("", "", "gzip"), ("/", "", "none"), ("/otlp", "/otlp", "none")]
)
def test_demo_exports_each_call_as_a_trace_with_its_attempts(
    monkeypatch: pytest.MonkeyPatch, base: str, path: str, compression: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with collecting() as collector:
        done = run_demo(collector.url + base)
    assert (done.returncode, done.stderr) == (0, "")
    assert {each.headers["content-type"] for each in collector.received} == {"application/x-protobuf"}
    assert {each.headers.get("content-encoding", "none") for each in collector.received} == {compression}
    [resource] = collector.traces(f"{path}/v1/traces").resource_spans
    [scope] = resource.scope_spans
    spans = sorted(scope.spans, key=lambda span: span.start_time_unix_nano)
    calls = [span for span in spans if not span.parent_span_id]
    traces = [with_attempts(span, spans) for span in calls]
    port = port_of(done.stdout)
    assert [tuple(map(attributes_and_status, each)) for each in traces] == expected_spans(port)
    for above, *attempts in traces:
        assert above.name == f"loanasync.{plain(above.attributes)['loanasync.operation']}"
        assert above.kind == Span.SPAN_KIND_INTERNAL
        for below in attempts:
            sent = plain(below.attributes)
            assert below.name == f"{sent['http.request.method']} {sent['url.template']}"
            assert (below.kind, below.trace_id) == (Span.SPAN_KIND_CLIENT, above.trace_id)
            assert above.start_time_unix_nano <= below.start_time_unix_nano
            assert below.end_time_unix_nano <= above.end_time_unix_nano
    assert not [span for span in spans if span.events or span.links or span.status.message]
    assert len({span.trace_id for span in calls}) == len(calls)
    for span in calls:
        assert f"\n          {span.trace_id.hex()} {span.name}\n" in done.stdout
    for signal in ("traces", "metrics"):
        assert f"exported to {collector.url}{path}/v1/{signal}" in done.stdout


@pytest.fixture(scope="module")
def exported() -> tuple[Collector, int]:
    """Return a collector that received a complete demo, and the port of the demo's sandbox."""
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=made-up")
        done = run_demo(collector.url)
    assert (done.returncode, done.stderr) == (0, "")
    return collector, port_of(done.stdout)


def test_demo_export_sends_headers_of_the_environment(exported: tuple[Collector, int]) -> None:
    assert {each.headers["api-key"] for each in exported[0].received} == {"made-up"}


def test_demo_export_names_service_and_scope_in_both_signals(exported: tuple[Collector, int]) -> None:
    [traces] = exported[0].traces().resource_spans
    [metrics] = exported[0].metrics().resource_metrics
    for resource in (traces.resource, metrics.resource):
        attributes = plain(resource.attributes)
        assert attributes["service.name"] == "loanasync-demo"
        assert {name for name in attributes if not name.startswith(("service.", "telemetry.sdk."))} == set()
    for [scoped] in (traces.scope_spans, metrics.scope_metrics):
        assert (scoped.scope.name, scoped.scope.version) == ("loanasync", loanasync.__version__)
        assert scoped.schema_url == "https://opentelemetry.io/schemas/1.40.0"


def metrics_of(collector: Collector) -> dict[str, Metric]:
    [resource] = collector.metrics().resource_metrics
    [scope] = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_demo_exports_metrics_with_kinds_and_units(exported: tuple[Collector, int]) -> None:
    metrics = metrics_of(exported[0])
    assert {name: (metric.unit, metric.WhichOneof("data")) for name, metric in metrics.items()} == {
        "http.client.request.duration": ("s", "histogram"),
        "loanasync.decisions": ("{decision}", "sum"),
        "loanasync.retries": ("{retry}", "sum"),
        "loanasync.circuit.openings": ("{opening}", "sum"),
        "loanasync.inflight": ("{call}", "sum"),
    }
    assert all(metric.description for metric in metrics.values())
    rising = {name: metric.sum.is_monotonic for name, metric in metrics.items() if metric.HasField("sum")}
    assert [name for name, is_rising in rising.items() if not is_rising] == ["loanasync.inflight"]
    kinds = {
        getattr(metric, metric.WhichOneof("data") or "").aggregation_temporality
        for metric in metrics.values()
    }
    assert kinds == {AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE}


def counted(metric: Metric, attribute: str) -> dict[str, int]:
    points = [(plain(point.attributes), point.as_int) for point in metric.sum.data_points]
    assert all(attributes.keys() == {attribute} for attributes, _ in points)
    return {attributes[attribute]: count for attributes, count in points}


def test_demo_counts_decisions_retries_and_calls_in_flight(exported: tuple[Collector, int]) -> None:
    metrics = metrics_of(exported[0])
    decided = counted(metrics["loanasync.decisions"], "loanasync.outcome")
    assert decided == {"approved": 1, "refused": 1, "unknown": 0}
    retried = counted(metrics["loanasync.retries"], "loanasync.operation")
    assert retried == {**dict.fromkeys(OPERATIONS, 0), "approve": 2, "complete": 2}
    flying = counted(metrics["loanasync.inflight"], "loanasync.operation")
    assert flying == dict.fromkeys(OPERATIONS, 0)


def test_demo_measures_attempts_by_the_attributes_of_their_spans(
    exported: tuple[Collector, int],
) -> None:
    collector, port = exported
    points = metrics_of(collector)["http.client.request.duration"].histogram.data_points
    assert all(list(point.explicit_bounds) == BOUNDARIES for point in points)
    assert all(0 < point.sum < point.count * 60 for point in points)
    measured = {frozenset(plain(point.attributes).items()): point.count for point in points}
    assert measured == Counter(
        frozenset((name, value) for name, value in attributes.items() if name not in SPANS_ONLY)
        for _, *attempts in expected_spans(port)
        for attributes, _ in attempts
    )


def test_demo_export_contains_no_personal_data(exported: tuple[Collector, int]) -> None:
    assert len(exported[0].received) == 2
    for received in exported[0].received:
        shown = received.body + repr(received.headers).encode()
        assert [mark for mark in PERSONAL.split() if mark.encode() in shown] == []


@pytest.mark.scheduled  # no part of the demo depends on the process
def test_demo_process_ends_without_a_warning() -> None:
    with collecting() as collector:
        done = run_process(None, "demo", "--otlp", collector.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(collector.received) == 2


def test_unreachable_collector_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_EXPORT_TIMEOUT", 1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = run_demo(url)
    assert done.returncode == 1
    assert done.stderr == (
        f"traces were not exported: no response from {url}/v1/traces within 1 seconds; check that a collector"
        " accepts OTLP over HTTP there (usually port 4318; 4317 is for gRPC)\n"
    )
    assert "the shop receives" in done.stdout, "the demo itself is complete"
    assert "exported to" not in done.stdout


@pytest.mark.parametrize(
    ("signal", "status"), [("traces", 302), ("traces", 401), ("traces", 500), ("metrics", 404)]
)
def test_refusing_collector_prints_one_line(signal: str, status: int) -> None:
    path = f"/v1/{signal}"
    with collecting({path: status}) as collector:
        done = run_demo(collector.url)
    assert done.returncode == 1
    assert done.stderr == f"{signal} were not exported: {collector.url}{path} returned HTTP {status}\n"
    assert len(collector.bodies(path)) == 1, "the request is not repeated"
    assert ("traces    exported to" in done.stdout) is (signal == "metrics")
    assert "metrics   exported to" not in done.stdout


def test_export_to_a_silent_collector_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_EXPORT_TIMEOUT", 0.2)
    recording = Recording()
    recording.tracer_provider.get_tracer("test").start_span("call").end()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        collector = otlp.collector_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(otlp.ExportError, match=r"within 0\.2 seconds; check that a collector"):
            otlp.export(recording, collector, Console(quiet=True))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:4318", "must be a URL such as http://localhost:4318"),
        ("http://", "must be a URL such as"),
        ("http://anna:secret@localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://localhost:4318?key=secret", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://localhost:port", "--otlp"),
        ("http://localhost:4318/v1/traces", "/v1/traces and /v1/metrics are appended"),
        ("http://localhost:4318/v1/metrics/", "/v1/traces and /v1/metrics are appended"),
    ],
)
def test_invalid_collector_url_is_refused_before_the_demo_starts(url: str, message: str) -> None:
    done = run_demo(url)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "secret" not in done.stderr


def test_export_with_disabled_sdk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with collecting() as collector:
        done = run_demo(collector.url)
    assert done.returncode == 1
    assert done.stderr == "nothing was exported, because OTEL_SDK_DISABLED=true is set: unset it\n"
    assert collector.received == []
