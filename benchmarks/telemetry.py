"""Measure the cost of telemetry: without an SDK, sampled out, recording, and hand-written.

Each variant has its own process, as in production; all take turns on the same core, with a transport that
responds from memory. A figure is the CPU time of the event loop's thread per approval. The memory layout
of a process makes it faster or slower as long as it lives, so processes are restarted several times.
"""

import asyncio
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from byhand import ByHand, recording
from cores import pin
from inmemory import InMemoryService, client_with
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from rounds import interleaved, parser_of, save

from loanasync import ApprovalRequest, Decision, LoanClient, Telemetry
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._runtime import run as runtime
from loanasync._telemetry.spans import Instruments
from loanasync.testing import approval_request, fiscal_code

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class NoTelemetry:
    """A call record that records nothing."""

    trace_id = span = None
    is_recording = False
    headers: ClassVar[dict[str, str]] = {}

    def nothing(self, *_: object, **__: object) -> None:
        """Ignore all arguments."""

    set_ledger_result = begin_attempt = end_attempt = end = nothing


class HandTraced(InMemoryService):
    """A transport that responds from memory, within hand-written spans."""

    def __init__(self, telemetry: ByHand) -> None:
        self._by_hand = telemetry

    async def approve(self, client: LoanClient, code: str, request: ApprovalRequest) -> Decision:
        """Request an approval within its span."""
        return await self._by_hand.call(
            lambda: client.approve(code, request), lambda decision: decision.approved
        )

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Return an approval, within the span of the attempt."""
        send = super().send
        return await self._by_hand.attempt(lambda _: send(request, connect=connect, within=within))


def client_with_telemetry(transport: InMemoryService, telemetry: Instruments | None) -> LoanClient:
    """Return a client that uses this telemetry, or records nothing without it.

    This changes the whole process, which runs one variant only.
    """
    client = client_with(transport)
    if telemetry is None:
        removed = NoTelemetry()
        assert "CallTelemetry" in vars(runtime)  # it was not renamed
        vars(runtime)["CallTelemetry"] = lambda *_, **__: removed
    else:
        client._pipeline.telemetry = telemetry  # noqa: SLF001  (the measured part)
    return client


Variant = Callable[[str, ApprovalRequest], Awaitable[Decision]]
Built = tuple[Variant, Callable[[], object]]  # and a function that flushes its spans


def _loanasync(tracing: TracerProvider | None = None, metering: MeterProvider | None = None) -> Built:
    flush = NoTelemetry().nothing if tracing is None else tracing.force_flush
    return client_with_telemetry(
        InMemoryService(), Instruments(Telemetry(tracer_provider=tracing, meter_provider=metering))
    ).approve, flush


def _by_hand(tracing: TracerProvider, metering: MeterProvider) -> Built:
    hand = HandTraced(ByHand((tracing, metering)))
    client = client_with_telemetry(hand, None)
    return lambda code, request: hand.approve(client, code, request), tracing.force_flush


def _sdk_alone() -> Built:
    """Use one dropped span and its propagation: the minimum cost of an SDK."""
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("shop")
    inject = TraceContextTextMapPropagator().inject
    client = client_with_telemetry(InMemoryService(), None)

    async def approve(code: str, request: ApprovalRequest) -> Decision:
        span = tracer.start_span("loanasync.approve", attributes={"loanasync.operation": "approve"})
        context = trace.set_span_in_context(span)
        inject({}, context)
        token = attach(context)
        try:
            return await client.approve(code, request)
        finally:
            detach(token)
            span.end()

    return approve, NoTelemetry().nothing


VARIANTS: dict[str, Callable[[], Built]] = {
    "no telemetry": lambda: (client_with_telemetry(InMemoryService(), None).approve, NoTelemetry().nothing),
    "no SDK": _loanasync,
    "sampled out": lambda: _loanasync(TracerProvider(sampler=ALWAYS_OFF)),
    "SDK alone, sampled out": _sdk_alone,
    "recording": lambda: _loanasync(*recording()),
    "hand-written, recording": lambda: _by_hand(*recording()),
    "hand-written, sampled out": lambda: _by_hand(TracerProvider(sampler=ALWAYS_OFF), NoOpMeterProvider()),
}


async def measured(variant: Variant, request: ApprovalRequest, calls: int) -> float:
    """Return the CPU time of this thread per approval, in microseconds."""
    codes = [fiscal_code() for _ in range(calls)]
    gc.collect()
    started = time.thread_time()
    for code in codes:
        await variant(code, request)
    return (time.thread_time() - started) / calls * 1e6


def run_variant(name: str, commands: "Connection[float, int]") -> None:
    """Run the process of a variant: measure the requested number of approvals, until it is 0."""
    pin(os.getpid(), 0)
    variant, flush = VARIANTS[name]()
    request = approval_request()
    with asyncio.Runner() as runner:
        while calls := commands.recv():
            commands.send(runner.run(measured(variant, request, calls)))
            flush()


@contextmanager
def processes() -> Iterator[dict[str, "Connection[int, float]"]]:
    """Start a new process for each variant."""
    spawning = multiprocessing.get_context("spawn")
    started = {}
    for name in VARIANTS:
        our_end, its_end = spawning.Pipe()
        process = spawning.Process(target=run_variant, args=(name, its_end), daemon=True)
        process.start()
        its_end.close()
        started[name] = (process, our_end)
    yield {name: our_end for name, (_, our_end) in started.items()}
    for process, our_end in started.values():
        our_end.send(0)
        process.join()


def _cost(commands: "Connection[int, float]", calls: int) -> float:
    commands.send(calls)
    return commands.recv()


def run(rounds: int, calls: int, times: int) -> dict[str, list[float]]:
    """Return the figures of each variant per round; the processes are restarted `times` times."""
    figures: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(times):
        with processes() as connections:
            turns = {name: partial(_cost, one, calls) for name, one in connections.items()}
            for name, costs in interleaved(turns, max(rounds // times, 1)).items():
                figures[name] += costs
    return figures


def rows(figures: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return the cost that each variant adds, and its ratio to hand-written telemetry."""
    added = {
        name: [one - bare for one, bare in zip(costs, figures["no telemetry"], strict=True)]
        for name, costs in figures.items()
    }
    return [
        {
            "name": name,
            "cost": statistics.median(figures[name]),
            "added": statistics.median(added[name]),
            "low": statistics.quantiles(added[name])[0],
            "high": statistics.quantiles(added[name])[2],
            "ratio": statistics.median(
                one / hand for one, hand in zip(added[name], added["hand-written, recording"], strict=True)
            ),
        }
        for name in figures
    ]


def table(lines: list[dict[str, Any]]) -> str:
    """Format the results."""
    head = f"{'CPU per call (µs)':28}{'all':>8}{'added':>8}   {'(middle half)':18}"
    shown = [f"{head}{'hand-written = 1':>16}"]
    for line in lines:
        half = f"({line['low']:.1f} to {line['high']:.1f})"
        figures = f"{line['cost']:8.1f}{line['added']:8.1f}   {half:18}{line['ratio']:16.2f}"
        shown.append(f"{line['name']:28}{figures}")
    return "\n".join(shown)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__, 240)
    parser.add_argument("--calls", type=int, default=400, help="approvals in a round")
    parser.add_argument("--processes", type=int, default=6, help="number of restarts of the processes")
    options = parser.parse_args()
    lines = rows(run(options.rounds, options.calls, options.processes))
    print(table(lines))
    save(options.json, lines)


if __name__ == "__main__":
    main()
