"""The command line: `python -m simulation`, with the folder of the tests in PYTHONPATH."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from simulation.mutants import run_mutants
from simulation.plan import generate
from simulation.runner import Summary, machine, run, run_chunk, shrunk, story

_CHUNK = 500  # schedules


def run_all(first: int, number: int, workers: int) -> Summary:
    """Run many schedules in several processes."""
    summary, started = Summary(), time.monotonic()
    chunks = [(at, min(_CHUNK, first + number - at)) for at in range(first, first + number, _CHUNK)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for found in pool.map(run_chunk, *zip(*chunks, strict=True)):
            summary.join(found)
            if found.failed:
                print(f"failed: {', '.join(map(str, found.failed))}", flush=True)
            if summary.number % (20 * _CHUNK) == 0:
                seconds = time.monotonic() - started
                print(
                    f"{summary.number} schedules, {len(summary.failed)} failed, {seconds:.0f} s", flush=True
                )
    return summary


def story_of(seed: int) -> str:
    """Return the story of one seed; of a failing one, the steps that the failure needs."""
    with machine() as folder:
        result = run(generate(seed), folder)
        return story(shrunk(result, folder) if result.violations else result)


def seed_number(text: str) -> int:
    """Return a seed.

    Raises:
        ArgumentTypeError: The text is not a whole number of at least 0.
    """
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: give a whole number of at least 0")
    return int(text)


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("number", nargs="?", type=seed_number, default=1, help="number of schedules")
    parser.add_argument(
        "--seed", type=seed_number, default=0, help="the first seed; with no number, print it"
    )
    parser.add_argument("--workers", type=seed_number, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mutants", action="store_true", help="plant faults, which the schedules must find")
    parser.add_argument("--only", default="", help="with --mutants: those whose name contains this")
    given = parser.parse_args()
    if given.mutants:
        return run_mutants(given.only, given.workers)
    if given.number == 1:
        print(text := story_of(given.seed))
        return int("VIOLATION" in text)
    print(f"seeds {given.seed} to {given.seed + given.number - 1}", flush=True)
    summary = run_all(given.seed, given.number, given.workers)
    print(f"{summary.number} schedules, {len(summary.failed)} failed {dict(summary.invariants)}")
    for seed in summary.failed[:3]:
        print(f"\n{story_of(seed)}")
    if summary.failed:
        print(f"\nreplay one with: nox -s simulation -- --seed {summary.failed[0]}")
    return int(bool(summary.failed))


if __name__ == "__main__":
    sys.exit(main())
