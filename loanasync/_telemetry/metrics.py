"""The metrics of a client, and the instruments that record them."""

import threading
from collections.abc import Iterable
from functools import lru_cache
from weakref import WeakKeyDictionary

from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from loanasync._config import installed_version
from loanasync._lifecycle import free_after_fork
from loanasync._protocol.endpoints import OPERATIONS

SCHEMA = "https://opentelemetry.io/schemas/1.40.0"
# Seconds, as the HTTP conventions advise for http.client.request.duration.
_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class AttributeCounts:
    """Counts by the values of one attribute, read when the SDK collects: a call pays next to nothing.

    `counts[value] += 1` needs no lock: no other thread of Python's runs within it.
    """

    def __init__(self, attribute: str, values: Iterable[str]) -> None:
        self._attribute = attribute
        # From the start: a rate needs the zero before the first.
        self.counts: dict[str, int] = dict.fromkeys(values, 0)

    def observe(self, _: CallbackOptions) -> list[Observation]:
        """What it came to."""
        return [Observation(count, {self._attribute: value}) for value, count in self.counts.items()]


class Metrics:
    """The metrics of all clients of a provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("loanasync", installed_version("loanasync"), SCHEMA)
        self.duration: Histogram = meter.create_histogram(
            "http.client.request.duration",
            unit="s",
            description="Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.queue: Histogram = meter.create_histogram(
            "loanasync.queue.duration",
            unit="s",
            description="Time that calls waited for a place among the concurrent ones, of those that had to.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        self.decisions: AttributeCounts = AttributeCounts(
            "loanasync.outcome", ("approved", "refused", "unknown")
        )
        self.retries: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
        self.inflight: AttributeCounts = AttributeCounts("loanasync.operation", OPERATIONS)
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
            description="Attempts that follow a 500.",
        )
        meter.create_observable_up_down_counter(
            "loanasync.inflight",
            [self.inflight.observe],
            unit="{call}",
            description="Calls that have begun and not ended, those that wait for a place included.",
        )


_made: WeakKeyDictionary[MeterProvider, Metrics] = WeakKeyDictionary()


class _Making:
    """The lock under which metrics are made."""

    def __init__(self) -> None:
        self._renew_lock()
        free_after_fork(self, _Making._renew_lock)

    def _renew_lock(self) -> None:
        """Make the lock anew, which a forked child may inherit from a thread that it has not."""
        self.lock = threading.RLock()


_making = _Making()


def metrics_of(provider: MeterProvider | None) -> Metrics:
    """A provider's metrics, or the global one's; made once, since an SDK reads only the first of a name."""
    with _making.lock:
        if provider is None or provider is get_meter_provider():
            return _global_metrics()
        return _metrics(provider)


@lru_cache(maxsize=1)
def _global_metrics() -> Metrics:
    # Made before there is an SDK, they become that one's.
    return _metrics(get_meter_provider())


def _metrics(provider: MeterProvider) -> Metrics:
    try:
        metrics = _made.get(provider)
        if metrics is None:
            metrics = _made[provider] = Metrics(provider)
        return metrics  # noqa: TRY300  (what is kept is what is returned)
    except TypeError:  # a provider that cannot be remembered, for want of a hash or of weak references
        return Metrics(provider)
