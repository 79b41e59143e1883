"""Measure the CPU time per call of loanasync, plain aiohttp, assembled stacks and other SDKs.

A minimal service runs on one core; all clients share another core and take turns in short rounds. A
figure is the CPU time, user and system, of the client process for each call. A ratio compares it with
plain aiohttp in the same round.
"""

import argparse
import json
import platform
import statistics
import sys
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
from rounds import Opened, Variant, cost_and_load, interleaved, opened, spread
from service import Service, serving

BASELINE = "plain aiohttp"
OURS = "loanasync"
OURS_RECORDING = "loanasync, recording"
# Targets for 32 calls in flight: a variant, the variant to compare it with, and the bound of the ratio.
TARGETS = (
    (OURS, BASELINE, "at most", 0.80),
    (OURS_RECORDING, "plain aiohttp + telemetry", "at most", 0.85),
    ("assembled stack", OURS, "at least", 2.5),
    ("assembled stack, recording", OURS_RECORDING, "at least", 1.5),
    ("stripe", OURS, "at least", 4.0),
    ("openai", OURS, "at least", 10.0),
)
PACKAGES = (
    "aiohttp anthropic azure-core httpx mollie-api-py openai opentelemetry-sdk orjson pydantic stripe uvloop"
)


def variants() -> list[Variant]:
    """Return all clients of the comparison."""
    by_hand_sdk, stack_sdk, our_sdk = recording(), recording(), recording()
    return [
        Variant(BASELINE, plain),
        Variant("plain aiohttp + orjson", with_orjson),
        Variant(
            "plain aiohttp + telemetry",
            partial(by_hand, providers=by_hand_sdk),
            settle=by_hand_sdk[0].force_flush,
        ),
        Variant(OURS, with_loanasync),
        Variant("loanasync, direct_connections=False", through_session),
        Variant("loanasync, session of the user", through_users_session),
        Variant("loanasync, sampled out", sampled_out),
        Variant(OURS_RECORDING, partial(recorded, providers=our_sdk), settle=our_sdk[0].force_flush),
        Variant("loanasync on uvloop", with_loanasync, loop="uvloop"),
        Variant("assembled stack", assembled),
        Variant(
            "assembled stack, recording",
            partial(assembled, providers=stack_sdk),
            settle=stack_sdk[0].force_flush,
        ),
        Variant("httpx", with_httpx),
        Variant("stripe", with_stripe),
        Variant("azure-core", with_azure),
        Variant("anthropic", with_anthropic),
        Variant("openai", with_openai),
        Variant("mollie-api-py", with_mollie),
        Variant("lower bound", bare),
        Variant("lower bound on uvloop", bare, loop="uvloop"),
    ]


def measured(
    clients: dict[str, Opened], service: Service, rounds: int, calls: int, in_flight: int
) -> dict[str, Any]:
    """Return the cost of a call, its ratio and the load of the service, for each variant."""
    measures = {
        name: partial(cost_and_load, client, service, calls, in_flight) for name, client in clients.items()
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
                "service_busy": statistics.median(busy for _, busy in figures[name]),
            }
            for name in clients
        ],
        "goals": [
            {
                "name": name,
                "per": per,
                "target": f"{word} {bound:.2f}",
                **asdict(spread(costs[name], costs[per])),
            }
            for name, per, word, bound in TARGETS
            if name in costs and per in costs
        ],
    }


def table(level: dict[str, Any]) -> str:
    """Format the results for one number of calls in flight."""
    head = f"{level['in_flight']} in flight"
    lines = [f"\n{head:36}{'µs of CPU':>10}{'ratio':>8}   {'(middle half)':18}{'service busy':>13}"]
    for row in level["rows"]:
        ratio = row["ratio"]
        half = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
        lines.append(
            f"{row['name']:36}{row['cost']['median']:10.1f}{ratio['median']:8.2f}   {half:18}"
            f"{row['service_busy']:13.0%}"
        )
    lines += [
        f"{goal['name']} / {goal['per']}: {goal['median']:.2f} ({goal['low']:.2f} to {goal['high']:.2f}),"
        f" target: {goal['target']}"
        for goal in level["goals"]
    ]
    return "\n".join(lines)


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each variant")
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--in-flight", default="1,32,100", help="calls in flight, comma-separated")
    parser.add_argument("--variants", help="only clients whose names contain one of these, comma-separated")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--plot", type=Path, help="draw the ratios in this SVG file")
    options = parser.parse_args()
    wanted = [
        each
        for each in variants()
        if each.name == BASELINE
        or not options.variants
        or any(part in each.name for part in options.variants.split(","))
    ]
    levels = []
    with serving() as service, opened(wanted, service.base_url) as (clients, skipped):
        for name, reason in skipped.items():
            print(f"skipped: {name}: {reason}")
        if BASELINE in skipped:
            sys.exit("plain aiohttp failed, so there is no baseline")
        for in_flight in map(int, options.in_flight.split(",")):
            levels.append(measured(clients, service, options.rounds, options.calls, in_flight))
            print(table(levels[-1]), flush=True)
    figures = {
        "versions": versions(),
        "rounds": options.rounds,
        "calls": options.calls,
        "skipped": skipped,
        "levels": levels,
    }
    print(
        f"\n{options.rounds} rounds of {options.calls} calls each; "
        + ", ".join(f"{name} {number}" for name, number in figures["versions"].items())
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        from plot import draw  # noqa: PLC0415  (matplotlib is optional)

        draw(figures, options.plot)


if __name__ == "__main__":
    main()
