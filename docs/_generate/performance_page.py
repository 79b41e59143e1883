"""Generates the tables of docs/contributing/performance.md from the results in docs/figures."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

FIGURES = Path(__file__).parents[1] / "figures"
PYTHON = "3.11"  # with which the results were measured
SCENARIOS = [("nginx", "full"), ("nginx", "short"), ("tls", "full"), ("python", "full"), ("python", "short")]
# Targets of scripts that write none: ratios to pydantic and to SQL by hand; µs of a ledger and of telemetry.
CONVERSION, BY_HAND, MEMORY = 1.5, 1.2, 10.0
TELEMETRY = {"no SDK": 4.0, "sampled out": 8.0}

Figures = Any  # JSON
Goal = dict[str, Any]


def measured(name: str) -> Figures:
    """Return the results of a script."""
    return json.loads((FIGURES / f"{name}-{PYTHON}.json").read_text(encoding="utf-8"))


def peers() -> Figures:
    """Return the results of the run with all clients, by calls in flight."""
    return measured("calls-nginx-full")["levels"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns except the first one are figures."""
    ruler = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *rows))


def ratio(figure: dict[str, float] | None) -> str:
    """Format the median of ratios, if there are some."""
    return "" if figure is None else f"{figure['median']:.2f}"


def goal(name: str, bound: float, figure: dict[str, float]) -> Goal:
    """Return a target in the form in which the scripts write it."""
    return {"name": name, "target": f"at most {bound:g}", "met": figure["median"] <= bound, **figure}


def conversion_goals(lines: Figures) -> Iterator[Goal]:
    """Yield the targets of the conversions, which compare loanasync with pydantic."""
    for line in lines:
        conversion, _, library = line["name"].partition(", ")
        if library == "pydantic":
            per = line["ratio"]  # loanasync = 1
            inverse = {"median": 1 / per["median"], "low": 1 / per["high"], "high": 1 / per["low"]}
            yield goal(f"{conversion}, loanasync / pydantic", CONVERSION, inverse)


def ledger_goals(levels: Figures) -> Iterator[Goal]:
    """Yield the targets of a claim and a settlement in SQLite and in memory."""
    for level in levels:
        rows = {row["name"]: row for row in level["operations"]}
        end = f"{level['in_flight']} in flight"
        for kind, shown in (("cpu", "CPU"), ("wall", "time")):
            by_hand = rows["SQLite"][kind]["by_hand"]
            yield goal(f"{shown} of claim and settlement in SQLite / SQL by hand, {end}", BY_HAND, by_hand)
        cost = rows["memory"]["cpu"]["cost"]
        yield goal(f"CPU of claim and settlement in memory (µs), {end}", MEMORY, cost)


def telemetry_goals(lines: Figures) -> Iterator[Goal]:
    """Yield the targets of telemetry that does not record."""
    for line in lines:
        if line["name"] in TELEMETRY:
            figure = {"median": line["added"], "low": line["low"], "high": line["high"]}
            yield goal(f"CPU of telemetry, {line['name']} (µs)", TELEMETRY[line["name"]], figure)


def goals() -> Iterator[Goal]:
    """Yield all targets and results, the most important ones first."""
    for level in peers():
        yield from level["goals"]
    for name in ("counts", "startup", "growth"):
        yield from measured(name)["goals"]
    yield from conversion_goals(measured("conversions"))
    yield from telemetry_goals(measured("telemetry"))
    yield from ledger_goals(measured("ledger")["levels"])


def result(found: Goal) -> str:
    """Format a result; one that loses its target is bold."""
    median, low, high = (
        f"{found[each]:.{2 if found['median'] < 10 else 0}f}"  # noqa: PLR2004  (a ratio or a few ms; or a count)
        for each in ("median", "low", "high")
    )
    shown = f"{median} ({low} to {high})" if found["low"] < found["high"] else median
    return f"{shown}, met" if found["met"] else f"**{shown}, lost**"


def targets() -> str:
    """Return all targets and results, and how many are met."""
    found = [*goals()]
    rows = ([each["name"], each["target"], result(each)] for each in found)
    met = sum(each["met"] for each in found)
    return (
        f"{table(['', 'target', PYTHON], rows)}\n\nMet: {met} of {len(found)} targets with Python {PYTHON}."
    )


def scenarios() -> str:
    """Return the main ratios with each server and order."""
    names = {
        "own session": "loanasync / plain aiohttp",
        "session of the user": "loanasync, session of the user / plain aiohttp",
        "recording / by hand": "loanasync, recording / plain aiohttp + telemetry",
    }
    columns = {
        f"{shown}, {number} in flight": f"{name}, {number} in flight"
        for shown, name in names.items()
        for number in (1, 32)
    }
    rows = []
    for server, order in SCENARIOS:
        levels = measured(f"calls-{server}-{order}")["levels"]
        found = {each["name"]: each for level in levels for each in level["goals"]}
        cells = (found[name] for name in columns.values())
        shown = (ratio(each) if each["met"] else f"**{ratio(each)}**" for each in cells)
        rows.append([f"{server}, {order} order, {PYTHON}", *shown])
    return table(["server, order, Python", *columns], rows)


def versions() -> str:
    """Return the main ratios with each Python and version of aiohttp."""
    names = ("loanasync", "loanasync, session of the user", "loanasync, direct_connections=False")
    found = [json.loads(file.read_text(encoding="utf-8")) for file in FIGURES.glob("calls-aiohttp-*.json")]
    rows = []
    for each in sorted(found, key=lambda each: Version(each["versions"]["aiohttp"])):
        ratios = {
            level["in_flight"]: {row["name"]: row["ratio"] for row in level["rows"]}
            for level in each["levels"]
        }
        python = each["versions"]["Python"].rpartition(".")[0]
        cells = (ratio(level[name]) for name in names for level in ratios.values())
        rows.append([python, each["versions"]["aiohttp"], *cells])
    heads = (f"{name}, {number} in flight" for name in names for number in ratios)
    return table(["Python", "aiohttp", *heads], sorted(rows, key=lambda row: row[0]))


def calls() -> str:
    """Return the CPU per call of each client as a ratio to plain aiohttp, the lowest under load first."""
    levels = {level["in_flight"]: {row["name"]: row["ratio"] for row in level["rows"]} for level in peers()}
    ordered = sorted(levels[32], key=lambda name: levels[32][name]["median"])
    head = ["client", *(f"{PYTHON}, {number} in flight" for number in levels)]
    return table(head, ([name, *(ratio(level[name]) for level in levels.values())] for name in ordered))


def conversions() -> str:
    """Return the cost of conversions, and of the single steps of loanasync."""
    lines = measured("conversions")
    rows = ([line["name"], f"{line['cost']['median']:.1f}", ratio(line["ratio"])] for line in lines)
    return table(["CPU (µs)", PYTHON, f"{PYTHON}, loanasync = 1"], rows)


def telemetry() -> str:
    """Return the CPU time that telemetry adds to a call."""
    lines = measured("telemetry")
    rows = ([line["name"], f"{line['added']:.1f}", f"{line['ratio']:.2f}"] for line in lines)
    return table(["CPU added to a call (µs)", PYTHON, f"{PYTHON}, hand-written = 1"], rows)


def growth() -> str:
    """Return cost, memory and latency by number of calls."""
    clients = {"loanasync": "own session", "user": "session of the user", "plain": "plain aiohttp"}
    compared = ("loanasync", "user")
    rows = []
    for line in measured("growth")["rows"]:
        figures = (f"{line[each]:,.1f}" if each in line else "" for each in clients)
        rows.append([line["name"], *figures, *(ratio(line["ratios"].get(each)) for each in compared)])
    shares = (f"{PYTHON}, {clients[each]} / plain" for each in compared)
    return table(["", *(f"{PYTHON}, {name}" for name in clients.values()), *shares], rows)


def startup() -> str:
    """Return the CPU time of new processes."""
    lines = measured("startup")["rows"]
    rows = ([line["name"], f"{line['cost']['median']:.1f}", ratio(line["ratio"])] for line in lines)
    return table(["CPU from the start of a process (ms)", PYTHON, f"{PYTHON} / plain"], rows)


def operations() -> str:
    """Return the cost of a claim and a settlement in each ledger."""
    heads, lines = ledger_cells("operations", "cost", "")
    return table(["ledger", *heads], ([name, *cells] for name, cells in lines.items()))


def ledger() -> str:
    """Return the cost that each ledger adds to an approval."""
    heads, lines = ledger_cells("rows", "added", " added")
    replays = {
        row["name"]: f"{row['replay']['median']:.0f}"
        for row in measured("ledger")["levels"][0]["rows"]
        if "replay" in row
    }
    rows = ([name, *cells, replays.get(name, "")] for name, cells in lines.items() if name != "no ledger")
    return table(["ledger", *heads, "replayed decision (µs)"], rows)


def ledger_cells(part: str, measure: str, verb: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the columns of a part of the results of the ledgers, and the cells of each ledger."""
    heads: list[str] = []
    lines: dict[str, list[str]] = {}
    for level in measured("ledger")["levels"]:
        for kind, shown in (("cpu", "CPU"), ("wall", "time")):
            heads += [f"{level['in_flight']} in flight, {shown}{verb} (µs)", "SQL by hand = 1"]
            for row in level[part]:
                figures = row[kind]
                cells = [f"{figures[measure]['median']:.1f}", ratio(figures["by_hand"])]
                lines.setdefault(row["name"], []).extend(cells)
    return heads, lines


def counts() -> str:
    """Return function calls and objects per call."""
    rows = ([name, f"{count:,.0f}"] for name, count in measured("counts")["counts"].items())
    return table(["", PYTHON], rows)


TABLES = {
    "targets": targets,
    "scenarios": scenarios,
    "versions": versions,
    "calls": calls,
    "conversions": conversions,
    "telemetry": telemetry,
    "growth": growth,
    "startup": startup,
    "operations": operations,
    "ledger": ledger,
    "counts": counts,
}
