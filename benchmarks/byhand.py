"""Hand-written telemetry with the same spans and metrics as the package, and an SDK that records."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Result = TypeVar("Result")
Providers = tuple[TracerProvider, metrics.MeterProvider]

TEMPLATE = "/api/shops/{shopId}/requests/{fiscalCode}"
URL = "https://loans.example.com/api/shops/REDACTED/requests/REDACTED"


class DiscardingExporter(SpanExporter):
    """Discard batches of spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Report success."""
        del spans
        return SpanExportResult.SUCCESS


def recording() -> Providers:
    """Return an SDK as in production: everything sampled, with a batch processor and metrics."""
    tracing = TracerProvider()
    tracing.add_span_processor(BatchSpanProcessor(DiscardingExporter(), max_queue_size=1 << 16))
    return tracing, MeterProvider([InMemoryMetricReader()])


class ByHand:
    """The same two spans, duration metrics and propagation as the package."""

    def __init__(self, providers: Providers) -> None:
        tracing, metering = providers
        self._tracer = tracing.get_tracer("shop")
        meter = metering.get_meter("shop")
        self._calls = meter.create_histogram("loanasync.call.duration")
        self._duration = meter.create_histogram("http.client.request.duration")
        self._inject = TraceContextTextMapPropagator().inject

    async def call(
        self, approve: Callable[[], Awaitable[Result]], approved: Callable[[Result], bool]
    ) -> Result:
        """Run one call within its span."""
        span = self._tracer.start_span("loanasync.approve", attributes={"loanasync.operation": "approve"})
        token = otel_context.attach(trace.set_span_in_context(span))
        attributes: dict[str, str | int] = {"loanasync.operation": "approve", "loanasync.attempts": 1}
        started = time.perf_counter()
        try:
            result = await approve()
            is_approved = approved(result)
            outcome = attributes["loanasync.outcome"] = "approved" if is_approved else "refused"
            span.set_attribute("loanasync.attempts", 1)
            span.set_attribute("loanasync.outcome", outcome)
            span.set_attribute("loanasync.approved", is_approved)
            return result
        finally:
            self._calls.record(time.perf_counter() - started, attributes)
            otel_context.detach(token)
            span.end()

    async def attempt(self, send: Callable[[dict[str, str]], Awaitable[Result]]) -> Result:
        """Send one request within its span, with the headers of the trace."""
        attributes: dict[str, str | int] = {
            "http.request.method": "POST",
            "server.address": "loans.example.com",
            "server.port": 443,
            "url.template": TEMPLATE,
        }
        span = self._tracer.start_span(
            f"POST {TEMPLATE}", kind=SpanKind.CLIENT, attributes={**attributes, "url.full": URL}
        )
        context = trace.set_span_in_context(span)
        headers: dict[str, str] = {}
        self._inject(headers, context)
        token = otel_context.attach(context)
        started = time.perf_counter()
        try:
            result = await send(headers)
            attributes["http.response.status_code"] = 201
            span.set_attribute("http.response.status_code", 201)
            return result
        finally:
            self._duration.record(time.perf_counter() - started, attributes)
            otel_context.detach(token)
            span.end()
