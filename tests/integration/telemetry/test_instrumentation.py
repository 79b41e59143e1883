"""OpenTelemetry's aiohttp instrumentation adds spans to other requests, but not to those of the client."""

import json
import subprocess
import sys

import pytest

from loanasync.sandbox import Sandbox

# In a separate process, because the instrumentation patches aiohttp.
SHOP = """
import asyncio, json, sys
import aiohttp
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

base_url, when, session_of = sys.argv[1:]
exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracing, metering = TracerProvider(), MeterProvider([reader])
tracing.add_span_processor(SimpleSpanProcessor(exporter))
instrument = lambda: AioHttpClientInstrumentor().instrument(tracer_provider=tracing, meter_provider=metering)
if when == "before":
    instrument()
from loanasync import LoanClient
from loanasync.testing import approval_request, fiscal_code
if when == "after":
    instrument()

async def main():
    async with aiohttp.ClientSession() as session:
        async with LoanClient(
            base_url, shop_id="sandbox-shop", auth_token="sandbox-token",
            session=session if session_of == "user" else None,
            tracer_provider=tracing, meter_provider=metering,
        ) as client:
            code = fiscal_code()
            await client.create_request({"fiscalCode": code})
            decision = await client.approve(code, approval_request())
            async with session.get(base_url + "/") as page:
                await page.read()
    finished = exporter.get_finished_spans()
    spans = [(span.instrumentation_scope.name, span.kind.name, span.name) for span in finished]
    [resource] = reader.get_metrics_data().resource_metrics
    durations = {
        scope.scope.name: {metric.name: sum(point.count for point in metric.data.data_points)}
        for scope in resource.scope_metrics
        for metric in scope.metrics if "client" in metric.name
    }
    text = "".join(span.to_json() for span in finished)
    print(json.dumps({"spans": spans, "durations": durations, "leaked": code in text}))

asyncio.run(main())
"""


@pytest.mark.parametrize("session_of", ["client", "user"])
@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_instrumentation_adds_no_spans_to_requests_of_the_client(
    served: Sandbox, when: str, session_of: str
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SHOP, served.base_url, when, session_of]
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    recorded = json.loads(done.stdout)
    own_spans = [(kind, name) for scope, kind, name in recorded["spans"] if scope == "loanasync"]
    stock = [(kind, name) for scope, kind, name in recorded["spans"] if scope != "loanasync"]
    assert own_spans == [
        ("CLIENT", "POST /api/shops/{shopId}/requests"),
        ("INTERNAL", "loanasync.create_request"),
        ("CLIENT", "POST /api/shops/{shopId}/requests/{fiscalCode}"),
        ("INTERNAL", "loanasync.approve"),
    ]
    assert stock == ([] if when == "never" else [("CLIENT", "GET")]), (
        "only the request that the shop sends itself"
    )
    counted = {scope: sum(counts.values()) for scope, counts in recorded["durations"].items()}
    expected = {"loanasync": 2}
    if when != "never":
        expected["opentelemetry.instrumentation.aiohttp_client"] = 1
    assert counted == expected
    assert not recorded["leaked"], "the instrumentation would record the URL with the fiscal code"
