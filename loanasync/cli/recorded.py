"""What the demo's client tells of itself, kept until it is shown and exported."""

from collections.abc import Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON


class Recorded:
    """Spans and metrics of a service called ``loanasync-demo``."""

    service = "loanasync-demo"

    def __init__(self) -> None:
        resource = Resource.create({SERVICE_NAME: self.service})
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(ALWAYS_ON, resource)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader], resource=resource)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended."""
        return self._exporter.get_finished_spans()

    @property
    def calls(self) -> Sequence[ReadableSpan]:
        """Those of whole calls: each is the root of its trace."""
        return [span for span in self.spans if span.parent is None]

    @property
    def metrics(self) -> MetricsData:
        """What was measured until now."""
        return self._reader.get_metrics_data() or MetricsData([])
