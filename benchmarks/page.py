"""The tables of docs/explanation/performance.md, from the figures that the other scripts wrote with --json.

`python benchmarks/page.py` puts them into the page.
"""

import json
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


def figures(name: str, python: str) -> Any:  # noqa: ANN401  (what the script wrote)
    """What a script found with that Python."""
    return json.loads((FIGURES / f"{name}-{python}.json").read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; the first column is words, the others are figures."""
    ruler = ["---", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ruler, *rows))


def spread(figure: dict[str, float], digits: int = 2) -> str:
    """The median, and where the middle half of the rounds lies."""
    return f"{figure['median']:.{digits}f} ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"


def calls() -> str:
    """Each client's cost as a ratio to plain aiohttp's, by Python and calls in flight."""
    levels = {
        (each, level["in_flight"]): level for each in PYTHONS for level in figures("calls", each)["levels"]
    }
    rows: dict[str, dict[tuple[str, int], str]] = {}
    for place, level in levels.items():
        for row in level["rows"]:
            rows.setdefault(row["name"], {})[place] = spread(row["ratio"])
    ordered = sorted(rows, key=lambda name: rows[name].get(("3.11", 32), ""))
    head = ["client", *(f"{python}, {number} in flight" for python, number in levels)]
    return table(head, ([name, *(rows[name].get(place, "") for place in levels)] for name in ordered))


def goals() -> str:
    """What was promised, and what came of it with 32 in flight."""
    found = [
        (python, goal)
        for python in PYTHONS
        for level in figures("calls", python)["levels"]
        if level["in_flight"] == 32  # noqa: PLR2004  (as it was promised)
        for goal in level["goals"]
    ]
    rows = [
        [f"{goal['name']} to {goal['per']}", python, goal["promise"], spread(goal)] for python, goal in found
    ]
    return table(["ratio", "Python", "promised", "found"], rows)


def paths() -> str:
    """The two paths of our client beside plain aiohttp, for each Python whose figures there are."""
    names = {
        "plain aiohttp": "plain aiohttp, by hand",
        "ours": "ours, direct connections",
        "ours, through own session": "ours, through its own session (`direct_connections=False`)",
        "ours, through user's session": "ours, through a session of the user's",
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
    """An order written and a decision read, and each of our steps."""
    rows = [
        [
            line["name"],
            spread(line["cost"]),
            "" if line["ratio"] is None else f"{line['ratio']['median']:.2f}",
        ]
        for line in figures("conversions", "3.11")
    ]
    return table(["µs of CPU", "median (middle half)", "ours = 1"], rows)


def telemetry() -> str:
    """What telemetry adds to a call."""
    found = [{line["name"]: line for line in figures("telemetry", python)} for python in PYTHONS]
    heads = [f"{python}, {what}" for python in PYTHONS for what in ("median (middle half)", "by hand = 1")]
    rows = []
    for name in found[0]:
        cells = [
            (f"{line['added']:.1f} ({line['low']:.1f} to {line['high']:.1f})", f"{line['by hand']:.2f}")
            for line in (lines[name] for lines in found)
        ]
        rows.append([name, *chain.from_iterable(cells)])
    return table(["µs of CPU added to a call", *heads], rows)


def growth() -> str:
    """Cost, memory and latency as calls become many."""
    rows = [
        [
            line["name"],
            f"{line['ours']:,.1f}",
            f"{line['plain']:,.1f}",
            "" if line["ratio"] is None else spread(line["ratio"]),
        ]
        for line in figures("growth", "3.11")
    ]
    return table(["", "ours", "plain aiohttp", "ratio (middle half)"], rows)


def counts() -> str:
    """What no clock tells."""
    found = {
        python: figures("counts", python)
        | {f"instructions, {name}": count for name, count in figures("instructions", python).items()}
        for python in PYTHONS
    }
    rows = [[name, *(f"{found[python][name]:,.0f}" for python in PYTHONS)] for name in found["3.11"]]
    return table(["", *PYTHONS], rows)


TABLES = {
    "calls": calls,
    "goals": goals,
    "paths": paths,
    "conversions": conversions,
    "telemetry": telemetry,
    "growth": growth,
    "counts": counts,
}


def with_tables(page: str) -> str:
    """The page, with the tables that the figures make."""
    for name, made in TABLES.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        page = f"{before}{begin}{made()}{end}{after}"
    return page


def main() -> None:
    """Write them."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
