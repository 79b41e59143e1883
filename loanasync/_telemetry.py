"""One span for each call and one for each attempt, four metrics, and nothing personal in any of them."""

from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from opentelemetry import context as otel_context
from opentelemetry import propagate as otel_propagate
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    format_trace_id,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from loanasync._calls import Call
from loanasync._configuration import release
from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from contextvars import Token

__all__ = ["AttemptSpan", "CallSpan", "Propagate", "Telemetry"]

Propagate = Literal["traceparent", "global", "off"]
Attributes = dict[str, str | int | bool]

_SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
# Seconds, as the HTTP conventions advise for http.client.request.duration.
_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_HTTP_ERROR = 400

try:  # private, and the only way to tell other instrumentation that this request has its span
    from opentelemetry.context import (
        _SUPPRESS_HTTP_INSTRUMENTATION_KEY as _SUPPRESS,
    )
except ImportError:  # pragma: no cover  (a later API may drop it: double spans, and nothing worse)
    _SUPPRESS = otel_context.create_key("loanasync")


def _nothing(carrier: dict[str, str], context: Context) -> None:
    """Propagate nothing."""


_INJECT: dict[Propagate, Callable[..., None]] = {
    "traceparent": TraceContextTextMapPropagator().inject,  # no baggage: it goes to a third party
    "global": otel_propagate.inject,
    "off": _nothing,
}


class _Instruments:
    """The four metrics of a provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("loanasync", release("loanasync"), _SCHEMA)
        self.duration = meter.create_histogram(
            "http.client.request.duration",
            unit="s",
            description="Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.queue = meter.create_histogram(
            "loanasync.queue.duration",
            unit="s",
            description="Time that calls waited for a place among the concurrent ones.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.decisions = meter.create_counter(
            "loanasync.decisions", unit="{decision}", description="Approvals by outcome."
        )
        self.retries = meter.create_counter(
            "loanasync.retries", unit="{retry}", description="Attempts that follow a 500."
        )


@lru_cache(maxsize=1)
def _global_instruments(provider: MeterProvider) -> _Instruments:
    # Until an SDK is set up, the API's provider keeps every meter for ever: clients share theirs.
    return _Instruments(provider)


class Telemetry:
    """The instruments of a client, from the providers it was given or the global ones."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        propagate: Propagate,
    ) -> None:
        if propagate not in _INJECT:
            raise ConfigurationError("propagate", f"must be one of {', '.join(_INJECT)}")
        self.inject = _INJECT[propagate]
        self.tracer = get_tracer("loanasync", release("loanasync"), tracer_provider, _SCHEMA)
        self.metrics = (
            _global_instruments(get_meter_provider())
            if meter_provider is None
            else _Instruments(meter_provider)
        )

    def call(self, call: Call) -> "CallSpan":
        """Begin a call's span; enter it to make it the current one."""
        return CallSpan(self, call)


class CallSpan:
    """The INTERNAL span of a call, the parent of its attempts."""

    def __init__(self, telemetry: Telemetry, call: Call) -> None:
        self._telemetry = telemetry
        self._call = call
        self._span: Span = telemetry.tracer.start_span(
            f"loanasync.{call.endpoint.operation}", kind=SpanKind.INTERNAL
        )
        self._token: Token[Context] | None = None

    @property
    def trace_id(self) -> str | None:
        """The trace's id in hex, if there is a trace."""
        context = self._span.get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else None

    def attempt(self, number: int) -> "AttemptSpan":
        """Begin the span of the call's attempt with this number, counted from 1."""
        if number > 1:
            self._telemetry.metrics.retries.add(1, {"loanasync.operation": self._call.endpoint.operation})
        return AttemptSpan(self._telemetry, self._call, number)

    def queued(self, seconds: float, error_type: str | None) -> None:
        """Say how long the call waited for its place, and with what error if it got none."""
        attributes = {"loanasync.operation": self._call.endpoint.operation}
        if error_type is not None:
            attributes["error.type"] = error_type
        self._telemetry.metrics.queue.record(seconds, attributes)

    def ended(self, attempts: int, stopped_by: str | None) -> None:
        """Say how many attempts an answer took, and what ended them."""
        if self._span.is_recording():
            self._span.set_attribute("loanasync.attempts", attempts)
            if stopped_by is not None:
                self._span.set_attribute("loanasync.stopped_by", stopped_by)

    def decided(self, *, approved: bool) -> None:
        """Say what the decision is; a refusal is an answer, so the span's status stays unset."""
        self._telemetry.metrics.decisions.add(1, {"loanasync.outcome": "approved" if approved else "refused"})
        if self._span.is_recording():
            self._span.set_attribute("loanasync.approved", approved)

    def __enter__(self) -> Self:
        self._token = otel_context.attach(set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        # A cancelled call did not fail, it was given up: CancelledError is no Exception.
        if isinstance(error, Exception) and self._span.is_recording():
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class AttemptSpan:
    """The CLIENT span of one HTTP request, by the stable conventions for HTTP clients."""

    def __init__(self, telemetry: Telemetry, call: Call, number: int) -> None:
        self._telemetry = telemetry
        self._attributes: Attributes = {
            "http.request.method": call.endpoint.method,
            "server.address": call.shop.host,
            "server.port": call.shop.port,
            "url.template": call.endpoint.template,
        }
        attributes = {**self._attributes, "url.full": call.redacted_url}
        if number > 1:
            attributes["http.request.resend_count"] = number - 1
        self._span: Span = telemetry.tracer.start_span(
            f"{call.endpoint.method} {call.endpoint.template}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
        )
        self._token: Token[Context] | None = None
        self._started = 0.0
        self.headers: dict[str, str] = {}

    def answered(self, status: int, fault: str | None = None) -> None:
        """Say with which status the attempt was answered; 4xx, 5xx and half a body are its errors."""
        self._attributes["http.response.status_code"] = status
        if status >= _HTTP_ERROR:
            self._failed(str(status))
        elif fault is not None:
            self._failed(f"body {fault}")
        if self._span.is_recording():
            self._span.set_attribute("http.response.status_code", status)

    def unanswered(self, cause_type: str) -> None:
        """Say that no answer came, and why."""
        self._failed(cause_type)

    def _failed(self, error_type: str) -> None:
        self._attributes["error.type"] = error_type
        if self._span.is_recording():
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(Status(StatusCode.ERROR))

    def __enter__(self) -> Self:
        context = set_span_in_context(self._span)
        self._telemetry.inject(self.headers, context=context)
        self._token = otel_context.attach(otel_context.set_value(_SUPPRESS, value=True, context=context))
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
        if error is None:  # a request that was given up has no duration worth counting
            self._telemetry.metrics.duration.record(perf_counter() - self._started, self._attributes)
        self._span.end()
