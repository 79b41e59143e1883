"""Runs schedules: one, many in several processes, or a failing one reduced to its story."""

import gc
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from unittest import mock

from attrs import asdict, define, field, frozen

from loanasync._runtime import guard
from loanasync._telemetry.log import LOGGER
from simulation.actors import Actors
from simulation.effects import log_handler
from simulation.invariants import check_end
from simulation.network import Network
from simulation.plan import Plan, Setup, generate, shrink
from simulation.service import Service
from simulation.world import World, simulated_machine

_FAULTS_END = 135.0  # seconds after the last action
_CALLS_END = 150.0  # seconds after the last fault: longer than any lease
_COLLECT_EVERY = 5  # schedules


@frozen
class Result:
    """The result of a schedule."""

    plan: Plan
    violations: list[tuple[str, str]]
    story: list[tuple[float, str, str]]
    chosen: list[str]

    @property
    def trace(self) -> str:
        """A digest of everything that happened."""
        return sha256(repr(self.story).encode()).hexdigest()[:16]


@define
class Summary:
    """The results of many schedules."""

    number: int = 0
    failed: list[int] = field(factory=list)  # seeds
    invariants: Counter[str] = field(factory=Counter)

    def add(self, result: Result) -> None:
        """Add the result of a schedule."""
        self.number += 1
        if result.violations:
            self.failed.append(result.plan.seed)
            self.invariants.update({name for name, _ in result.violations})

    def join(self, other: "Summary") -> None:
        """Add the results of other schedules."""
        self.number += other.number
        self.failed += other.failed
        self.invariants += other.invariants


@contextmanager
def machine() -> Iterator[Path]:
    """Prepare this process for schedules, and yield the folder for their orphan files."""
    with (
        tempfile.TemporaryDirectory(prefix="simulation-") as folder,
        warnings.catch_warnings(),
        mock.patch.object(sys, "unraisablehook", mock.Mock()),  # coroutines of killed processes
        log_handler(),
        simulated_machine(),
    ):
        warnings.simplefilter("ignore")  # clients of killed processes are not closed
        gc.collect()
        gc.freeze()
        gc.disable()  # objects of a killed process must not be finalized while the schedule runs
        try:
            yield Path(folder)
        finally:
            World.current = None
            gc.enable()


def run(plan: Plan, folder: Path) -> Result:
    """Run a schedule."""
    with mock.patch.object(guard, "_MAX_RESPONSES", plan.setup.memory_limit or guard._MAX_RESPONSES):
        return _run(plan, folder)


def _run(plan: Plan, folder: Path) -> Result:
    world = World.current = World(plan)
    LOGGER.setLevel(logging.DEBUG if plan.setup.logs_all else logging.WARNING)
    world.network, world.service = Network(world), Service(world)
    actors = Actors(world, folder)
    for action in plan.actions:
        world.later(action.at, lambda action=action: actors.perform(action))  # type: ignore[misc]
    until = max((action.at for action in plan.actions), default=0.0) + _FAULTS_END
    try:
        world.run(until)
        actors.end_faults()
        world.run(until := until + _CALLS_END)
        actors.probe()
        world.run(until := until + _CALLS_END)
        actors.check_probes()
        actors.close()
        world.run(until + _CALLS_END)
        check_end(world, actors)
    finally:
        world.dispose()
        actors.delete_files()
    record = world.record
    return Result(plan, record.violations, record.story, world.chosen)


def run_seeds(seeds: Iterable[int], folder: Path) -> Iterator[Result]:
    """Run the schedules of seeds."""
    for number, seed in enumerate(seeds):
        if number % _COLLECT_EVERY == 0:
            gc.collect()
        yield run(generate(seed), folder)


def run_chunk(first: int, number: int) -> Summary:
    """Run the schedules of consecutive seeds, as a task for another process."""
    summary = Summary()
    with machine() as folder:
        for result in run_seeds(range(first, first + number), folder):
            summary.add(result)
    return summary


def shrunk(result: Result, folder: Path) -> Result:
    """Return a smaller schedule that violates one of the same invariants."""
    names = {name for name, _ in result.violations}
    smallest = result

    def fails(plan: Plan) -> list[str] | None:
        nonlocal smallest
        found = run(plan, folder)
        if names.isdisjoint(name for name, _ in found.violations):
            return None
        smallest = found
        return found.chosen

    shrink(result.plan, result.chosen, fails)
    return smallest


def story(result: Result) -> str:
    """Return the numbered steps of a schedule, without the calls for new customers at its end."""
    lines = [f"seed {result.plan.seed}: {'; '.join(f'{name}: {text}' for name, text in result.violations)}"]
    usual = asdict(Setup())
    unusual = [
        f"{name}: {value}" for name, value in asdict(result.plan.setup).items() if value != usual[name]
    ]
    lines.append(f"      {', '.join(unusual)}")
    steps = [step for step in result.story if " customer P" not in step[2] or step[1] == "VIOLATION"]
    lines += [
        f"{number:4d}. {at:9.4f} s  {actor}: {text}" for number, (at, actor, text) in enumerate(steps, 1)
    ]
    return "\n".join(lines)
