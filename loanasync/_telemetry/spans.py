"""Spans, metrics and log events of a call and its attempts, without personal data.

Without an OpenTelemetry SDK, little work is done here. Exceptions of the shop's samplers, propagators,
processors and handlers are logged and not raised.
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
from loanasync._telemetry.metrics import SCHEMA, Metrics, metrics_of
from loanasync._telemetry.propagation import Propagate, injector
from loanasync.errors import LoanError
from loanasync.errors.root import Outcome

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context


Attributes = dict[str, AttributeValue]

CLAIMED = "claimed"  # the call was its own to make
_COUNTED = ("approved", "refused", "unknown")
_HTTP_ERROR = 400
_NO_HEADERS: Mapping[str, str] = {}  # read only, and quicker to read than what cannot be written
_CALLS: dict[str, tuple[str, SpanKind, Attributes]] = {
    operation: (f"loanasync.{operation}", SpanKind.INTERNAL, {"loanasync.operation": operation})
    for operation in OPERATIONS
}


class Telemetry:
    """The instruments of a client, from the providers it was given or the global ones."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: MeterProvider | None,
        propagate: Propagate,
    ) -> None:
        require_provider("Tracer", "tracer_provider", tracer_provider)
        require_provider("Meter", "meter_provider", meter_provider)
        self._inject = injector(propagate)
        self.sends_more_than_traces: bool = propagate == "global"  # baggage, which needs no trace
        self._attributes: dict[tuple[str, int | None, str | None], Attributes] = {}
        self.tracer: trace.Tracer = trace.get_tracer(
            "loanasync", installed_version("loanasync"), tracer_provider, SCHEMA
        )
        self._waits = isinstance(self.tracer, trace.ProxyTracer)  # for a provider that may come
        self.metrics: Metrics = metrics_of(meter_provider)

    def span(self, name: str, kind: SpanKind, attributes: Attributes) -> Span:
        """Begin a span; `INVALID_SPAN` means that nobody traces."""
        # As a tracer would say, at a third of the cost: the function that tells of a provider reads the
        # environment each time. Where the name is not, a tracer is asked.
        if self._waits and getattr(trace, "_TRACER_PROVIDER", ...) is None and not get_current():
            return INVALID_SPAN
        try:
            return self.tracer.start_span(name, kind=kind, attributes=attributes)
        except Exception as error:  # noqa: BLE001  (a sampler's)
            log_failure(error)
            return trace.NoOpTracer().start_span(name)  # keeps the caller's trace, if there is one

    def headers(self) -> dict[str, str]:
        """What an attempt sends of its trace."""
        try:
            return self._inject(get_current())
        except Exception as error:  # noqa: BLE001  (a propagator's)
            log_failure(error)
            return {}

    def attributes(self, call: Call, status: int | None, error_type: str | None) -> Attributes:
        """What the conventions say of a request and its end, for all that ended the same way.

        A client has one address, whatever shop it speaks for.
        """
        endpoint = call.endpoint
        key = (endpoint.operation, status, error_type)
        try:
            return self._attributes[key]
        except KeyError:
            kept = _known(
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


def _known(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _trace_id(span: Span) -> str | None:
    try:
        context = span.get_span_context()
    except Exception as error:  # noqa: BLE001  (another tracer's)
        log_failure(error)
        return None
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _end(span: Span) -> None:
    try:
        span.end()
    except Exception as error:  # noqa: BLE001  (a processor's)
        log_failure(error)


class CallRecord:
    """One call: its INTERNAL span, the parent of its attempts', its decision, and its event.

    `trace_id` is the trace's id in hex, if there is a trace.
    """

    # What most calls never set belongs to the class: making a record is a good part of its cost.
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
        # Last, since what could not begin will not end.
        self._telemetry.metrics.inflight.counts[operation] += 1
        return self

    def queued(self, seconds: float, error_type: str | None) -> None:
        """Record how long the call waited for its slot, and the error if none became free."""
        attributes = {"loanasync.operation": self._call.endpoint.operation}
        if error_type is not None:
            attributes["error.type"] = error_type
        try:
            self._telemetry.metrics.queue.record(seconds, attributes)
        except Exception as error:  # noqa: BLE001  (a metric reader's)
            log_failure(error)

    def attempt(self, number: int) -> "AttemptRecord":
        """Return the record of an attempt, counted from 1; entering it starts its span."""
        self._attempts = number
        if number > 1:
            self._telemetry.metrics.retries.counts[self._call.endpoint.operation] += 1
        return AttemptRecord(self._telemetry, self._call, number, self._span)

    def stopped(self, by: str) -> None:
        """Record why no further attempt was made after a 500."""
        self._stopped_by = by

    def ledger_result(self, how: str) -> None:
        """Record the result of the ledger or the memory; only a claimed approval is counted as a decision."""
        self._ledger = how

    def decided(self, *, approved: bool) -> None:
        """Record the decision; a refusal is a result, so the status of the span stays unset."""
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
            # A cancelled call did not fail, it was given up: CancelledError is no Exception.
            failure = type(error).__name__ if isinstance(error, Exception) else None
            level = logging.WARNING if failure or self._outcome == "unknown" else logging.INFO
            if LOGGER.isEnabledFor(level):
                self._log(level, failure or ("cancelled" if error is not None else self._outcome or "done"))
            if self._token is not None and self._span.is_recording():
                self._describe(failure)
        except Exception as own:  # noqa: BLE001  (a span's)
            log_failure(own)
        finally:  # also when somebody in there wants the program to end
            if self._token is not None:
                detach(self._token)
                _end(self._span)

    def _outcome_of(self, error: BaseException) -> Outcome:
        if isinstance(error, LoanError):
            return error.outcome
        return "unknown" if self._call.may_be_evaluated else "not_sent"  # cancelled, as a rule

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
        self._span.set_attributes(_known(attributes))


class AttemptRecord:
    """One HTTP request: its CLIENT span, by the stable conventions for them, its duration and its event.

    `headers` are what it sends of its trace.
    """

    # As above.
    headers: Mapping[str, str] = _NO_HEADERS
    _is_recorded = False
    _status: int | None = None
    _error_type: str | None = None
    _token: "Token[Context] | None" = None

    def __init__(self, telemetry: Telemetry, call: Call, number: int, above: Span) -> None:
        self._telemetry = telemetry
        self._call = call
        self._number = number
        self._span = above

    def answered(self, status: int, fault: str | None = None) -> None:
        """Say with which status the attempt was answered; 4xx, 5xx and half a body are its errors."""
        self._status = status
        if status >= _HTTP_ERROR:
            self._error_type = str(status)
        elif fault is not None:
            self._error_type = f"body {fault}"

    def unanswered(self, cause_type: str) -> None:
        """Say that no answer came, and why."""
        self._error_type = cause_type

    def __enter__(self) -> Self:
        is_traced = self._span is not INVALID_SPAN
        # A sampler leaves a call out as a whole: its attempts are part of what it says of the call.
        if is_traced and self._span.is_recording():
            self._is_recorded = True
            self._span = self._begin()
            self._token = attach(set_span_in_context(self._span))
        if is_traced or self._telemetry.sends_more_than_traces:
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
            if error is None:  # a request that was given up has no duration worth counting
                told = self._telemetry.attributes(self._call, self._status, self._error_type)
                self._telemetry.metrics.duration.record(duration, told)
                is_usual = self._status is not None and self._status < SYSTEM_FAULT
                level = logging.DEBUG if is_usual else logging.WARNING
                if LOGGER.isEnabledFor(level):
                    self._log(level, duration)
        except Exception as own:  # noqa: BLE001  (a metric reader's, or a span's)
            log_failure(own)
        finally:  # as above
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
