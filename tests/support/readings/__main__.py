"""Runs all flows against all services and prints three counts: `nox -s readings`.

`python -m support.readings` exits with status 1 if a count is not zero.
"""

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context

from loanasync.sandbox import Readings
from support.readings.flows import FLOWS
from support.readings.runner import Report, run
from support.readings.services import exhaustive, pairwise

SHOWN = 20  # kinds of violations
AT_ONCE = 32  # services for one process


def run_part(services: list[Readings]) -> Report:
    """Run some of the services in this process."""
    logging.disable(logging.CRITICAL)  # each failure of a flow would be logged
    gc.set_threshold(100_000, 50, 50)  # flows make many small objects, and few cycles
    return asyncio.run(run(services))


def parts(services: list[Readings]) -> Iterator[list[Readings]]:
    yield from (services[start : start + AT_ONCE] for start in range(0, len(services), AT_ONCE))


def main() -> int:
    """Run all services, print the result, and return the exit status."""
    started = time.monotonic()
    services = [*exhaustive(), *pairwise()]
    whole = Report()
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for report in pool.imap_unordered(run_part, parts(services)):
            whole.add(report)
        pool.close()
        pool.join()
    spent = os.times()  # of the pool's processes, too: a busy machine takes longer
    text = "\n".join(lines(whole, time.monotonic() - started, spent.children_user + spent.children_system))
    print(text)  # noqa: T201  (the output of the script)
    return int(any(whole.numbers.figures))


def lines(report: Report, seconds: float, spent: float) -> Iterator[str]:
    """Yield the output: size of the run, three counts, and kinds of violations with examples."""
    numbers = report.numbers
    yield f"{report.services:,} services, {len(FLOWS)} flows with and without a ledger"
    yield f"{report.flows:,} runs, {report.requests:,} requests"
    yield f"{seconds:.0f} seconds, {spent:.0f} seconds of processor time"
    yield f"evaluations beyond one per key: {len(numbers.evaluations)}"
    yield f"decisions that were lost: {len(numbers.lost)}"
    yield f"wrong final states: {len(numbers.wrong)}"
    kinds: dict[tuple[str, str], list[str]] = {}
    for each in (*numbers.evaluations, *numbers.lost, *numbers.wrong):
        flow, readings, violation = each.split(" | ")
        kinds.setdefault((flow, violation), []).append(readings)
    for (flow, violation), found in sorted(kinds.items(), key=lambda each: -len(each[1]))[:SHOWN]:
        yield f"{len(found)} times: {flow}: {violation}; for example in the reading {found[0]}"


if __name__ == "__main__":
    sys.exit(main())
