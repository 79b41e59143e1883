"""What a call takes that no clock tells: function calls of Python's, objects that its collector follows.

Both are exact: two runs tell the same. An ordinary test holds them to bounds, `tests/stress/test_cost.py`.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from clients_ours import ours
from clients_plain import plain
from inmemory import Memory, client_over
from order import APPROVED, CODE, FIELDS, Answer, Call
from service import Service, serving

from loanasync import ApprovalRequest

WARM_UP = 20  # calls, after which every cache is filled
CALLS = 200
ROUNDS = 3  # the least of so many: a timer that happened to wait belongs to no call
IN_FLIGHT = 100


async def function_calls(call: Call) -> float:
    """How many functions of Python's run in one call, coroutines that go on counted again."""
    for _ in range(WARM_UP):
        assert await call() == APPROVED
    gc.collect()
    # Of most calls: now and then an old timer runs beside one.
    return statistics.mode([await _counted(call) for _ in range(CALLS)])


async def _counted(call: Call) -> int:
    calls = 0

    def count_call(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return calls


async def in_flight(call: Call, service: Service, number: int, measure: Callable[[], float]) -> float:
    """How much something that can be measured grows with each of so many calls that wait for their answer."""
    gc.collect()
    before = measure()
    service.hold()
    tasks = [asyncio.create_task(call()) for _ in range(number)]
    while service.held() < number:
        await asyncio.sleep(0.01)
        for task in tasks:
            assert not task.done() or task.result() == APPROVED  # raises what ended a call too early
    gc.collect()
    after = measure()
    service.answer()
    assert await asyncio.gather(*tasks) == [APPROVED] * number
    return (after - before) / number


async def objects(call: Call, service: Service) -> float:
    """How many objects the collector of cycles follows for each call that waits on a kept connection."""
    figures = [
        await in_flight(call, service, IN_FLIGHT, lambda: len(gc.get_objects())) for _ in range(ROUNDS + 1)
    ]
    return min(figures[1:])  # the first opens the connections


async def run() -> dict[str, float]:
    """All figures."""
    scripted = client_over(Memory())
    orders = count()

    async def approve() -> Answer:
        decision = await scripted.approve(CODE, ApprovalRequest(**FIELDS), scope=str(next(orders)))
        return decision.meta.status, decision.approved

    figures = {"function calls, script": await function_calls(approve)}
    with serving() as service:
        service.answer_late()
        async with ours(service.base_url) as our_call, plain(service.base_url) as plain_call:
            for name, call in (("", our_call), (" of plain aiohttp", plain_call)):
                figures[f"function calls{name}, socket"] = await function_calls(call)
                figures[f"objects in flight{name}"] = await objects(call, service)
    return figures


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    options = parser.parse_args()
    figures = asyncio.run(run())
    for name, figure in figures.items():
        print(f"{name:40}{figure:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
