"""Measure approvals per second of the sandbox, beside a minimal aiohttp handler.

Both run on the same core, in turns, and the load comes from another core, so that noise of the machine
affects both alike. CPU time of the server process is the figure that noise affects least.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from attrs import frozen
from cores import CORES, pin
from load import Connections, Shop, connected, fiscal_codes

from loanasync.sandbox import Sandbox

CONNECTIONS = 16
CREATED = 201
BUSY = 0.9  # share of the time; above it, the server was the bottleneck


@frozen
class Round:
    """One round of approvals on one server."""

    approvals: int
    seconds: float
    processor: float

    @property
    def rate(self) -> float:
        """Approvals per second."""
        return self.approvals / self.seconds

    @property
    def cost(self) -> float:
        """CPU time of the server per approval, in microseconds."""
        return self.processor / self.approvals * 1e6

    @property
    def busy(self) -> float:
        """Share of the time in which the server used its core; near 1, it was the bottleneck."""
        return self.processor / self.seconds


@contextmanager
def bare(size: int) -> Iterator[tuple[str, int]]:
    """Start a minimal handler with responses of `size` bytes; yield its URL and process id."""
    command = [sys.executable, str(Path(__file__).with_name("bare.py")), str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


async def measured(connections: Connections, pid: int, requests: Sequence[bytes]) -> Round:
    """Run one round, and exit if a response is not an approval."""
    process = psutil.Process(pid)
    gc.collect()
    before, started = process.cpu_times(), time.perf_counter()
    statuses = await connections.send(requests)
    seconds, after = time.perf_counter() - started, process.cpu_times()
    if statuses != {CREATED: len(requests)}:
        sys.exit(f"not all requests were approved; the measurement is invalid: {dict(statuses)}")
    return Round(len(requests), seconds, after.user + after.system - before.user - before.system)


async def run(rounds: int, approvals: int) -> tuple[list[Round], list[Round], int]:
    """Return the rounds of the minimal handler and of the sandbox, and the size of the responses."""
    codes = fiscal_codes()
    bares, sandboxes = [], []
    with Sandbox.subprocess() as sandbox:
        shop = Shop(sandbox.base_url, sandbox.shop_id, sandbox.auth_token)
        async with connected(sandbox.base_url, CONNECTIONS) as to_sandbox:
            first = next(codes)
            await to_sandbox.send_one(shop.creation(first))
            _, response = await to_sandbox.send_one(shop.approval(first))
            with bare(len(response)) as (base_url, pid):
                for each in (sandbox.pid, pid):
                    pin(each, 0)
                async with connected(base_url, CONNECTIONS) as to_bare:
                    for number in range(rounds + 1):
                        people = list(itertools.islice(codes, approvals))
                        requests = [shop.approval(code) for code in people]
                        await to_sandbox.send(shop.creation(code) for code in people)
                        pair = (
                            await measured(to_bare, pid, requests),
                            await measured(to_sandbox, sandbox.pid, requests),
                        )
                        if number:  # the first round is a warm-up
                            bares.append(pair[0])
                            sandboxes.append(pair[1])
    return bares, sandboxes, len(response)


def compared(
    name: str, figure: Callable[[Round], float], bares: list[Round], sandboxes: list[Round], *, less: bool
) -> dict[str, Any]:
    """Return a line of the table: both medians, and the ratio of pairs of rounds; 1 means equal cost."""
    pairs = [(figure(a), figure(b)) for a, b in zip(bares, sandboxes, strict=True)]
    ratios = [a / b if less else b / a for a, b in pairs]
    return {
        "name": name,
        "bare": statistics.median(a for a, _ in pairs),
        "sandbox": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format the results."""
    lines = [f"{'':24}{'bare':>9}{'sandbox':>9}{'ratio':>8}   (range)"]
    for row in rows:
        shown = f"{row['name']:24}{row['bare']:9,.0f}{row['sandbox']:9,.0f}{row['ratio']:8.2f}"
        lines.append(f"{shown}   ({row['lowest']:.2f} to {row['highest']:.2f})")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each server")
    parser.add_argument("--approvals", type=int, default=4000, help="approvals in a round")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    pin(os.getpid(), 1)
    bares, sandboxes, size = asyncio.run(run(options.rounds, options.approvals))
    rows = [
        compared("approvals per second", lambda each: each.rate, bares, sandboxes, less=False),
        compared("CPU per approval (µs)", lambda each: each.cost, bares, sandboxes, less=True),
    ]
    busy = [statistics.median(each.busy for each in rounds) for rounds in (bares, sandboxes)]
    print(table(rows))
    print(
        f"{options.rounds} rounds of {options.approvals} approvals each, in turns, {CONNECTIONS} connections,"
        f" responses of {size} bytes, {'pinned' if len(CORES) > 1 else 'not pinned'};"
        f" the servers were busy {busy[0]:.0%} and {busy[1]:.0%} of the time;"
        f" Python {platform.python_version()}, aiohttp {aiohttp.__version__}"
    )
    if min(busy) < BUSY:
        print("The servers were not busy all the time: use the second row only.")
    if options.json:
        figures: dict[str, Any] = {
            "rows": rows,
            "rounds": options.rounds,
            "approvals": options.approvals,
            "bytes": size,
        }
        figures["busy"] = dict(zip(("bare", "sandbox"), busy, strict=True))
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
