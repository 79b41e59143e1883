"""Spans, metrics, log events and trace headers of calls and attempts, without personal data.

Little work is done here until an OpenTelemetry SDK is configured. Exceptions of the user's samplers,
propagators, processors and log handlers are caught here and logged once per type and location.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from functools import lru_cache
from operator import methodcaller
from time import perf_counter
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation, get_meter_provider
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context
from opentelemetry.util.types import AttributeValue

from loanasync import __version__
from loanasync._models.classes import ForkSafe
from loanasync._protocol.endpoints import OPERATIONS, SYSTEM_FAULT, Call
from loanasync._protocol.messages import NoResponse, Response
from loanasync._settings import Propagate, Telemetry
from loanasync._telemetry.log import USER_ERRORS, is_logged, log, log_event, log_failure
from loanasync.errors import CIRCUIT_CAUSE, ConfigurationError, LoanError, Outcome

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Injector: TypeAlias = Callable[[Span, Context], dict[str, str]]

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # of a header (RFC 9110 §5.6.2)
# Headers that a propagator must not set, because they belong to the request itself.
_RESERVED = {
    *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
    *("cookie", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    "x-auth-token",
}


def injector(propagate: Propagate) -> Injector:
    """Return the function that makes the trace headers of an attempt from its span and the call's context.

    Raises:
        ConfigurationError: The global propagators cannot be loaded.
    """
    if propagate == "off":
        return lambda _, __: {}
    # Without baggage, because the service is a third party.
    return _traceparent if propagate == "traceparent" else _global_injector()


def _traceparent(span: Span, _: Context) -> dict[str, str]:
    """Return the headers of W3C Trace Context; this takes half the calls of OpenTelemetry's propagator."""
    ids = span.get_span_context()
    if not ids.is_valid:
        return {}
    headers = {"traceparent": f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}"}
    if state := ids.trace_state:
        headers["tracestate"] = state.to_header()
    return headers


def _global_injector() -> Injector:
    try:
        from opentelemetry import propagate  # noqa: PLC0415  (slow: it searches all installed packages)
    except ValueError:
        problem = (
            "cannot be global: OTEL_PROPAGATORS contains an unknown propagator; install it or remove its name"
        )
        raise ConfigurationError("telemetry.propagate", problem) from None

    def inject(span: Span, context: Context) -> dict[str, str]:
        headers: dict[str, str] = {}
        propagate.inject(headers, set_span_in_context(span, context))
        return {name: value for name, value in headers.items() if _can_be_sent(name, value)}

    return inject


def _can_be_sent(name: object, value: object) -> bool:
    """Return True for a valid header that is not reserved; a propagator of the user's may set anything."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return _NAME.fullmatch(name) is not None and name.lower() not in _RESERVED and value.isprintable()


SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
# Seconds: the boundaries that the semantic conventions recommend for http.client.request.duration. Calls have
# the same, so that both can be compared.
_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class AttributeCounts:
    """Counts for each value of one attribute, for an observable instrument.

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
        return [Observation(count, {self._attribute: value}) for value, count in list(self.counts.items())]


# Unit and description of the metrics that are counts.
_UNITS = {
    "loanasync.circuit.openings": ("{opening}", "Pauses of approvals by the circuit breaker."),
    "loanasync.orphan.files": (
        "{file}",
        "Orphan files, written because the ledger could not store a response.",
    ),
    "loanasync.worker.dead_letters": ("{message}", "Messages that became dead letters."),
    "loanasync.worker.paused": ("{task}", "Tasks that are paused in this worker."),
    "loanasync.worker.backlog": (
        "{message}",
        "Messages in the queue that are not finished, as a worker last saw them.",
    ),
    "loanasync.inflight": ("{call}", "Calls in progress, including calls that wait for a slot."),
}


class Metrics:
    """The instruments that all clients of one meter provider share."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("loanasync", __version__, SCHEMA)
        calls, attempts = (
            meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=_BOUNDARIES
            )
            for name, description in (
                ("loanasync.call.duration", "Duration of calls, however they end."),
                ("http.client.request.duration", "Duration of HTTP client requests."),
            )
        )
        self.calls: Histogram = calls
        self.attempts: Histogram = attempts
        self.inflight: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
        self.backlog: AttributeCounts = AttributeCounts("messaging.destination.name", ())
        # Zero from the start, so that a rate query sees the first increment.
        self.openings = self.orphan_files = self.dead_letters = self.paused_tasks = 0
        counter, sum_now = meter.create_observable_counter, meter.create_observable_up_down_counter
        gauge = meter.create_observable_gauge  # not a sum: each worker states the number of the whole queue
        for create, name, read in (
            (counter, "loanasync.circuit.openings", lambda _: [Observation(self.openings)]),
            (counter, "loanasync.orphan.files", lambda _: [Observation(self.orphan_files)]),
            (counter, "loanasync.worker.dead_letters", lambda _: [Observation(self.dead_letters)]),
            (sum_now, "loanasync.worker.paused", lambda _: [Observation(self.paused_tasks)]),
            (gauge, "loanasync.worker.backlog", self.backlog.observe),
            (sum_now, "loanasync.inflight", self.inflight.observe),
        ):
            create(name, [read], *_UNITS[name])


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
_HTTP_ERROR = 400
_NO_HEADERS: Mapping[str, str] = {}  # read only; a MappingProxyType would be slower
_SPAN_NAMES = {operation: f"loanasync.{operation}" for operation in OPERATIONS}


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
        # A global provider may be set later.
        self.is_proxy: bool = isinstance(self.tracer, trace.ProxyTracer)
        self.metrics: Metrics = metrics_for(settings.meter_provider)

    def span(self, name: str, kind: SpanKind, attributes: Attributes, context: Context) -> Span:
        """Start a span whose parent is in `context`; `INVALID_SPAN` means that tracing is off."""
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

    def headers(self, span: Span, context: Context) -> dict[str, str]:
        """Return the trace headers for a span whose parent is in `context`."""
        return _safe(self._inject, span, context, default={})

    def not_begun(self, operation: str, error: E) -> E:
        """Record a call that ends before it begins, and so has no `CallTelemetry`. Return its error."""
        outcome: Outcome = error.outcome if isinstance(error, LoanError) else "not_sent"
        failure = type(error).__name__ if isinstance(error, Exception) else None
        labels, _ = _end_of_call(operation, outcome, failure, 0, None, None)
        _safe(self.metrics.calls.record, 0.0, labels, default=None)
        return error

    def report_pause(self, pause: float, span: Span) -> None:
        """Report that a call has opened the circuit breaker for a pause, or closed it (0)."""
        event = "opened" if pause else "closed"
        _safe(span.add_event, f"loanasync.circuit.{event}", default=None)
        if pause:
            self.metrics.openings += 1
            log(logging.WARNING, _OPENED, CIRCUIT_CAUSE, pause)
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


@lru_cache(maxsize=1024)
def _end_of_call(
    operation: str,
    outcome: Outcome | None,
    error_type: str | None,
    attempts: int,
    stopped_by: str | None,
    ledger: str | None,
) -> tuple[Attributes, Attributes]:
    """Return the attributes of `loanasync.call.duration` and of the span for the end of a call."""
    common: dict[str, AttributeValue | None] = {
        "loanasync.operation": operation,
        "loanasync.outcome": outcome,
        "loanasync.attempts": attempts,
        "error.type": error_type,
    }
    of_span = {
        "loanasync.approved": outcome == "approved" if outcome in ("approved", "refused") else None,
        "loanasync.stopped_by": stopped_by,
        "loanasync.ledger": ledger,
    }
    return _without_none(common), _without_none(common | of_span)


@lru_cache(maxsize=1024)
def _end_of_attempt(status: int | None, error_type: str | None) -> Attributes:
    """Return the attributes of the span for the end of an attempt."""
    return _without_none({"http.response.status_code": status, "error.type": error_type})


def _span_of_caller(context: Context) -> Span:
    """Return a span that keeps the caller's trace and records nothing. A tracer of an old API does not."""
    span_context = trace.get_current_span(context).get_span_context()
    return trace.NonRecordingSpan(span_context) if span_context.is_valid else INVALID_SPAN


_ERROR = trace.Status(trace.StatusCode.ERROR)
# The attribute of a global histogram that is None until an SDK is configured; a call then skips the rest.
# If a later OpenTelemetry renames it, nothing is skipped.
_REAL = "_real_instrument"
_END = methodcaller("end")


def _safe(function: Callable[..., T], *arguments: object, default: T) -> T:
    """Return the result of code of the user's providers and propagators, or a default if it fails."""
    try:
        return function(*arguments)
    except USER_ERRORS as error:  # for example of a sampler or a processor
        log_failure(error)
        return default


class CallTelemetry:
    """Records a call and its attempts.

    Of the call: an INTERNAL span, the parent of the spans of its attempts, its duration and a log event. Of
    each attempt: a CLIENT span by the stable HTTP conventions, its duration and a log event.

    Creating it begins the call. `Run` sets what is known of the call; `end` records everything. `trace_id` is
    the id of the trace in hexadecimal, if tracing is on. `headers` are the trace headers of the attempt.
    """

    # Class attributes for values that most calls do not set: creating an object is then faster.
    trace_id: str | None = None
    span: Span = INVALID_SPAN
    context: Context | None = None  # with `span`, if tracing is on
    is_recording: bool = False  # the span is recorded, and so are those of the attempts
    attempts: int = 0
    headers: Mapping[str, str] = _NO_HEADERS
    stopped_by: str | None = None  # the reason for making no further attempt after a 500
    # A refusal is not an error: the status of the span stays unset. None: the call joined a request that was
    # not sent, and begins again.
    outcome: Outcome | None = None
    _ledger: str | None = None
    _token: Token[Context] | None = None
    _attempt_started: float = 0.0
    attempt_span: Span | None = None
    _attempt_context: Context | None = None  # with `attempt_span`
    _attempt_token: Token[Context] | None = None

    def __init__(self, instruments: Instruments, call: Call) -> None:
        self.instruments = instruments
        self.call = call
        self._started = perf_counter()
        operation = call.endpoint.operation
        context = get_current()
        span: Span = INVALID_SPAN
        # While no global provider is set, this is three times as fast as the proxy tracer. It reads a private
        # name, because `get_tracer_provider` reads the environment each time.
        if context or not instruments.is_proxy or getattr(trace, "_TRACER_PROVIDER", ...) is not None:
            span = instruments.span(_SPAN_NAMES[operation], SpanKind.INTERNAL, {}, context)
        if span is not INVALID_SPAN:
            self.span = span
            try:
                ids = span.get_span_context()
                self.trace_id = f"{ids.trace_id:032x}" if ids.is_valid else None
                self.is_recording = span.is_recording()
            except USER_ERRORS as error:  # of the user's span
                log_failure(error)
            self.context = set_span_in_context(span, context)
            self._token = attach(self.context)

    def set_ledger_result(self, result: str) -> None:
        """Set the result of the ledger or the memory: the attribute `loanasync.ledger`."""
        self._ledger = result

    def link(self, span: Span | None) -> None:
        """Link the span to that of the call whose request this call shares."""
        if self._token is not None and span is not None and span is not INVALID_SPAN:
            _safe(lambda: self.span.add_link(span.get_span_context()), default=None)

    def begin_attempt(self, number: int, *, is_current: bool = False) -> None:
        """Begin an attempt.

        Args:
            number: Number of the attempt, counted from 1.
            is_current: Make its span the current one, because code of the user may look at it.
        """
        self.attempts = number
        instruments, context, span = self.instruments, self.context, self.span
        if context is not None:
            if self.is_recording:  # if the span of the call is not sampled, the attempts have no spans
                span = self.attempt_span = instruments.attempt_span(self.call, number, context)
                self._attempt_context = set_span_in_context(span, context)
                if is_current:
                    self._attempt_token = attach(self._attempt_context)
            self.headers = instruments.headers(span, context)
        elif instruments.injects_without_span:
            self.headers = instruments.headers(span, get_current())
        self._attempt_started = perf_counter()

    def end_attempt(self, response: Response | NoResponse | None, entry: str | None = None) -> None:
        """Record the end of the attempt.

        Args:
            response: The response, or the reason why none arrived. None: the attempt was cancelled; its
                duration is not recorded.
            entry: The key of the call's ledger entry.
        """
        duration = perf_counter() - self._attempt_started
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
            if response is not None:
                histogram = self.instruments.metrics.attempts
                if self.attempt_span is not None or getattr(histogram, _REAL, histogram) is not None:
                    self._record_attempt(duration, status, error_type)
                is_expected = status is not None and status < SYSTEM_FAULT
                level = logging.DEBUG if is_expected else logging.WARNING
                if is_logged(level):
                    self._log_attempt(level, duration, status, error_type, entry)
        except USER_ERRORS as failed:  # of the user's metric reader, span or handler
            log_failure(failed)
        finally:  # as in `end`
            if self.attempt_span is not None:
                self._end_attempt_span(self.attempt_span)

    def _record_attempt(self, duration: float, status: int | None, error_type: str | None) -> None:
        if (span := self.attempt_span) is not None:
            if error_type is not None:
                span.set_status(_ERROR)
            span.set_attributes(_end_of_attempt(status, error_type))
        attributes = self.instruments.attributes(self.call, status, error_type)
        # With its context, so that an exemplar has the id of the span, which need not be the current one.
        self.instruments.metrics.attempts.record(duration, attributes, self._attempt_context)

    def _end_attempt_span(self, span: Span) -> None:
        token, self._attempt_token, self.attempt_span = self._attempt_token, None, None
        if token is not None:
            detach(token)
        _safe(_END, span, default=None)

    def _log_attempt(
        self, level: int, duration: float, status: int | None, error_type: str | None, entry: str | None
    ) -> None:
        if self._attempt_context is not None and self._attempt_token is None:
            self._attempt_token = attach(self._attempt_context)
        log_event(
            level,
            "%(operation)s: attempt %(attempt)d: %(end)s, %(duration).3f s",
            operation=self.call.endpoint.operation,
            end=error_type or status,
            attempt=self.attempts,
            duration=duration,
            status=status,
            error_type=error_type,
            trace_id=self.trace_id,
            entry=entry,
        )

    def end(
        self,
        error: BaseException | None,
        entry: str | None = None,
        pause: float | None = None,
        *,
        may_be_evaluated: bool = False,
    ) -> None:
        """Record the end of the call.

        Args:
            error: The error that it raises.
            entry: The key of its ledger entry.
            pause: The change of the circuit breaker by the call, see `Breaker.record`.
            may_be_evaluated: A request may have reached the service.
        """
        instruments, operation = self.instruments, self.call.endpoint.operation
        duration = perf_counter() - self._started
        if error is not None:
            may_be: Outcome = "unknown" if may_be_evaluated else "not_sent"  # usually cancelled
            self.outcome = error.outcome if isinstance(error, LoanError) else may_be
        # A cancelled call did not fail: CancelledError is not a subclass of Exception.
        failure = type(error).__name__ if isinstance(error, Exception) else None
        outcome, histogram = self.outcome, instruments.metrics.calls
        try:
            if self.is_recording or getattr(histogram, _REAL, histogram) is not None:
                labels, attributes = _end_of_call(
                    operation, outcome, failure, self.attempts, self.stopped_by, self._ledger
                )
                if outcome is not None:
                    # With its context, which OpenTelemetry would look up otherwise.
                    _safe(histogram.record, duration, labels, self.context, default=None)
            level = logging.WARNING if failure or outcome == "unknown" else logging.INFO
            if outcome is not None and is_logged(level):
                end = failure or ("cancelled" if error is not None else outcome)
                self._log(level, end, duration, entry)
            if self.is_recording:
                if failure is not None:
                    self.span.set_status(_ERROR)
                self.span.set_attributes(attributes)
            if pause is not None:
                instruments.report_pause(pause, self.span)
        except USER_ERRORS as failed:  # of the user's span or processor
            log_failure(failed)
        finally:  # also if a handler or processor raises SystemExit or KeyboardInterrupt
            if self._token is not None:
                detach(self._token)
                _safe(_END, self.span, default=None)

    def _log(self, level: int, end: str, duration: float, entry: str | None) -> None:
        log_event(
            level,
            "%(operation)s: %(end)s, attempts: %(attempts)d, %(duration).3f s",
            operation=self.call.endpoint.operation,
            end=end,
            attempts=self.attempts,
            duration=duration,
            outcome=self.outcome,
            stopped_by=self.stopped_by,
            trace_id=self.trace_id,
            entry=entry,
        )
