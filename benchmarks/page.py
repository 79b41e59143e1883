"""Write the tables of docs/explanation/performance.md from the results in docs/figures."""

import json
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "PAGE", "with_tables"]

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "explanation" / "performance.md"
FIGURES = DOCS / "figures"
BEGIN, END = "<!-- {} begins -->\n", "<!-- {} ends -->"
PYTHONS = ("3.11", "3.13")


def figures(name: str, python: str) -> Any:  # noqa: ANN401  (JSON)
    """Return the results of a script with a version of Python."""
    return json.loads((FIGURES / f"{name}-{python}.json").read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns except the first one are figures."""
    ruler = ["---", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ruler, *rows))


def spread(figure: dict[str, float], digits: int = 2) -> str:
    """Format the median and the quartiles of the rounds."""
    return f"{figure['median']:.{digits}f} ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"


def calls() -> str:
    """Return the CPU per call of each client as a ratio to plain aiohttp."""
    levels = {
        (each, level["in_flight"]): level for each in PYTHONS for level in figures("calls", each)["levels"]
    }
    rows: dict[str, dict[tuple[str, int], str]] = {}
    medians: dict[str, float] = {}
    for column, level in levels.items():
        for row in level["rows"]:
            rows.setdefault(row["name"], {})[column] = spread(row["ratio"])
            if column == ("3.11", 32):
                medians[row["name"]] = row["ratio"]["median"]
    ordered = sorted(rows, key=lambda name: medians.get(name, math.inf))
    head = ["client", *(f"{python}, {number} in flight" for python, number in levels)]
    return table(head, ([name, *(rows[name].get(column, "") for column in levels)] for name in ordered))


def targets() -> str:
    """Return the targets, and the results with 32 calls in flight."""
    found = [
        (python, goal)
        for python in PYTHONS
        for level in figures("calls", python)["levels"]
        if level["in_flight"] == 32  # noqa: PLR2004  (the targets are for 32)
        for goal in level["goals"]
    ]
    rows = [
        [f"{goal['name']} / {goal['per']}", python, goal["target"], spread(goal)] for python, goal in found
    ]
    return table(["ratio of CPU per call", "Python", "target", "measured"], rows)


def paths() -> str:
    """Return the cost of direct connections and of sessions, for each Python that was measured."""
    names = {
        "plain aiohttp": "plain aiohttp",
        "loanasync": "loanasync, direct connections",
        "loanasync, direct_connections=False": "loanasync, `direct_connections=False`",
        "loanasync, session of the user": "loanasync, `session=` of the user",
    }
    levels = {
        f"{python}, {level['in_flight']} in flight": {row["name"]: row["ratio"] for row in level["rows"]}
        for python in PYTHONS
        if (FIGURES / f"paths-{python}.json").exists()
        for level in figures("paths", python)["levels"]
    }
    rows = ([shown, *(spread(ratios[name]) for ratios in levels.values())] for name, shown in names.items())
    return table(["client", *levels], rows)


def conversions() -> str:
    """Return the cost of conversions, and of the single steps of loanasync."""
    rows = [
        [
            line["name"],
            spread(line["cost"]),
            "" if line["ratio"] is None else f"{line['ratio']['median']:.2f}",
        ]
        for line in figures("conversions", "3.11")
    ]
    return table(["CPU (µs)", "median (middle half)", "loanasync = 1"], rows)


def telemetry() -> str:
    """Return the CPU time that telemetry adds to a call."""
    found = [{line["name"]: line for line in figures("telemetry", python)} for python in PYTHONS]
    heads = [
        f"{python}, {what}" for python in PYTHONS for what in ("median (middle half)", "hand-written = 1")
    ]
    rows = []
    for name in found[0]:
        cells = [
            (f"{line['added']:.1f} ({line['low']:.1f} to {line['high']:.1f})", f"{line['ratio']:.2f}")
            for line in (lines[name] for lines in found)
        ]
        rows.append([name, *chain.from_iterable(cells)])
    return table(["CPU added to a call (µs)", *heads], rows)


def growth() -> str:
    """Return cost, memory and latency by number of calls."""
    rows = [
        [
            line["name"],
            f"{line['loanasync']:,.1f}",
            f"{line['plain']:,.1f}",
            "" if line["ratio"] is None else spread(line["ratio"]),
        ]
        for line in figures("growth", "3.11")
    ]
    return table(["", "loanasync", "plain aiohttp", "ratio (middle half)"], rows)


def counts() -> str:
    """Return function calls, objects and instructions per call."""
    found = {
        python: figures("counts", python)
        | {f"instructions, {name}": count for name, count in figures("instructions", python).items()}
        for python in PYTHONS
    }
    names = {
        "function calls, script": "Python function calls, scripted transport",
        "function calls, socket": "Python function calls, socket",
        "objects in flight": "objects tracked by the garbage collector, per call in flight",
        "function calls of plain aiohttp, socket": "Python function calls of plain aiohttp, socket",
        "objects in flight of plain aiohttp": "objects of plain aiohttp, per call in flight",
        "instructions, loanasync": "CPU instructions",
        "instructions, plain aiohttp": "CPU instructions of plain aiohttp",
    }
    rows = [[names[name], *(f"{found[python][name]:,.0f}" for python in PYTHONS)] for name in found["3.11"]]
    return table(["", *PYTHONS], rows)


TABLES = {
    "calls": calls,
    "targets": targets,
    "paths": paths,
    "conversions": conversions,
    "telemetry": telemetry,
    "growth": growth,
    "counts": counts,
}


def with_tables(page: str) -> str:
    """Return the page with current tables."""
    for name, make in TABLES.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        page = f"{before}{begin}{make()}{end}{after}"
    return page


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
