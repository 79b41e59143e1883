"""A recorder that keeps spans and metrics in memory."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider
from opentelemetry.util.types import AttributeValue

from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


_DURATIONS = ("http.client.request.duration", "loanasync.queue.duration")
_OURS = (*_DURATIONS, "loanasync.decisions", "loanasync.retries", "loanasync.inflight")


@frozen(kw_only=True)
class Metric:
    """What a metric came to.

    Args:
        sum: A counter's total; for durations the seconds, all together.
        count: How many durations there were; None for a counter, which does not know.

    Example:
        >>> from loanasync.testing import Metric
        >>> Metric(sum=2)
        Metric(sum=2, count=None)
    """

    sum: float
    count: int | None = None


class TelemetryRecorder:
    """Providers of OpenTelemetry that keep everything in memory; make one for each test.

    Hand `tracer_provider` and `meter_provider` to `LoanClient`. It needs opentelemetry-sdk, which is part
    of the extra ``cli``; there is nothing to close.

    Raises:
        ConfigurationError: opentelemetry-sdk is not installed, or switched off in the environment.

    Example:
        >>> from loanasync.testing import TelemetryRecorder, approved, scripted_client, system_error
        >>> recorder = TelemetryRecorder()
        >>> shop = scripted_client(
        ...     system_error(), approved(),
        ...     tracer_provider=recorder.tracer_provider, meter_provider=recorder.meter_provider,
        ... )
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> [call] = recorder.spans("loanasync.approve")
        >>> recorder.attributes(call)["loanasync.attempts"], recorder.metric("loanasync.retries").sum
        (2, 1)
    """

    tracer_provider: TracerProvider
    meter_provider: MeterProvider

    def __init__(self) -> None:
        try:  # imported here, since nothing else needs them
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
                "needs opentelemetry-sdk: pip install opentelemetry-sdk, or 'loanasync[cli]'",
            ) from None
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            # It would record nothing, in silence.
            raise ConfigurationError(
                "OTEL_SDK_DISABLED", "must not be true in tests that use a TelemetryRecorder"
            )
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        # Whatever the environment says of sampling; and no hooks for the end of the process.
        tracer_provider = trace.TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer_provider = tracer_provider
        self.meter_provider = metrics.MeterProvider([self._reader], shutdown_on_exit=False)

    def spans(self, name: str | None = None) -> "tuple[ReadableSpan, ...]":
        """The spans that have ended, in the order in which they did: attempts before their call.

        Args:
            name: Only those of this name, such as ``loanasync.approve``.
        """
        return tuple(span for span in self._exporter.get_finished_spans() if name in (None, span.name))

    @staticmethod
    def attributes(span: "ReadableSpan") -> dict[str, AttributeValue]:
        """A span's attributes, by name."""
        return dict(span.attributes or {})

    def metric(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> Metric:
        """What a metric came to until now.

        Args:
            name: ``loanasync.decisions``, ``loanasync.retries``, ``loanasync.inflight``,
                ``http.client.request.duration`` or ``loanasync.queue.duration`` (seconds), or one of
                your own.
            attributes: Only what was recorded with these, such as ``{"loanasync.outcome": "refused"}``.

        Raises:
            LookupError: Nothing was recorded under this name, and it is none of ours.
        """
        metrics = self._metrics()
        if name not in metrics and name not in _OURS:
            known = ", ".join(sorted({*metrics, *_OURS}))
            raise LookupError(f"no metric is called {name}; there are {known}")
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
