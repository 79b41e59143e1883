"""The world of one schedule: its time, its processes, and the order of events."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from unittest import mock

import loanasync._transport.connection  # noqa: F401  (the first client would load it, and draw random bytes)
from loanasync._runtime import flights, guard
from loanasync._telemetry import log as package_log
from loanasync.ledger import header, resolution
from simulation.chance import Chance
from simulation.event_loop import VirtualLoop
from simulation.record import Record

if TYPE_CHECKING:
    from simulation.network import Network
    from simulation.plan import Plan
    from simulation.service import Service

T = TypeVar("T")

_OTEL = logging.getLogger("opentelemetry.context")
_START = 1_000_000.0  # the monotonic time of a new world, seconds
EPOCH = 1_700_000_000.0  # the time of day at monotonic time 0, seconds
_IDLE = 0.3  # seconds after which an idle event loop does not delay a countdown
_MAX_TURNS = 50_000  # of processes; a schedule has a few hundred


class Process:
    """A program with its own event loop, process id, random numbers and once-only warnings."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.pid = 100 + len(world.processes)
        self.loop = VirtualLoop(self)
        self.loop.set_exception_handler(self._on_loop_error)
        if world.plan.setup.is_eager and hasattr(asyncio, "eager_task_factory"):  # Python 3.12
            self.loop.set_task_factory(asyncio.eager_task_factory)
        self.killed_at: float | None = None
        self.frozen_until = 0.0
        self.frozen_at = -inf
        self.tasks: list[asyncio.Task[None]] = []
        self.warned: set[str] = set()
        self.guard = name  # its memory, or the ledger that it shares
        # One sequence for each kind, so that an aiohttp that fills its caches does not change the others.
        self._random = {
            kind: random.Random(world.chance.bits(kind, name)).random  # noqa: S311  (not for secrets)
            for kind in ("timer", "bytes", "effect", "wait")
        }
        self._countdowns: list[tuple[int, Callable[[], object]]] = []
        self._iterations = 0
        world.processes.append(self)

    def random(self, kind: str) -> float:
        """Return the next random number of a kind, from 0 to 1."""
        return self._random[kind]()

    @property
    def can_run(self) -> bool:
        """Return True unless the process was killed or is frozen."""
        return self.killed_at is None and self.frozen_until <= self.world.now

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine of an actor in this process."""
        with self.world.entered(self):
            task = self.loop.create_task(work)
        self.tasks.append(task)
        return task

    def later(self, delay: float, function: Callable[[], object]) -> None:
        """Call a function in this process after some seconds: an event from outside of its event loop."""
        self.world.later(delay, function, self)

    def after_iterations(self, count: int, function: Callable[[], object]) -> None:
        """Call a function after some iterations of the event loop, or soon if it has nothing to do."""
        self._countdowns.append((self._iterations + count, function))
        self.later(_IDLE, lambda: self._run_countdowns(self._iterations + count))

    def _run_countdowns(self, until: int) -> None:
        due = [function for at, function in self._countdowns if at <= until]
        self._countdowns = [each for each in self._countdowns if each[0] > until]
        for function in due:
            function()

    def run(self) -> None:
        """Run the event loop until no callback is ready, or the process is killed or frozen."""
        with self.world.entered(self):
            while self.can_run and self.loop.is_ready:
                self.world.turns += 1
                if self.world.turns > _MAX_TURNS:
                    raise RuntimeError("endless schedule")
                self.loop.step()
                self._iterations += 1
                if self._countdowns:
                    self._run_countdowns(self._iterations)

    def end_faults(self) -> None:
        """Thaw the process, and forget kills and cancellations that were planned."""
        self.frozen_until = min(self.frozen_until, self.world.now)
        self._countdowns.clear()

    def kill(self) -> None:
        """Never run this process again. Its coroutines stay referenced, so that no `finally` runs."""
        self.killed_at = self.world.now
        self.world.note(self, "is killed")

    def freeze(self, seconds: float) -> None:
        """Stop this process for some seconds."""
        self.frozen_until = self.world.now + seconds
        self.frozen_at = self.world.now
        self.world.note(self, f"is frozen for {seconds:g} s")
        self.later(seconds, lambda: None)

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.world.is_over:
            error = context.get("exception")
            message = str(context["message"]).partition("(")[0]  # without addresses of objects
            self.world.record.stray.append(f"{message} ({type(error).__name__})")

    def tasks_left(self) -> list["asyncio.Task[Any]"]:
        """Return the tasks that have not ended."""
        return [task for task in asyncio.all_tasks(self.loop) if not task.done()]

    def dispose(self) -> None:
        """Close the coroutines that are left, after the end of the schedule."""
        with self.world.entered(self):
            for task in self.tasks_left():
                with suppress(BaseException):
                    task.get_coro().close()
        self.loop.close()


class World:
    """Everything that exists in one schedule."""

    current: ClassVar["World | None"] = None
    network: "Network"
    service: "Service"

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.chance = Chance(plan.seed)
        self.now = _START
        self.processes: list[Process] = []
        self.process: Process | None = None  # the one that runs
        self.record = Record(self)
        self.turns = 0
        self.has_faults = True
        self.is_over = False
        self.chosen: list[str] = []  # names of the choices that differ from the usual one
        self._number_of_events = 0
        self._rounds = 0
        self._events: list[tuple[float, int, int, Callable[[], object], Process | None]] = []

    def choose(self, usual: T, weights: dict[T, int], *name: object) -> T:
        """Return the usual option, or another one with the given weights: a fault, for example."""
        if not self.has_faults:
            return usual
        text = " ".join(map(str, name))
        if text in self.plan.muted:
            return usual
        option = self.chance.weighted(weights, text)
        if option != usual:
            self.chosen.append(text)
        return option

    def note(self, actor: "Process | str", text: str) -> None:
        """Add a step to the story of the schedule. It must not contain personal data."""
        if self.is_over:
            return
        name = actor if isinstance(actor, str) else actor.name
        self.record.story.append((self.now - _START, name, text))

    def later(self, delay: float, function: Callable[[], object], process: Process | None = None) -> None:
        """Call a function after some seconds. The seed chooses the order of events of equal time."""
        self._at(self.now + delay, function, process)

    def _at(self, when: float, function: Callable[[], object], process: Process | None) -> None:
        self._number_of_events += 1
        number = self._number_of_events
        tie = self.chance.bits("tie", number)
        heappush(self._events, (when, tie, number, function, process))

    @contextmanager
    def entered(self, process: Process) -> Iterator[None]:
        """Make the patched functions return values of this process."""
        outer, self.process = self.process, process
        outer_warned, package_log._warned = package_log._warned, process.warned
        try:
            yield
        finally:
            self.process, package_log._warned = outer, outer_warned

    def run(self, until: float) -> None:
        """Run all events up to a time, in seconds since the beginning."""
        horizon = _START + until
        while True:
            ready = [each for each in self.processes if each.can_run and each.loop.is_ready]
            if ready:
                self._rounds += 1
                (self.chance.pick(ready, "turn", self._rounds) if len(ready) > 1 else ready[0]).run()
                continue
            timers = [each.loop.next_timer for each in self.processes if each.can_run]
            if self._events:
                timers.append(self._events[0][0])
            if (following := min(timers, default=horizon)) >= horizon:
                self.now = horizon
                return
            self.now = max(self.now, following)
            while self._events and self._events[0][0] <= self.now:
                *_, function, process = heappop(self._events)
                self._deliver(function, process)

    def _deliver(self, function: Callable[[], object], process: Process | None) -> None:
        if process is None:
            function()
        elif process.killed_at is None:
            if process.frozen_until > self.now:
                self._at(process.frozen_until, function, process)
                return
            with self.entered(process):
                function()

    def dispose(self) -> None:
        """End the world. Its coroutines have no effect from now on."""
        self.is_over = True
        _OTEL.disabled = True  # contexts are not restored in the order in which they were set
        for process in self.processes:
            process.dispose()
        _OTEL.disabled = False


def _now() -> float:
    return _START if World.current is None else World.current.now


def _time_of_day() -> float:
    return EPOCH + _now()


def _bytes(size: int) -> bytes:
    world = World.current
    if world is None or world.process is None:
        return bytes(size)
    return int(world.process.random("bytes") * 2**53).to_bytes(8, "big").ljust(size, b"\0")[:size]


def _fraction() -> float:
    world = World.current
    return 0.5 if world is None or world.process is None else world.process.random("wait")


def _pid() -> int:
    world = World.current
    return 0 if world is None or world.process is None else world.process.pid


@contextmanager
def simulated_machine() -> Iterator[None]:
    """Replace the clock, the process id and the random numbers of this machine by those of the world."""
    with (
        mock.patch.object(time, "monotonic", _now),
        mock.patch.object(time, "time", _time_of_day),
        mock.patch.object(os, "getpid", _pid),
        mock.patch.object(os, "urandom", _bytes),
        mock.patch.object(guard, "monotonic", _now),
        mock.patch.object(flights, "token_bytes", _bytes),
        mock.patch.object(resolution, "token_hex", lambda size: _bytes(size).hex()),
        mock.patch.object(header, "token_hex", lambda size: _bytes(size).hex()),
        mock.patch.object(random, "uniform", lambda low, high: low + (high - low) * _fraction()),
    ):
        yield
