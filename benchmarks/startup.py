"""Measure the start of a process: imports, the creation of a client, and the first approval.

A figure is the CPU time, user and system, of a new process from its start (`first.py`). All variants take
turns on one core; `service.py` is on the other. A comparison is between processes of the same round.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict
from first import (
    approval,
    approval_with_session,
    client_beside_library,
    library,
    nothing,
    package,
    post,
)
from order import FULL
from rounds import goal, goal_line, interleaved, parser_of, save, spread
from service import serving

STARTED = "first post with plain aiohttp"
VARIANTS = {
    "bare Python": nothing,
    "import aiohttp": library,
    "import loanasync": package,
    "client after import aiohttp": client_beside_library,
    STARTED: post,
    "first approval, own session": approval,
    "first approval, session of the user": approval_with_session,
}
# Targets: a variant, the variant to compare it with, and the bound of the difference in ms.
TARGETS = (
    ("import loanasync", "bare Python", 20.0),
    ("client after import aiohttp", "import aiohttp", 40.0),
)


def started(function: str, base_url: str) -> float:
    """Return the CPU time of a new process in milliseconds."""
    script = str(Path(__file__).with_name("first.py"))
    command = [sys.executable, script, function, base_url, json.dumps(FULL.members)]
    # Python compiles modules once, as it does where nothing forbids it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return float(done.stdout) * 1e3


def run(rounds: int) -> dict[str, Any]:
    """Return the CPU time of each variant, and the targets."""
    with serving() as server:
        measures = {
            name: partial(started, function.__name__, server.base_url) for name, function in VARIANTS.items()
        }
        figures = interleaved(measures, rounds)
    rows = [
        {
            "name": name,
            "cost": asdict(spread(costs)),
            "ratio": asdict(spread(costs, figures[STARTED])) if name.startswith("first") else None,
        }
        for name, costs in figures.items()
    ]
    goals = []
    for name, base, bound in TARGETS:
        added = [one - other for one, other in zip(figures[name], figures[base], strict=True)]
        goals.append(goal(f"{name}, added to {base} (ms)", spread(added), bound))
    first = "first approval, own session"
    goals.append(goal(f"{first} / {STARTED}", spread(figures[first], figures[STARTED]), 1.0))
    return {"rounds": rounds, "rows": rows, "goals": goals}


def table(figures: dict[str, Any]) -> str:
    """Format the results."""
    lines = [f"{'ms of CPU':40}{'median':>8}   (middle half)"]
    for row in figures["rows"]:
        cost = row["cost"]
        lines.append(f"{row['name']:40}{cost['median']:8.1f}   ({cost['low']:.1f} to {cost['high']:.1f})")
    return "\n".join([*lines, *map(goal_line, figures["goals"])])


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__, 21)
    options = parser.parse_args()
    figures = run(options.rounds)
    print(table(figures))
    save(options.json, figures)


if __name__ == "__main__":
    main()
