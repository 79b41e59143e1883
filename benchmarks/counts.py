"""Count the Python and C function calls of an approval, and its objects that the garbage collector tracks.

All are exact and equal in every run. `tests/stress/test_cost.py` checks their upper bounds.
"""

import asyncio
import gc
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import count

from byhand import recording
from clients_loanasync import recorded, through_users_session, with_loanasync
from clients_plain import by_hand, plain
from inmemory import InMemoryService, client_with
from order import APPROVED, FULL, Call, Opener, Result, Scenario
from rounds import goal, parser_of, save, spread
from service import Service, serving

WARM_UP = 20  # calls that fill all caches
CALLS = 200
ROUNDS = 3  # the median is used: an unrelated timer may be pending, or end, in one of them
IN_FLIGHT = 100
TARGETS = {"function calls, own session": 130, "function calls, session of the user": 240}


async def function_calls(name: str, call: Call) -> dict[str, float]:
    """Return the Python and C functions that one call runs; each resumed coroutine counts again."""
    for _ in range(WARM_UP):
        assert await call() == APPROVED
    gc.collect()
    # The mode, since an unrelated timer sometimes runs during a call.
    python, c = statistics.mode([await _counted(call) for _ in range(CALLS)])
    return {f"function calls, {name}": python, f"C calls, {name}": c}


async def _counted(call: Call) -> tuple[int, int]:
    events = {"call": 0, "c_call": -1}  # `setprofile` at the end is a C function, too

    def count_event(_: object, event: str, __: object) -> None:
        if event in events:
            events[event] += 1

    sys.setprofile(count_event)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return events["call"], events["c_call"]


async def in_flight(call: Call, service: Service, number: int, measure: Callable[[], float]) -> float:
    """Return the growth of a measure per call, while `number` calls wait for their responses."""
    gc.collect()
    before = measure()
    service.hold()
    tasks = [asyncio.create_task(call()) for _ in range(number)]
    while service.held() < number:
        await asyncio.sleep(0.01)
        for task in tasks:
            assert not task.done() or task.result() == APPROVED  # raises the error of a call that failed
    gc.collect()
    after = measure()
    service.release()
    assert await asyncio.gather(*tasks) == [APPROVED] * number
    return (after - before) / number


async def objects(call: Call, service: Service) -> float:
    """Return the objects that the garbage collector tracks per waiting call, on kept connections."""
    figures = [
        await in_flight(call, service, IN_FLIGHT, lambda: len(gc.get_objects())) for _ in range(ROUNDS + 1)
    ]
    return statistics.median(figures[1:])  # the first round opens connections


def clients() -> dict[str, Opener]:
    """Return the compared clients, which use a socket."""
    return {
        "own session": with_loanasync,
        "session of the user": through_users_session,
        "recording": partial(recorded, providers=recording()),
        "plain aiohttp": plain,
        "plain aiohttp + telemetry": partial(by_hand, providers=recording()),
    }


async def run() -> dict[str, float]:
    """Return all counts of the full order."""
    scripted = client_with(InMemoryService())
    orders, codes = count(), Scenario("").codes

    async def approve() -> Result:
        decision = await scripted.approve(next(codes), FULL.request(), order_id=str(next(orders)))
        return decision.meta.status, decision.approved

    figures = await function_calls("script", approve)
    in_flight = {}
    with serving() as service:
        service.respond_late()
        for name, client in clients().items():
            async with client(Scenario(service.base_url)) as call:
                figures |= await function_calls(name, call)
                in_flight[f"objects in flight, {name}"] = await objects(call, service)
    return figures | in_flight


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    options = parser.parse_args()
    figures = asyncio.run(run())
    for name, figure in figures.items():
        print(f"{name:50}{figure:10.2f}")
    goals = [goal(name, spread([figures[name]]), bound) for name, bound in TARGETS.items()]
    save(options.json, {"counts": figures, "goals": goals})


if __name__ == "__main__":
    main()
