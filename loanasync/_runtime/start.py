"""The start of a client's runtime: its first call loads and creates the pipeline and the flights."""

import sys
from typing import TYPE_CHECKING

from attrs import define, field

from loanasync._lifecycle import LOADING

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from loanasync._runtime.flights import Flights
    from loanasync._runtime.guard import Guard
    from loanasync._runtime.pipeline import Pipeline
    from loanasync._settings import CircuitBreaker
    from loanasync._telemetry.propagation import Propagate
    from loanasync._telemetry.spans import Telemetry
    from loanasync._transport.base import Clock, Transport


def telemetry_factory(
    tracer_provider: "TracerProvider | None", meter_provider: "MeterProvider | None", propagate: "Propagate"
) -> "Callable[[], Telemetry]":
    """Return a function that returns the telemetry of a client.

    If the program has loaded OpenTelemetry, the telemetry is created at once, so that its counters start at
    zero before the first call.

    Raises:
        ConfigurationError: A setting is invalid.
    """

    def create() -> "Telemetry":
        with LOADING:
            from loanasync._telemetry.spans import Telemetry  # noqa: PLC0415  (loads OpenTelemetry)

        return Telemetry(tracer_provider, meter_provider, propagate)

    is_default = tracer_provider is None and meter_provider is None and propagate == "traceparent"
    if is_default and "opentelemetry.metrics" not in sys.modules:
        return create
    telemetry = create()
    return lambda: telemetry


@define(kw_only=True, eq=False, repr=False)
class Start:
    """Creates the pipeline and the flights of a client and its copies, when one of them makes its first call.

    Their modules load asyncio and tenacity, and the transport loads aiohttp. That takes three times as long
    as importing this package and creating a client.

    Args:
        open_transport: Returns the transport of the running event loop.
        opens_session: True if the client opens its own session.
        telemetry: Returns the tracer, the metrics and the propagator.
        quota: Capacity of the retry quota.
        breaker: Settings of the circuit breaker, None without one.
        slots: Maximum number of concurrent calls per event loop, None without a limit.
        guard: The guard of a client with a ledger.
        on_unclosed: Warns of an unclosed client.
        clock: The clock of deadlines and waits, None for the clock of this machine.
    """

    open_transport: "Callable[[], Transport]"
    opens_session: bool
    telemetry: "Callable[[], Telemetry]"
    quota: int
    breaker: "CircuitBreaker | None"
    slots: int | None
    guard: "Guard | None"
    on_unclosed: "Callable[[], None] | None"
    clock: "Clock | None"
    _pipeline: "Pipeline | None" = field(init=False, default=None)
    _flights: "Flights | None" = field(init=False, default=None)

    def load(self) -> None:
        """Load, create and open everything that the first call in the running event loop needs.

        A user's transport is opened by the first call, and a user's session is open already.
        """
        self.flights()
        pipeline = self.pipeline()
        if self.opens_session:
            pipeline.open()

    def pipeline(self) -> "Pipeline":
        """Return the pipeline of the client and its copies."""
        with LOADING:
            if self._pipeline is None:
                from asyncio import sleep  # noqa: PLC0415  (the first call loads it)
                from time import monotonic  # noqa: PLC0415

                from loanasync._runtime.breaker import Breaker  # noqa: PLC0415
                from loanasync._runtime.pipeline import Pipeline  # noqa: PLC0415
                from loanasync._runtime.retry import Quota  # noqa: PLC0415

                self._pipeline = Pipeline(
                    self.open_transport,
                    self.telemetry(),
                    Quota(self.quota),
                    self.slots,
                    breaker=None if self.breaker is None else Breaker(self.breaker),
                    on_unclosed=self.on_unclosed,
                    now=monotonic if self.clock is None else self.clock.now,
                    sleep=sleep if self.clock is None else self.clock.sleep,
                )
            return self._pipeline

    def flights(self) -> "Flights":
        """Return the approvals in progress of the client and its copies."""
        with LOADING:
            if self._flights is None:
                from loanasync._runtime.flights import Flights  # noqa: PLC0415  (the first call loads it)
                from loanasync._runtime.guard import ProcessGuard  # noqa: PLC0415

                self._flights = Flights(self.pipeline(), self.guard or ProcessGuard())
            return self._flights
