"""A client without providers uses the global ones, even if they are set later."""

import subprocess
import sys

import pytest

# In a separate process, because global providers can be set only once.
PROGRAM = """
import asyncio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from loanasync.testing import approval_request, approved, fiscal_code, scripted_client

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()

def set_up():
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(MeterProvider([reader]))

{steps}
asyncio.run(client.approve(fiscal_code(), approval_request()))
print(*(span.name for span in exporter.get_finished_spans()), sep="\\n")
[resource] = reader.get_metrics_data().resource_metrics
[scope] = resource.scope_metrics
print(*sorted(metric.name for metric in scope.metrics), sep="\\n")
"""
STEPS = ["set_up()", "client = scripted_client(approved())"]


@pytest.mark.parametrize("steps", [STEPS, STEPS[::-1]], ids=["before the client", "after it"])
def test_global_providers_record_calls(steps: list[str]) -> None:
    program = PROGRAM.format(steps="\n".join(steps))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "POST /api/shops/{shopId}/requests/{fiscalCode}",
        "loanasync.approve",
        "http.client.request.duration",
        "loanasync.call.duration",
        "loanasync.circuit.openings",
        "loanasync.inflight",
        "loanasync.orphan.files",
        "loanasync.worker.dead_letters",
        "loanasync.worker.paused",
    ]
