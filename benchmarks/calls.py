"""What a call costs its process with our client, with aiohttp by hand, and with other SDKs, in one run.

A minimal service answers from a core of its own; all clients share another core and take turns in short
rounds. A figure is processor time, user and system, of the whole client process for each call; a ratio is to
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
from clients_ours import ours, recorded, sampled_out, through_session, through_users_session
from clients_plain import by_hand, plain
from clients_sdks import with_anthropic, with_azure, with_mollie, with_openai, with_stripe
from clients_stacks import assembled, with_httpx, with_orjson
from rounds import Opened, Variant, interleaved, opened, spent, spread
from service import Service, serving

BASELINE = "plain aiohttp"
OURS = "ours"
OURS_RECORDING = "ours, recording"
# What is promised with 32 in flight, or as many as come next: a variant, to which other, at most or at least.
GOALS = (
    (OURS, BASELINE, "at most", 0.80),
    (OURS_RECORDING, "plain + telemetry by hand", "at most", 0.85),
    ("assembled stack", OURS, "at least", 2.5),
    ("assembled stack, recording", OURS_RECORDING, "at least", 1.5),
    ("stripe", OURS, "at least", 4.0),
    ("openai", OURS, "at least", 10.0),
)
PACKAGES = (
    "aiohttp anthropic azure-core httpx mollie-api-py openai opentelemetry-sdk orjson pydantic stripe uvloop"
)


def variants() -> list[Variant]:
    """All that take part."""
    hands, stocks, own = recording(), recording(), recording()
    return [
        Variant(BASELINE, plain),
        Variant("plain + orjson", with_orjson),
        Variant("plain + telemetry by hand", partial(by_hand, providers=hands), settle=hands[0].force_flush),
        Variant(OURS, ours),
        Variant("ours, through own session", through_session),
        Variant("ours, through user's session", through_users_session),
        Variant("ours, sampled out", sampled_out),
        Variant(OURS_RECORDING, partial(recorded, providers=own), settle=own[0].force_flush),
        Variant("ours on uvloop", ours, loop="uvloop"),
        Variant("assembled stack", assembled),
        Variant(
            "assembled stack, recording", partial(assembled, providers=stocks), settle=stocks[0].force_flush
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
    """One level of the table: what each variant spends on a call, its ratio, and how busy the service was."""
    measures = {name: partial(spent, client, service, calls, in_flight) for name, client in clients.items()}
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
                "promise": f"{word} {bound:.2f}",
                **asdict(spread(costs[name], costs[per])),
            }
            for name, per, word, bound in GOALS
            if name in costs and per in costs
        ],
    }


def table(level: dict[str, Any]) -> str:
    """A level for people."""
    head = f"{level['in_flight']} in flight"
    lines = [f"\n{head:28}{'µs of CPU':>10}{'ratio':>8}   {'(middle half)':18}{'service busy':>13}"]
    for row in level["rows"]:
        ratio = row["ratio"]
        half = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
        lines.append(
            f"{row['name']:28}{row['cost']['median']:10.1f}{ratio['median']:8.2f}   {half:18}"
            f"{row['service_busy']:13.0%}"
        )
    lines += [
        f"{goal['name']} to {goal['per']}: {goal['median']:.2f} ({goal['low']:.2f} to {goal['high']:.2f}),"
        f" promised {goal['promise']}"
        for goal in level["goals"]
    ]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Of all that is compared."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES.split():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    """Read the options, measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each variant")
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--in-flight", default="1,32,100", help="so many calls at a time, comma-separated")
    parser.add_argument("--variants", help="only those whose names have one of these, comma-separated")
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    parser.add_argument("--plot", type=Path, help="an SVG file to draw the ratios in")
    options = parser.parse_args()
    wanted = [
        each
        for each in variants()
        if each.name == BASELINE
        or not options.variants
        or any(part in each.name for part in options.variants.split(","))
    ]
    levels = []
    with serving() as service, opened(wanted, service.base_url) as (clients, left_out):
        for name, reason in left_out.items():
            print(f"left out: {name}: {reason}")
        if BASELINE in left_out:
            sys.exit("without the baseline there is nothing to compare with")
        for in_flight in map(int, options.in_flight.split(",")):
            levels.append(measured(clients, service, options.rounds, options.calls, in_flight))
            print(table(levels[-1]), flush=True)
    figures = {
        "versions": versions(),
        "rounds": options.rounds,
        "calls": options.calls,
        "left_out": left_out,
        "levels": levels,
    }
    print(
        f"\n{options.rounds} rounds of {options.calls} calls each; "
        + ", ".join(f"{name} {number}" for name, number in figures["versions"].items())
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        from plot import draw  # noqa: PLC0415  (needs matplotlib, which only a plot is worth)

        draw(figures, options.plot)


if __name__ == "__main__":
    main()
