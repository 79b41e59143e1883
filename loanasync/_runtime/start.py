"""The start of a client's runtime: its first call loads and creates the pipeline and the memory."""

import sys
from typing import TYPE_CHECKING

from attrs import field, frozen

from loanasync._lifecycle import LOADING

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from loanasync._runtime.memory import Memory, Recorder
    from loanasync._runtime.pipeline import Pipeline
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


@frozen(kw_only=True, eq=False, repr=False)
class Start:
    """Creates the pipeline and the memory of a client and its copies, when one of them makes its first call.

    Their modules load asyncio and tenacity, and the transport loads aiohttp. That takes three times as long
    as importing this package and creating a client.

    Args:
        open_transport: Returns the transport of the running event loop.
        opens_session: True if the client opens its own session.
        telemetry: Returns the tracer, the metrics and the propagator.
        quota: Capacity of the retry quota.
        slots: Maximum number of concurrent calls per event loop, None without a limit.
        recorder: The ledger of the client, if any.
        has_memory: True if the client remembers approvals.
        on_unclosed: Warns of an unclosed client.
        clock: The clock of deadlines and waits, None for the clock of this machine.
    """

    open_transport: "Callable[[], Transport]"
    opens_session: bool
    telemetry: "Callable[[], Telemetry]"
    quota: int
    slots: int | None
    recorder: "Recorder | None"
    has_memory: bool
    on_unclosed: "Callable[[], None] | None"
    clock: "Clock | None"
    # The first object of each list is used. There is no lock, which a forked child could find locked: if two
    # threads both append an object, both use the first one.
    _pipelines: "list[Pipeline]" = field(init=False, factory=list)
    _memories: "list[Memory]" = field(init=False, factory=list)

    def load(self) -> None:
        """Load, create and open everything that the first call in the running event loop needs.

        A user's transport is opened by the first call, and a user's session is open already.
        """
        self.memory()
        pipeline = self.pipeline()
        if self.opens_session:
            pipeline.open()

    def pipeline(self) -> "Pipeline":
        """Return the pipeline of the client and its copies."""
        if not self._pipelines:
            with LOADING:
                from asyncio import sleep  # noqa: PLC0415  (the first call loads it)
                from time import monotonic  # noqa: PLC0415

                from loanasync._runtime.pipeline import Pipeline  # noqa: PLC0415
                from loanasync._runtime.retry import Quota  # noqa: PLC0415

            created = Pipeline(
                self.open_transport,
                self.telemetry(),
                Quota(self.quota),
                self.slots,
                on_unclosed=self.on_unclosed,
                now=monotonic if self.clock is None else self.clock.now,
                sleep=sleep if self.clock is None else self.clock.sleep,
            )
            self._pipelines.append(created)
        return self._pipelines[0]

    def memory(self) -> "Memory | None":
        """Return the memory of the client and its copies, if it has one."""
        if not self.has_memory:
            return None
        if not self._memories:
            with LOADING:
                from loanasync._runtime.memory import Memory  # noqa: PLC0415  (the first call loads it)

            self._memories.append(Memory(self.pipeline(), self.recorder))
        return self._memories[0]
