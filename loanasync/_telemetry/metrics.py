"""The metrics of a client."""

import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import get_args
from weakref import WeakKeyDictionary

from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from loanasync._forks import free_after_fork
from loanasync._protocol.endpoints import OPERATIONS
from loanasync._version import __version__
from loanasync.errors import CircuitReason

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
        self.decisions: AttributeCounts = AttributeCounts(
            "loanasync.outcome", ("approved", "refused", "unknown")
        )
        self.retries: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
        self.inflight: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
        self.openings: AttributeCounts = AttributeCounts("loanasync.reason", get_args(CircuitReason))
        meter.create_observable_counter(
            "loanasync.decisions",
            [self.decisions.observe],
            unit="{decision}",
            description="Approvals by outcome.",
        )
        meter.create_observable_counter(
            "loanasync.retries",
            [self.retries.observe],
            unit="{retry}",
            description="Attempts after a response with status 500.",
        )
        meter.create_observable_counter(
            "loanasync.circuit.openings",
            [self.openings.observe],
            unit="{opening}",
            description="Pauses of approvals by the circuit breaker, by reason.",
        )
        meter.create_observable_up_down_counter(
            "loanasync.inflight",
            [self.inflight.observe],
            unit="{call}",
            description="Calls in progress, including calls that wait for a slot.",
        )


_metrics_by_provider: WeakKeyDictionary[MeterProvider, Metrics] = WeakKeyDictionary()


class _CreationLock:
    """The lock for creating `Metrics`."""

    def __init__(self) -> None:
        self._renew_lock()
        free_after_fork(self, _CreationLock._renew_lock)

    def _renew_lock(self) -> None:
        """Replace the lock in a forked child, where a thread that does not exist there may hold it."""
        self.lock = threading.RLock()


_creation = _CreationLock()


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
