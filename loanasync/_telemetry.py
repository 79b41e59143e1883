"""Spans, metrics, log events and trace headers of calls and attempts, without personal data.

Little work is done here until an OpenTelemetry SDK is configured. Exceptions of the user's samplers,
propagators, processors and log handlers are caught here and logged once per type and location.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from functools import lru_cache, partial
from operator import methodcaller
from time import perf_counter
from typing import TypeAlias, TypeVar, get_args
from weakref import WeakKeyDictionary

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation, get_meter_provider
from opentelemetry.trace import INVALID_SPAN, INVALID_SPAN_CONTEXT, Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from loanasync._forks import ForkSafe
from loanasync._log import is_logged, log, log_event, log_failure
from loanasync._protocol.endpoints import APPROVE, OPERATIONS, SYSTEM_FAULT, Call, CircuitChange
from loanasync._protocol.messages import NoResponse, Response
from loanasync._settings import Propagate, Telemetry
from loanasync._version import __version__
from loanasync.errors import CIRCUIT_CAUSES, CircuitReason, ConfigurationError, LoanError, Outcome

T = TypeVar("T")
Injector: TypeAlias = Callable[[Context], dict[str, str]]

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # of a header (RFC 9110 §5.6.2)
# Headers that a propagator must not set, because they belong to the request itself.
_RESERVED = {
    *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
    *("cookie", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    "x-auth-token",
}


def injector(propagate: Propagate) -> Injector:
    """Return the function that makes the trace headers of an attempt from the context of its span.

    Raises:
        ConfigurationError: The global propagators cannot be loaded.
    """
    if propagate == "off":
        return lambda _: {}
    if propagate == "traceparent":
        # Without baggage, because the service is a third party.
        return partial(_inject_into_dict, TraceContextTextMapPropagator().inject)
    return _global_injector()


def _inject_into_dict(inject: Callable[[dict[str, str], Context], None], context: Context) -> dict[str, str]:
    headers: dict[str, str] = {}
    inject(headers, context)
    return headers


def _global_injector() -> Injector:
    try:
        from opentelemetry import propagate  # noqa: PLC0415  (slow: it searches all installed packages)
    except ValueError:
        problem = (
            "cannot be global: OTEL_PROPAGATORS contains an unknown propagator; install it or remove its name"
        )
        raise ConfigurationError("telemetry.propagate", problem) from None

    def inject(context: Context) -> dict[str, str]:
        headers = _inject_into_dict(propagate.inject, context)
        return {name: value for name, value in headers.items() if _can_be_sent(name, value)}

    return inject


def _can_be_sent(name: object, value: object) -> bool:
    """Return True for a valid header that is not reserved; a propagator of the user's may set anything."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return _NAME.fullmatch(name) is not None and name.lower() not in _RESERVED and value.isprintable()


SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
# Seconds: the boundaries that the semantic conventions recommend for http.client.request.duration.
_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class AttributeCounts:
    """Counts for each value of one attribute, for an observable counter.

    A call only increments `counts[value]`; the SDK calls `observe` when it collects metrics. That is much
    faster than a synchronous counter. `counts[value] += 1` needs no lock: CPython does not switch
    threads within it.
    """

    def __init__(self, attribute: str, values: Iterable[str]) -> None:
        self._attribute = attribute
        # Zero from the start, so that a rate query sees the first increment.
        self.counts: dict[str, int] = dict.fromkeys(values, 0)

    def observe(self, _: CallbackOptions) -> list[Observation]:
        """Return the current counts (called by the SDK)."""
        return [Observation(count, {self._attribute: value}) for value, count in self.counts.items()]


class Metrics:
    """The instruments that all clients of one meter provider share."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("loanasync", __version__, SCHEMA)
        self.duration: Histogram = meter.create_histogram(
            "http.client.request.duration",
            unit="s",
            description="Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.queue: Histogram = meter.create_histogram(
            "loanasync.queue.duration",
            unit="s",
            description="Wait for a slot of max_concurrency; calls that got one at once are not recorded.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.decisions: AttributeCounts = AttributeCounts("loanasync.outcome", _COUNTED)
        self.retries: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
        self.inflight: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
        self.openings: AttributeCounts = AttributeCounts("loanasync.reason", get_args(CircuitReason))
        openings = "Pauses of approvals by the circuit breaker, by reason."
        for name, counts, unit, description in (
            ("loanasync.decisions", self.decisions, "{decision}", "Approvals by outcome."),
            ("loanasync.retries", self.retries, "{retry}", "Attempts after a response with status 500."),
            ("loanasync.circuit.openings", self.openings, "{opening}", openings),
        ):
            meter.create_observable_counter(name, [counts.observe], unit=unit, description=description)
        meter.create_observable_up_down_counter(
            "loanasync.inflight",
            [self.inflight.observe],
            unit="{call}",
            description="Calls in progress, including calls that wait for a slot.",
        )


_metrics_by_provider: WeakKeyDictionary[MeterProvider, Metrics] = WeakKeyDictionary()


_creation = ForkSafe()


def metrics_for(provider: MeterProvider | None) -> Metrics:
    """Return the metrics of a provider; None: of the global one.

    They are created once per provider, since an SDK ignores further instruments of the same name.
    """
    with _creation.lock:
        if provider is None or provider is get_meter_provider():
            return _global_metrics()
        return _metrics(provider)


@lru_cache(maxsize=1)
def _global_metrics() -> Metrics:
    # If no SDK is configured yet, OpenTelemetry connects these instruments to it later.
    return _metrics(get_meter_provider())


def _metrics(provider: MeterProvider) -> Metrics:
    try:
        metrics = _metrics_by_provider.get(provider)
        if metrics is None:
            metrics = _metrics_by_provider[provider] = Metrics(provider)
        return metrics  # noqa: TRY300  (an else block would need a second lookup)
    except TypeError:  # the provider is not hashable, or has no weak references
        return Metrics(provider)


Attributes = dict[str, AttributeValue]

CLAIMED = "claimed"  # the call claimed its ledger entry and sent its own request
_COUNTED = ("approved", "refused", "unknown")  # by loanasync.decisions
_HTTP_ERROR = 400
_NO_HEADERS: Mapping[str, str] = {}  # read only; a MappingProxyType would be slower
_CALLS: dict[str, tuple[str, SpanKind, Attributes]] = {
    operation: (f"loanasync.{operation}", SpanKind.INTERNAL, {"loanasync.operation": operation})
    for operation in OPERATIONS
}


_OPENED = "circuit breaker: open, because %s; after %g s, one approval at a time tries again"


class Instruments:
    """The tracer, the metrics and the propagator of a client.

    They come from the providers that were passed to the client, or from the global ones. No method raises an
    error of the user's providers.
    """

    def __init__(self, settings: Telemetry) -> None:
        self._inject = injector(settings.propagate)
        self.injects_without_span: bool = settings.propagate == "global"  # baggage needs no span
        self._attributes: dict[tuple[str, int | None, str | None], Attributes] = {}
        self._attempts: dict[str, tuple[str, Attributes]] = {}
        self.tracer: trace.Tracer = trace.get_tracer(
            "loanasync", __version__, settings.tracer_provider, SCHEMA
        )
        self._is_proxy = isinstance(self.tracer, trace.ProxyTracer)  # a global provider may be set later
        self.metrics: Metrics = metrics_for(settings.meter_provider)

    def span(self, name: str, kind: SpanKind, attributes: Attributes, context: Context) -> Span:
        """Start a span whose parent is in `context`; `INVALID_SPAN` means that tracing is off."""
        # While no global provider is set, this shortcut is three times as fast as the proxy tracer. It reads
        # a private name, because `get_tracer_provider` reads the environment each time.
        if self._is_proxy and getattr(trace, "_TRACER_PROVIDER", ...) is None and not context:
            return INVALID_SPAN
        # A copy of the attributes, because a sampler may change them.
        off: Span = INVALID_SPAN
        span = _safe(self.tracer.start_span, name, context, kind, dict(attributes), default=off)
        return _span_of_caller(context) if span is INVALID_SPAN else span

    def attempt_span(self, call: Call, number: int, context: Context) -> Span:
        """Start the span of attempt `number` of a call. Most of its attributes are the same for all calls."""
        endpoint = call.endpoint
        try:
            name, attributes = self._attempts[endpoint.operation]
        except KeyError:
            name = f"{endpoint.method} {endpoint.template}"
            attributes = {**self.attributes(call, None, None), "url.full": call.redacted_url}
            self._attempts[endpoint.operation] = name, attributes
        if number > 1:
            attributes = {**attributes, "http.request.resend_count": number - 1}
        return self.span(name, SpanKind.CLIENT, attributes, context)

    def headers(self, context: Context) -> dict[str, str]:
        """Return the trace headers for the span in `context`."""
        return _safe(self._inject, context, default={})

    def report_circuits(self, changes: Iterable[CircuitChange], span: Span) -> None:
        """Report the circuits that a call has opened and closed: by a metric, a span event and a log line."""
        for reason, pause in changes:
            self.metrics.openings.counts[reason] += pause > 0
            event = "opened" if pause else "closed"
            attributes = {"loanasync.reason": reason}
            _safe(span.add_event, f"loanasync.circuit.{event}", attributes, default=None)
            if pause:
                log(logging.WARNING, _OPENED, CIRCUIT_CAUSES[reason], pause)
            else:
                log(logging.WARNING, "circuit breaker: closed, because the service has decided")

    def attributes(self, call: Call, status: int | None, error_type: str | None) -> Attributes:
        """Return the attributes of an attempt by the semantic conventions, without those that are None.

        They are cached by operation, status and error type. The address is the same for all calls of a client
        and its copies.
        """
        endpoint = call.endpoint
        key = (endpoint.operation, status, error_type)
        try:
            return self._attributes[key]
        except KeyError:
            kept = _without_none(
                {
                    "http.request.method": endpoint.method,
                    "server.address": call.shop.host,
                    "server.port": call.shop.port,
                    "url.template": endpoint.template,
                    "http.response.status_code": status,
                    "error.type": error_type,
                }
            )
            return self._attributes.setdefault(key, kept)


def _without_none(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _span_of_caller(context: Context) -> Span:
    """Return a span that keeps the caller's trace and records nothing. A tracer of an old API does not."""
    span_context = trace.get_current_span(context).get_span_context()
    return trace.NonRecordingSpan(span_context) if span_context.is_valid else INVALID_SPAN


_GET_CONTEXT, _IS_RECORDING, _END = map(methodcaller, ("get_span_context", "is_recording", "end"))


def _safe(function: Callable[..., T], *arguments: object, default: T) -> T:
    """Return the result of code of the user's providers and propagators, or a default if it fails."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  (for example of a sampler or a processor)
        log_failure(error)
        return default


class CallTelemetry:
    """Records one call: an INTERNAL span, the parent of the spans of its attempts, metrics and a log event.

    Creating it begins the call. `Run` sets what is known of the call; `end` records everything. `trace_id` is
    the id of the trace in hexadecimal, if tracing is on.
    """

    # Class attributes for values that most calls do not set: creating an object is then faster.
    trace_id: str | None = None
    span: Span = INVALID_SPAN
    context: Context | None = None  # with `span`, if tracing is on
    attempts = 0
    stopped_by: str | None = None  # the reason for making no further attempt after a 500
    outcome: Outcome | None = None  # a refusal is not an error: the status of the span stays unset
    _ledger: str | None = None
    _token: Token[Context] | None = None

    def __init__(self, instruments: Instruments, call: Call) -> None:
        self.instruments = instruments
        self.call = call
        self._started = perf_counter()
        operation = call.endpoint.operation
        context = get_current()
        span = instruments.span(*_CALLS[operation], context)
        if span is not INVALID_SPAN:
            self.span = span
            ids = _safe(_GET_CONTEXT, span, default=INVALID_SPAN_CONTEXT)
            self.trace_id = trace.format_trace_id(ids.trace_id) if ids.is_valid else None
            self.context = set_span_in_context(span, context)
            self._token = attach(self.context)
        # At the end: if an error is raised here, `end` is not called.
        instruments.metrics.inflight.counts[operation] += 1

    def set_queue_time(self, seconds: float, error_type: str | None) -> None:
        """Record the time that the call waited for a slot, and the error if none became free."""
        attributes = {"loanasync.operation": self.call.endpoint.operation}
        if error_type is not None:
            attributes["error.type"] = error_type
        _safe(self.instruments.metrics.queue.record, seconds, attributes, default=None)

    def set_ledger_result(self, result: str) -> None:
        """Set the result of the ledger or the memory: the attribute `loanasync.ledger`.

        With a ledger or a memory, a decision is counted only by the call that sent the request.
        """
        self._ledger = result

    def link(self, span: Span | None) -> None:
        """Link the span to that of the call whose request this call shares."""
        if self._token is not None and span is not None and span is not INVALID_SPAN:
            _safe(lambda: self.span.add_link(span.get_span_context()), default=None)

    def end(
        self,
        error: BaseException | None,
        entry: str | None = None,
        changes: Iterable[CircuitChange] = (),
        *,
        may_be_evaluated: bool = False,
    ) -> None:
        """Record the end of the call.

        Args:
            error: The error that it raises.
            entry: The key of its ledger entry.
            changes: The circuits that it has opened and closed.
            may_be_evaluated: A request may have reached the service.
        """
        metrics, endpoint = self.instruments.metrics, self.call.endpoint
        metrics.inflight.counts[endpoint.operation] -= 1
        if error is not None and endpoint is APPROVE:
            may_be: Outcome = "unknown" if may_be_evaluated else "not_sent"  # usually cancelled
            self.outcome = error.outcome if isinstance(error, LoanError) else may_be
        if self.outcome in _COUNTED and self._ledger in (None, CLAIMED):
            metrics.decisions.counts[self.outcome] += 1
        try:
            # A cancelled call did not fail: CancelledError is not a subclass of Exception.
            failure = type(error).__name__ if isinstance(error, Exception) else None
            level = logging.WARNING if failure or self.outcome == "unknown" else logging.INFO
            if is_logged(level):
                end = failure or ("cancelled" if error is not None else self.outcome or "done")
                self._log(level, end, entry)
            if self._token is not None and _safe(_IS_RECORDING, self.span, default=False):
                self._describe(failure)
            if changes:
                self.instruments.report_circuits(changes, self.span)
        except Exception as failed:  # noqa: BLE001  (of the user's span or processor)
            log_failure(failed)
        finally:  # also if a handler or processor raises SystemExit or KeyboardInterrupt
            if self._token is not None:
                detach(self._token)
                _safe(_END, self.span, default=None)

    def _log(self, level: int, end: str, entry: str | None) -> None:
        log_event(
            level,
            "%(operation)s: %(end)s, attempts: %(attempts)d, %(duration).3f s",
            operation=self.call.endpoint.operation,
            end=end,
            attempts=self.attempts,
            duration=perf_counter() - self._started,
            outcome=self.outcome,
            stopped_by=self.stopped_by,
            trace_id=self.trace_id,
            entry=entry,
        )

    def _describe(self, failure: str | None) -> None:
        is_decided = self.outcome in ("approved", "refused")
        attributes = {
            "loanasync.attempts": self.attempts,
            "loanasync.outcome": self.outcome,
            "loanasync.approved": self.outcome == "approved" if is_decided else None,
            "loanasync.stopped_by": self.stopped_by,
            "loanasync.ledger": self._ledger,
            "error.type": failure,
        }
        if failure is not None:
            self.span.set_status(trace.Status(trace.StatusCode.ERROR))
        self.span.set_attributes(_without_none(attributes))


class AttemptTelemetry:
    """Records one attempt: a CLIENT span by the stable HTTP conventions, its duration and a log event.

    Creating it begins the attempt, `end` ends it. `headers` are the trace headers to send.

    Args:
        parent: The telemetry of the call.
        number: Number of the attempt, counted from 1.
    """

    # Class attributes for values that most attempts do not set, as in `CallTelemetry`.
    headers: Mapping[str, str] = _NO_HEADERS
    _span: Span | None = None
    _token: Token[Context] | None = None

    def __init__(self, parent: CallTelemetry, number: int) -> None:
        self._parent = parent
        parent.attempts = number
        instruments, context = parent.instruments, parent.context
        if number > 1:
            instruments.metrics.retries.counts[parent.call.endpoint.operation] += 1
        # If the span of the call is not sampled, the attempts have no spans.
        if context is not None and _safe(_IS_RECORDING, parent.span, default=False):
            self._span = instruments.attempt_span(parent.call, number, context)
            context = set_span_in_context(self._span, context)
            self._token = attach(context)
        if context is not None:
            self.headers = instruments.headers(context)
        elif instruments.injects_without_span:
            self.headers = instruments.headers(get_current())
        self._started = perf_counter()

    def end(self, response: Response | NoResponse | None, entry: str | None = None) -> None:
        """Record the end of the attempt.

        Args:
            response: The response, or the reason why none arrived. None: the attempt was cancelled; its
                duration is not recorded.
            entry: The key of the call's ledger entry.
        """
        duration = perf_counter() - self._started
        status: int | None = None
        error_type: str | None = None
        try:
            if isinstance(response, Response):
                status = response.status
                if status >= _HTTP_ERROR:
                    error_type = str(status)
                elif response.fault is not None:
                    error_type = f"body {response.fault}"
            elif response is not None:
                error_type = response.cause_type
            if self._span is not None:
                _describe_attempt(self._span, status, error_type)
            if response is not None:
                parent = self._parent
                attributes = parent.instruments.attributes(parent.call, status, error_type)
                parent.instruments.metrics.duration.record(duration, attributes)
                is_expected = status is not None and status < SYSTEM_FAULT
                level = logging.DEBUG if is_expected else logging.WARNING
                if is_logged(level):
                    self._log(level, duration, status, error_type, entry)
        except Exception as failed:  # noqa: BLE001  (of the user's metric reader, span or handler)
            log_failure(failed)
        finally:  # as in `CallTelemetry.end`
            if self._token is not None and self._span is not None:
                detach(self._token)
                _safe(_END, self._span, default=None)

    def _log(
        self, level: int, duration: float, status: int | None, error_type: str | None, entry: str | None
    ) -> None:
        parent = self._parent
        log_event(
            level,
            "%(operation)s: attempt %(attempt)d: %(end)s, %(duration).3f s",
            operation=parent.call.endpoint.operation,
            end=error_type or status,
            attempt=parent.attempts,
            duration=duration,
            status=status,
            error_type=error_type,
            trace_id=parent.trace_id,
            entry=entry,
        )


def _describe_attempt(span: Span, status: int | None, error_type: str | None) -> None:
    if status is not None:
        span.set_attribute("http.response.status_code", status)
    if error_type is not None:
        span.set_attribute("error.type", error_type)
        span.set_status(trace.Status(trace.StatusCode.ERROR))
