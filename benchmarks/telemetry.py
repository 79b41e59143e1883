"""What telemetry costs a call: without an SDK, sampled out, and recording beside what a user writes by hand.

All variants take turns, each in a process of its own, as a shop has it, on the same core, over a service that
answers at once from memory, so that nothing but the client is measured; a figure is the processor time of the
event loop's thread for each approval. Where a process has its code and data in memory makes it quicker or
slower for as long as it lives, so they are begun anew several times.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from byhand import ByHand, recording
from cores import pin
from inmemory import Memory, client_over
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from rounds import interleaved

from loanasync import ApprovalRequest, Decision, LoanClient
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._runtime import pipeline
from loanasync._telemetry.spans import Telemetry
from loanasync.testing import approval_request, fiscal_code

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LIMITS = {"no SDK": 4.0, "sampled out": 8.0, "recording": 1.15}  # µs, µs, times what is written by hand


class Removed:
    """A call record that records nothing."""

    trace_id = None
    headers: ClassVar[dict[str, str]] = {}

    def attempt(self, _: int) -> "Removed":
        """Tell nothing of an attempt."""
        return self

    def nothing(self, *_: object, **__: object) -> None:
        """Whatever it was."""

    answered = unanswered = decided = stopped = queued = __exit__ = nothing

    def __enter__(self) -> Self:
        return self


class Spanned(Memory):
    """The service in memory, asked within the spans that are written by hand."""

    def __init__(self, telemetry: ByHand) -> None:
        self._by_hand = telemetry

    async def approve(self, client: LoanClient, code: str, request: ApprovalRequest) -> Decision:
        """One call within its span."""
        return await self._by_hand.call(
            lambda: client.approve(code, request), lambda decision: decision.approved
        )

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Answer, within the span of the attempt."""
        answer = super().send
        return await self._by_hand.attempt(lambda _: answer(request, connect=connect, within=within))


def recorded(sender: Memory, telemetry: Telemetry | None) -> LoanClient:
    """Return a client over the sender that records calls with the telemetry; with None, nothing is recorded.

    That holds for the whole process, which has one variant only.
    """
    client = client_over(sender, remember=False)  # each approval is sent
    if telemetry is None:
        removed = Removed()
        vars(pipeline)["CallRecord"] = lambda *_: removed
    else:
        client._pipeline._telemetry = telemetry  # noqa: SLF001  (the part that is measured)
    return client


Variant = Callable[[str, ApprovalRequest], Awaitable[Decision]]
Built = tuple[Variant, Callable[[], object]]  # and what empties its queue


def _ours(tracing: TracerProvider | None = None, metering: MeterProvider | None = None) -> Built:
    flush = Removed().nothing if tracing is None else tracing.force_flush
    return recorded(Memory(), Telemetry(tracing, metering, "traceparent")).approve, flush


def _by_hand(tracing: TracerProvider, metering: MeterProvider) -> Built:
    hand = Spanned(ByHand((tracing, metering)))
    client = recorded(hand, None)
    return lambda code, request: hand.approve(client, code, request), tracing.force_flush


def _sdk_alone() -> Built:
    """One span that is sampled out, and its propagation: less than that nobody can ask of an SDK."""
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("shop")
    inject = TraceContextTextMapPropagator().inject
    client = recorded(Memory(), None)

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

    return approve, Removed().nothing


VARIANTS: dict[str, Callable[[], Built]] = {
    "removed": lambda: (recorded(Memory(), None).approve, Removed().nothing),
    "no SDK": _ours,
    "sampled out": lambda: _ours(TracerProvider(sampler=ALWAYS_OFF)),
    "the SDK alone, out": _sdk_alone,
    "recording": lambda: _ours(*recording()),
    "by hand": lambda: _by_hand(*recording()),
    "by hand, out": lambda: _by_hand(TracerProvider(sampler=ALWAYS_OFF), NoOpMeterProvider()),
}


async def measured(way: Variant, code: str, request: ApprovalRequest, calls: int) -> float:
    """Microseconds of this thread's processor time for each of so many approvals."""
    gc.collect()
    started = time.thread_time()
    for _ in range(calls):
        await way(code, request)
    return (time.thread_time() - started) / calls * 1e6


def answering(name: str, asked: "Connection[float, int]") -> None:
    """A process of one variant: measures as many approvals as it is told to, until it is told none."""
    pin(os.getpid(), 0)
    way, flush = VARIANTS[name]()
    request, code = approval_request(), fiscal_code()
    with asyncio.Runner() as runner:
        while calls := asked.recv():
            asked.send(runner.run(measured(way, code, request, calls)))
            flush()


@contextmanager
def processes() -> Iterator[dict[str, "Connection[int, float]"]]:
    """A new process of each variant, as a shop has it: with nothing else in it."""
    spawning = multiprocessing.get_context("spawn")
    begun = {}
    for name in VARIANTS:
        ours, its = spawning.Pipe()
        process = spawning.Process(target=answering, args=(name, its), daemon=True)
        process.start()
        its.close()
        begun[name] = (process, ours)
    yield {name: ours for name, (_, ours) in begun.items()}
    for process, ours in begun.values():
        ours.send(0)
        process.join()


def _cost(asked: "Connection[int, float]", calls: int) -> float:
    asked.send(calls)
    return asked.recv()


def run(rounds: int, calls: int, times: int) -> dict[str, list[float]]:
    """Figures of each variant, round by round; the processes are begun anew so many times."""
    figures: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(times):
        with processes() as asked:
            turns = {name: partial(_cost, one, calls) for name, one in asked.items()}
            for name, costs in interleaved(turns, max(rounds // times, 1)).items():
                figures[name] += costs
    return figures


def quick(costs: list[float]) -> float:
    """The cost of the quickest tenth of the rounds: other work on the machine only makes them slower."""
    return statistics.quantiles(costs, n=10)[0]


def rows(figures: dict[str, list[float]]) -> list[dict[str, Any]]:
    """What each variant adds to the call without telemetry, and the share of what is written by hand."""
    added = {
        name: [one - bare for one, bare in zip(costs, figures["removed"], strict=True)]
        for name, costs in figures.items()
    }
    return [
        {
            "name": name,
            "cost": statistics.median(figures[name]),
            "added": statistics.median(added[name]),
            "low": statistics.quantiles(added[name])[0],
            "high": statistics.quantiles(added[name])[2],
            "quick": quick(figures[name]) - quick(figures["removed"]),
            "by hand": statistics.median(
                one / hand for one, hand in zip(added[name], added["by hand"], strict=True)
            ),
        }
        for name in figures
    ]


def table(lines: list[dict[str, Any]]) -> str:
    """The lines for people."""
    head = f"{'µs of CPU a call':20}{'all':>8}{'added':>8}   {'(middle half)':18}{'quickest tenth':>15}"
    shown = [f"{head}{'by hand = 1':>13}   promised"]
    for line in lines:
        limit = LIMITS.get(line["name"])
        promise = (
            "" if limit is None else f"at most {limit}{' by hand' if line['name'] == 'recording' else ' µs'}"
        )
        half = f"({line['low']:.1f} to {line['high']:.1f})"
        figures = (
            f"{line['cost']:8.1f}{line['added']:8.1f}   {half:18}{line['quick']:15.1f}{line['by hand']:13.2f}"
        )
        shown.append(f"{line['name']:20}{figures}   {promise}")
    return "\n".join(shown)


def main() -> None:
    """Read the options, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=240, help="rounds of each variant")
    parser.add_argument("--calls", type=int, default=400, help="approvals in a round")
    parser.add_argument("--processes", type=int, default=6, help="so often they begin anew")
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    options = parser.parse_args()
    lines = rows(run(options.rounds, options.calls, options.processes))
    print(table(lines))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
