"""`loanasync demo --otlp` with the real exporter, and a collector that decodes what it receives.

`test_conformance.py` has the content of all spans and metrics.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rich.console import Console

import loanasync
from loanasync.cli import demo as otlp
from loanasync.cli.demo import Recording
from support.cli import run
from support.otlp_collector import collecting, plain

# Each call of the demo, in the order of their starts, with the statuses of its attempts.
CALLS = [
    ("create_request", [201]),
    ("approve", [500, 500, 201]),
    ("upload_documents", [201]),
    ("complete", [500, 500, 200]),
    ("create_request", [201]),
    ("approve", [422]),
]
METRICS = {
    "http.client.request.duration",
    *(f"loanasync.{name}" for name in ("decisions", "retries", "circuit.openings", "inflight")),
}
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


@pytest.mark.parametrize(
    ("base", "path", "compression"), [("", "", "gzip"), ("/", "", "none"), ("/otlp", "/otlp", "none")]
)
def test_demo_exports_each_call_as_a_trace_with_its_attempts(
    monkeypatch: pytest.MonkeyPatch, base: str, path: str, compression: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=made-up")
    with collecting() as collector:
        done = run_demo(collector.url + base)
    assert (done.returncode, done.stderr, len(collector.received)) == (0, "", 2)
    for received in collector.received:
        names = ("content-type", "content-encoding", "api-key")
        sent = tuple(received.headers.get(name, "none") for name in names)
        assert sent == ("application/x-protobuf", compression, "made-up")
        shown = received.body + repr(received.headers).encode()
        assert [mark for mark in PERSONAL.split() if mark.encode() in shown] == []
    [traces] = collector.traces(f"{path}/v1/traces").resource_spans
    [metrics] = collector.metrics(f"{path}/v1/metrics").resource_metrics
    for resource, [scoped] in (
        (traces.resource, traces.scope_spans),
        (metrics.resource, metrics.scope_metrics),
    ):
        assert plain(resource.attributes)["service.name"] == "loanasync-demo"
        assert (scoped.scope.name, scoped.scope.version) == ("loanasync", loanasync.__version__)
    assert {metric.name for metric in metrics.scope_metrics[0].metrics} == METRICS
    spans = sorted(traces.scope_spans[0].spans, key=lambda span: span.start_time_unix_nano)
    assert [(span.name, statuses_below(span, spans)) for span in spans if not span.parent_span_id] == [
        (f"loanasync.{operation}", statuses) for operation, statuses in CALLS
    ]
    for span in spans:
        if not span.parent_span_id:
            assert f"\n          {span.trace_id.hex()} {span.name}\n" in done.stdout
    for signal in ("traces", "metrics"):
        assert f"exported to {collector.url}{path}/v1/{signal}" in done.stdout


def statuses_below(call: Span, spans: list[Span]) -> list[int]:
    attempts = [span for span in spans if span.parent_span_id == call.span_id]
    assert {span.trace_id for span in attempts} == {call.trace_id}
    return [plain(span.attributes)["http.response.status_code"] for span in attempts]


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


@pytest.mark.parametrize(("signal", "status"), [("traces", 302), ("traces", 500), ("metrics", 404)])
def test_refusing_collector_prints_one_line(signal: str, status: int) -> None:
    path = f"/v1/{signal}"
    with collecting({path: status}) as collector:
        done = run_demo(collector.url)
    message = f"{signal} were not exported: {collector.url}{path} returned HTTP {status}\n"
    assert (done.returncode, done.stderr) == (1, message)
    assert len(collector.bodies(path)) == 1, "the request is not repeated"
    assert re.findall(r"(\w+) +exported to", done.stdout) == ["traces"] * (signal == "metrics")


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
        ("http://anna:secret@localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://localhost:4318?key=secret", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://localhost:port", "--otlp"),
        ("http://localhost:4318/v1/metrics/", "/v1/traces and /v1/metrics are appended"),
    ],
)
def test_invalid_collector_url_is_refused_before_the_demo_starts(url: str, message: str) -> None:
    done = run_demo(url)
    assert (done.returncode, done.stdout) == (2, "")
    assert (message in done.stderr, "secret" in done.stderr) == (True, False)


def test_disabled_sdk_explains_why_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with collecting() as collector:
        done = run_demo(collector.url)
    message = "nothing was exported, because OTEL_SDK_DISABLED=true is set: unset it\n"
    assert (done.returncode, done.stderr, collector.received) == (1, message, [])
    assert done.stdout.endswith("spans: none, OTEL_SDK_DISABLED is set\n")
