"""Spans, metrics and log events of calls and attempts, without personal data.

Little work is done here until an OpenTelemetry SDK is configured. Exceptions of the user's samplers,
propagators, processors and log handlers are caught here and logged once per type and location.
"""

import logging
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import trace
from opentelemetry.context import attach, detach, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context
from opentelemetry.util.types import AttributeValue

from loanasync._config import installed_version, require_provider
from loanasync._log import LOGGER, log_event, log_failure
from loanasync._protocol.endpoints import APPROVE, OPERATIONS, SYSTEM_FAULT, Call
from loanasync._telemetry.metrics import SCHEMA, Metrics, metrics_for
from loanasync._telemetry.propagation import Propagate, injector
from loanasync.errors import LoanError
from loanasync.errors.root import Outcome

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context


Attributes = dict[str, AttributeValue]

CLAIMED = "claimed"  # the call claimed its ledger entry and sent its own request
_COUNTED = ("approved", "refused", "unknown")  # by loanasync.decisions
_HTTP_ERROR = 400
_NO_HEADERS: Mapping[str, str] = {}  # read only; a MappingProxyType would be slower
_CALLS: dict[str, tuple[str, SpanKind, Attributes]] = {
    operation: (f"loanasync.{operation}", SpanKind.INTERNAL, {"loanasync.operation": operation})
    for operation in OPERATIONS
}


class Telemetry:
    """The tracer, the metrics and the propagator of a client.

    They come from the providers that were passed to the client, or from the global ones. No method raises an
    error of the user's providers.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: MeterProvider | None,
        propagate: Propagate,
    ) -> None:
        require_provider("Tracer", "tracer_provider", tracer_provider)
        require_provider("Meter", "meter_provider", meter_provider)
        self._inject = injector(propagate)
        self.injects_without_span: bool = propagate == "global"  # baggage needs no span
        self._attributes: dict[tuple[str, int | None, str | None], Attributes] = {}
        self.tracer: trace.Tracer = trace.get_tracer(
            "loanasync", installed_version("loanasync"), tracer_provider, SCHEMA
        )
        self._is_proxy = isinstance(self.tracer, trace.ProxyTracer)  # a global provider may be set later
        self.metrics: Metrics = metrics_for(meter_provider)

    def span(self, name: str, kind: SpanKind, attributes: Attributes) -> Span:
        """Start a span; `INVALID_SPAN` means that tracing is off."""
        # While no global provider is set, this shortcut is three times as fast as the proxy tracer. It reads
        # a private name, because `get_tracer_provider` reads the environment each time.
        if self._is_proxy and getattr(trace, "_TRACER_PROVIDER", ...) is None and not get_current():
            return INVALID_SPAN
        try:
            span = self.tracer.start_span(name, kind=kind, attributes=attributes)
        except Exception as error:  # noqa: BLE001  (of the user's sampler)
            log_failure(error)
            span = INVALID_SPAN
        return _span_of_caller() if span is INVALID_SPAN else span

    def headers(self) -> dict[str, str]:
        """Return the trace headers for the current span."""
        try:
            return self._inject(get_current())
        except Exception as error:  # noqa: BLE001  (of the user's propagator)
            log_failure(error)
            return {}

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


def _span_of_caller() -> Span:
    """Return a span that keeps the caller's trace and records nothing. A tracer of an old API does not."""
    context = trace.get_current_span().get_span_context()
    return trace.NonRecordingSpan(context) if context.is_valid else INVALID_SPAN


def _trace_id(span: Span) -> str | None:
    try:
        context = span.get_span_context()
    except Exception as error:  # noqa: BLE001  (of the user's tracer)
        log_failure(error)
        return None
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _end(span: Span) -> None:
    try:
        span.end()
    except Exception as error:  # noqa: BLE001  (a processor's)
        log_failure(error)


class CallRecord:
    """Records one call: an INTERNAL span, the parent of the spans of its attempts, metrics and a log event.

    `Run` enters it when the call begins, sets what is known of the call, and exits it when the call ends.
    Exiting records everything. `trace_id` is the id of the trace in hexadecimal, if tracing is on.
    """

    # Class attributes for values that most calls do not set: creating a record is then faster.
    trace_id: str | None = None
    _attempts = 0
    _stopped_by: str | None = None
    _outcome: Outcome | None = None
    _ledger: str | None = None
    _token: "Token[Context] | None" = None

    def __init__(self, telemetry: Telemetry, call: Call) -> None:
        self._telemetry = telemetry
        self._call = call

    def __enter__(self) -> Self:
        self._started = perf_counter()
        operation = self._call.endpoint.operation
        self._span = self._telemetry.span(*_CALLS[operation])
        if self._span is not INVALID_SPAN:
            self.trace_id = _trace_id(self._span)
            self._token = attach(set_span_in_context(self._span))
        # At the end: if `__enter__` raises an error, `__exit__` is not called.
        self._telemetry.metrics.inflight.counts[operation] += 1
        return self

    def set_queue_time(self, seconds: float, error_type: str | None) -> None:
        """Record the time that the call waited for a slot, and the error if none became free."""
        attributes = {"loanasync.operation": self._call.endpoint.operation}
        if error_type is not None:
            attributes["error.type"] = error_type
        try:
            self._telemetry.metrics.queue.record(seconds, attributes)
        except Exception as error:  # noqa: BLE001  (of the user's metric reader)
            log_failure(error)

    def attempt(self, number: int) -> "AttemptRecord":
        """Return the record of attempt `number`, counted from 1; enter it to start its span."""
        self._attempts = number
        if number > 1:
            self._telemetry.metrics.retries.counts[self._call.endpoint.operation] += 1
        return AttemptRecord(self._telemetry, self._call, number, self._span)

    def set_stop_reason(self, stopped_by: str) -> None:
        """Set the reason for making no further attempt after a 500."""
        self._stopped_by = stopped_by

    def set_ledger_result(self, result: str) -> None:
        """Set the result of the ledger or the memory: the attribute `loanasync.ledger`.

        With a ledger or a memory, a decision is counted only by the call that sent the request.
        """
        self._ledger = result

    def set_decision(self, *, approved: bool) -> None:
        """Set the decision. A refusal is not an error: the status of the span stays unset."""
        self._outcome = "approved" if approved else "refused"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        metrics, endpoint = self._telemetry.metrics, self._call.endpoint
        metrics.inflight.counts[endpoint.operation] -= 1
        if error is not None and endpoint is APPROVE:
            self._outcome = self._outcome_of(error)
        if self._outcome in _COUNTED and self._ledger in (None, CLAIMED):
            metrics.decisions.counts[self._outcome] += 1
        try:
            # A cancelled call did not fail: CancelledError is not a subclass of Exception.
            failure = type(error).__name__ if isinstance(error, Exception) else None
            level = logging.WARNING if failure or self._outcome == "unknown" else logging.INFO
            if LOGGER.isEnabledFor(level):
                self._log(level, failure or ("cancelled" if error is not None else self._outcome or "done"))
            if self._token is not None and self._span.is_recording():
                self._describe(failure)
        except Exception as failed:  # noqa: BLE001  (of the user's span or processor)
            log_failure(failed)
        finally:  # also if a handler or processor raises SystemExit or KeyboardInterrupt
            if self._token is not None:
                detach(self._token)
                _end(self._span)

    def _outcome_of(self, error: BaseException) -> Outcome:
        if isinstance(error, LoanError):
            return error.outcome
        return "unknown" if self._call.may_be_evaluated else "not_sent"  # usually cancelled

    def _log(self, level: int, end: str) -> None:
        log_event(
            level,
            "%(operation)s: %(end)s, attempts: %(attempts)d, %(duration).3f s",
            operation=self._call.endpoint.operation,
            end=end,
            attempts=self._attempts,
            duration=perf_counter() - self._started,
            outcome=self._outcome,
            stopped_by=self._stopped_by,
            trace_id=self.trace_id,
        )

    def _describe(self, failure: str | None) -> None:
        is_decided = self._outcome in ("approved", "refused")
        attributes = {
            "loanasync.attempts": self._attempts,
            "loanasync.outcome": self._outcome,
            "loanasync.approved": self._outcome == "approved" if is_decided else None,
            "loanasync.stopped_by": self._stopped_by,
            "loanasync.ledger": self._ledger,
            "error.type": failure,
        }
        if failure is not None:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR))
        self._span.set_attributes(_without_none(attributes))


class AttemptRecord:
    """Records one attempt: a CLIENT span by the stable HTTP conventions, its duration and a log event.

    `headers` are the trace headers to send.
    """

    # Class attributes for values that most attempts do not set, as in `CallRecord`.
    headers: Mapping[str, str] = _NO_HEADERS
    _is_recorded = False
    _status: int | None = None
    _error_type: str | None = None
    _token: "Token[Context] | None" = None

    def __init__(self, telemetry: Telemetry, call: Call, number: int, parent: Span) -> None:
        self._telemetry = telemetry
        self._call = call
        self._number = number
        self._span = parent  # replaced in `__enter__` if the attempt is recorded

    def set_response(self, status: int, fault: str | None = None) -> None:
        """Set the status of the response; 4xx, 5xx and an incomplete body are errors of the attempt."""
        self._status = status
        if status >= _HTTP_ERROR:
            self._error_type = str(status)
        elif fault is not None:
            self._error_type = f"body {fault}"

    def set_no_response(self, cause_type: str) -> None:
        """Set the reason why no response arrived."""
        self._error_type = cause_type

    def __enter__(self) -> Self:
        is_traced = self._span is not INVALID_SPAN
        # If the span of the call is not sampled, the attempts have no spans.
        if is_traced and self._span.is_recording():
            self._is_recorded = True
            self._span = self._begin()
            self._token = attach(set_span_in_context(self._span))
        if is_traced or self._telemetry.injects_without_span:
            self.headers = self._telemetry.headers()
        self._started = perf_counter()
        return self

    def _begin(self) -> Span:
        endpoint = self._call.endpoint
        attributes = {
            **self._telemetry.attributes(self._call, None, None),
            "url.full": self._call.redacted_url,
        }
        if self._number > 1:
            attributes["http.request.resend_count"] = self._number - 1
        return self._telemetry.span(f"{endpoint.method} {endpoint.template}", SpanKind.CLIENT, attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        duration = perf_counter() - self._started
        try:
            if self._is_recorded:
                self._describe()
            if error is None:  # the duration of a cancelled request is not recorded
                attributes = self._telemetry.attributes(self._call, self._status, self._error_type)
                self._telemetry.metrics.duration.record(duration, attributes)
                is_expected = self._status is not None and self._status < SYSTEM_FAULT
                level = logging.DEBUG if is_expected else logging.WARNING
                if LOGGER.isEnabledFor(level):
                    self._log(level, duration)
        except Exception as failed:  # noqa: BLE001  (of the user's metric reader, span or handler)
            log_failure(failed)
        finally:  # as in `CallRecord.__exit__`
            if self._token is not None:
                detach(self._token)
                _end(self._span)

    def _describe(self) -> None:
        if self._status is not None:
            self._span.set_attribute("http.response.status_code", self._status)
        if self._error_type is not None:
            self._span.set_attribute("error.type", self._error_type)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR))

    def _log(self, level: int, duration: float) -> None:
        log_event(
            level,
            "%(operation)s: attempt %(attempt)d: %(end)s, %(duration).3f s",
            operation=self._call.endpoint.operation,
            end=self._error_type or self._status,
            attempt=self._number,
            duration=duration,
            status=self._status,
            error_type=self._error_type,
            trace_id=_trace_id(self._span),
        )
