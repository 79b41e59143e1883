"""A recorder that keeps spans and metrics in memory."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from loanasync._models.classes import LazyModule
from loanasync._settings import Telemetry
from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk import trace as sdk
else:
    sdk = LazyModule("opentelemetry.sdk.trace")

_DURATIONS = ("http.client.request.duration", "loanasync.call.duration")
_COUNTS = (
    *("loanasync.circuit.openings", "loanasync.inflight", "loanasync.orphan.files"),
    *("loanasync.worker.backlog", "loanasync.worker.dead_letters", "loanasync.worker.paused"),
)
_CLIENT_METRICS = (*_DURATIONS, *_COUNTS)


@frozen(kw_only=True)
class Metric:
    """The value of a metric.

    Args:
        sum: The total of a counter, or the sum of recorded durations in seconds.
        count: The number of recorded durations; None for a counter.

    Example:
        >>> from loanasync.testing import Metric
        >>> Metric(sum=2)
        Metric(sum=2, count=None)
    """

    sum: float
    count: int | None = None


class TelemetryRecorder:
    """OpenTelemetry providers that keep spans and metrics in memory; create one for each test.

    Pass `telemetry` to `LoanClient`. The recorder needs opentelemetry-sdk, which the extra ``cli`` installs,
    and need not be closed.

    Raises:
        ConfigurationError: opentelemetry-sdk is not installed, or the environment disables it.

    Example:
        >>> from loanasync.testing import TelemetryRecorder, approved, scripted_client, system_error
        >>> recorder = TelemetryRecorder()
        >>> shop = scripted_client(system_error(), approved(), telemetry=recorder.telemetry)
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> [call] = recorder.spans("loanasync.approve")
        >>> recorder.attributes(call)["loanasync.attempts"]
        2
        >>> recorder.metric("loanasync.call.duration", {"loanasync.outcome": "approved"}).count
        1
    """

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    telemetry: Telemetry  # the setting of a client with these providers

    def __init__(self) -> None:
        try:  # imported here, because opentelemetry-sdk is optional
            from opentelemetry.sdk import metrics, trace  # noqa: PLC0415
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415
                InMemorySpanExporter,
            )
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                "TelemetryRecorder",
                "needs opentelemetry-sdk: pip install opentelemetry-sdk, or '.[cli]' in a checkout",
            ) from None
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            # The SDK would silently record nothing.
            raise ConfigurationError(
                "OTEL_SDK_DISABLED", "must not be true: the spans and metrics would be empty"
            )
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        # Record all spans, even if the environment sets another sampler, and register no atexit handlers.
        tracer_provider = trace.TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer_provider = tracer_provider
        self.meter_provider = metrics.MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    def spans(self, name: str | None = None) -> "tuple[sdk.ReadableSpan, ...]":
        """Return the ended spans in the order of their ends; attempts end before their call.

        Args:
            name: Return only spans of this name, such as ``loanasync.approve``.
        """
        return tuple(span for span in self._exporter.get_finished_spans() if name in (None, span.name))

    @staticmethod
    def attributes(span: "sdk.ReadableSpan") -> dict[str, Any]:
        """Return the attributes of a span."""
        return dict(span.attributes or {})

    def metric(self, name: str, attributes: Mapping[str, object] | None = None) -> Metric:
        """Return the current value of a metric.

        Args:
            name: Name of a metric of the package, such as ``loanasync.call.duration`` (seconds), or of
                another metric that was recorded with the provider.
            attributes: Include only values recorded with these attributes, such as
                ``{"loanasync.outcome": "refused"}``.

        Raises:
            LookupError: There is no metric of this name.
        """
        metrics = self._metrics()
        if name not in metrics and name not in _CLIENT_METRICS:
            known = ", ".join(sorted({*metrics, *_CLIENT_METRICS}))
            raise LookupError(f"no metric has the name {name}; use one of {known}")
        wanted = (attributes or {}).items()
        points = [point for point in metrics.get(name, ()) if wanted <= dict(point.attributes).items()]
        if name in _DURATIONS or any(hasattr(point, "count") for point in points):
            return Metric(sum=sum(each.sum for each in points), count=sum(each.count for each in points))
        return Metric(sum=sum(each.value for each in points))

    def _metrics(self) -> dict[str, tuple[Any, ...]]:
        data = self._reader.get_metrics_data()
        return {
            metric.name: tuple(metric.data.data_points)
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
