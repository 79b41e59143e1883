"""Write the tables of docs/contributing/performance.md from the results in docs/figures."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "PAGE", "with_tables"]

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "contributing" / "performance.md"
FIGURES = DOCS / "figures"
BEGIN, END = "<!-- {} begins -->\n", "<!-- {} ends -->"
PYTHONS = ("3.11",)
PEERS = "calls-nginx-full"  # the run with all clients
SCENARIOS = [(server, order) for server in ("nginx", "python") for order in ("full", "short")]
# Targets of scripts that write none: ratios to pydantic and to SQL by hand; µs of a ledger and of telemetry.
CONVERSION, BY_HAND, MEMORY = 1.5, 1.2, 10.0
TELEMETRY = {"no SDK": 4.0, "sampled out": 8.0}

Figures = Any  # JSON
Goal = dict[str, Any]


def measured(name: str) -> dict[str, Figures]:
    """Return the results of a script with each version of Python that has some."""
    files = {python: FIGURES / f"{name}-{python}.json" for python in PYTHONS}
    return {
        python: json.loads(file.read_text(encoding="utf-8"))
        for python, file in files.items()
        if file.exists()
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns except the first one are figures."""
    ruler = ["---", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ruler, *rows))


def spread(figure: dict[str, float], digits: int = 2) -> str:
    """Format the median and the quartiles of the rounds."""
    return f"{figure['median']:.{digits}f} ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"


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


def goals() -> dict[str, list[Goal]]:
    """Return all targets and results for each version of Python, the most important ones first."""
    found: dict[str, list[Goal]] = {python: [] for python in PYTHONS}
    for python, figures in measured(PEERS).items():
        found[python] += chain.from_iterable(level["goals"] for level in figures["levels"])
    for name in ("counts", "startup", "growth"):
        for python, figures in measured(name).items():
            found[python] += figures["goals"]
    for python, figures in measured("conversions").items():
        found[python] += conversion_goals(figures)
    for python, figures in measured("telemetry").items():
        found[python] += telemetry_goals(figures)
    for python, figures in measured("ledger").items():
        found[python] += ledger_goals(figures["levels"])
    return found


def result(found: Goal | None) -> str:
    """Format a result; one that loses its target is bold."""
    if found is None:
        return ""
    digits = 2 if found["median"] < 10 else 0  # noqa: PLR2004  (a ratio or a few ms; or a count)
    shown = spread(found, digits) if found["low"] < found["high"] else f"{found['median']:.{digits}f}"
    return f"{shown}, met" if found["met"] else f"**{shown}, lost**"


def targets() -> str:
    """Return all targets and results, and how many are met."""
    found = {python: {each["name"]: each for each in every} for python, every in goals().items()}
    named = {name: each["target"] for every in found.values() for name, each in every.items()}
    rows = (
        [name, target, *(result(every.get(name)) for every in found.values())]
        for name, target in named.items()
    )
    met = (
        f"{sum(each['met'] for each in every.values())} of {len(every)} targets with Python {python}"
        for python, every in found.items()
    )
    return f"{table(['', 'target', *found], rows)}\nMet: {', '.join(met)}.\n"


def scenarios() -> str:
    """Return the main ratios with each server, order and version of Python."""
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
        for python, figures in measured(f"calls-{server}-{order}").items():
            found = {each["name"]: each for level in figures["levels"] for each in level["goals"]}
            cells = (found[name] for name in columns.values())
            shown = (ratio(each) if each["met"] else f"**{ratio(each)}**" for each in cells)
            rows.append([f"{server}, {order} order, {python}", *shown])
    return table(["server, order, Python", *columns], rows)


def calls() -> str:
    """Return the CPU per call of each client as a ratio to plain aiohttp."""
    levels = {
        (python, level["in_flight"]): level
        for python, figures in measured(PEERS).items()
        for level in figures["levels"]
    }
    rows: dict[str, dict[tuple[str, int], str]] = {}
    medians: dict[str, float] = {}
    for column, level in levels.items():
        for row in level["rows"]:
            rows.setdefault(row["name"], {})[column] = ratio(row["ratio"])
            if column == ("3.11", 32):
                medians[row["name"]] = row["ratio"]["median"]
    ordered = sorted(rows, key=lambda name: medians.get(name, math.inf))
    head = ["client", *(f"{python}, {number} in flight" for python, number in levels)]
    return table(head, ([name, *(rows[name].get(column, "") for column in levels)] for name in ordered))


def by_python(first: str, heads: Sequence[str], found: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Return a table with some columns for each version of Python; `found` has the cells of each row."""
    names = dict.fromkeys(chain.from_iterable(found.values()))
    rows = (
        [name, *chain.from_iterable(lines.get(name, [""] * len(heads)) for lines in found.values())]
        for name in names
    )
    return table([first, *(f"{python}{head}" for python in found for head in heads)], rows)


def conversions() -> str:
    """Return the cost of conversions, and of the single steps of loanasync."""
    found = {
        python: {line["name"]: (f"{line['cost']['median']:.1f}", ratio(line["ratio"])) for line in lines}
        for python, lines in measured("conversions").items()
    }
    return by_python("CPU (µs)", ("", ", loanasync = 1"), found)


def telemetry() -> str:
    """Return the CPU time that telemetry adds to a call."""
    found = {
        python: {line["name"]: (f"{line['added']:.1f}", f"{line['ratio']:.2f}") for line in lines}
        for python, lines in measured("telemetry").items()
    }
    return by_python("CPU added to a call (µs)", ("", ", hand-written = 1"), found)


def growth() -> str:
    """Return cost, memory and latency by number of calls."""
    clients = {"loanasync": "own session", "user": "session of the user", "plain": "plain aiohttp"}
    found = measured("growth")
    lines = {python: {line["name"]: line for line in figures["rows"]} for python, figures in found.items()}
    rows = []
    for line in lines["3.11"].values():
        figures = (f"{line[each]:,.1f}" if each in line else "" for each in clients)
        others = (every.get(line["name"], {"ratios": {}})["ratios"] for every in lines.values())
        ratios = (ratio(other.get(each)) for other in others for each in ("loanasync", "user"))
        rows.append([line["name"], *figures, *ratios])
    shares = (f"{python}, {clients[each]} / plain" for python in lines for each in ("loanasync", "user"))
    return table(["", *(f"3.11, {name}" for name in clients.values()), *shares], rows)


def startup() -> str:
    """Return the CPU time of new processes."""
    found = {
        python: {
            row["name"]: (f"{row['cost']['median']:.1f}", ratio(row["ratio"])) for row in figures["rows"]
        }
        for python, figures in measured("startup").items()
    }
    return by_python("CPU from the start of a process (ms)", ("", " / plain"), found)


def operations() -> str:
    """Return the cost of a claim and a settlement in each ledger."""
    heads, lines = ledger_cells("operations", "cost", "")
    return table(["ledger", *heads], ([name, *cells] for name, cells in lines.items()))


def ledger() -> str:
    """Return the cost that each ledger adds to an approval."""
    heads, lines = ledger_cells("rows", "added", " added")
    replays = {
        row["name"]: f"{row['replay']['median']:.0f}"
        for row in measured("ledger")["3.11"]["levels"][0]["rows"]
        if "replay" in row
    }
    rows = ([name, *cells, replays.get(name, "")] for name, cells in lines.items() if name != "no ledger")
    return table(["ledger", *heads, "replayed decision (µs)"], rows)


def ledger_cells(part: str, measure: str, verb: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the columns of a part of the results of the ledgers, and the cells of each ledger."""
    heads: list[str] = []
    lines: dict[str, list[str]] = {}
    for level in measured("ledger")["3.11"]["levels"]:
        for kind, shown in (("cpu", "CPU"), ("wall", "time")):
            heads += [f"{level['in_flight']} in flight, {shown}{verb} (µs)", "SQL by hand = 1"]
            for row in level[part]:
                figures = row[kind]
                cells = [f"{figures[measure]['median']:.1f}", ratio(figures["by_hand"])]
                lines.setdefault(row["name"], []).extend(cells)
    return heads, lines


def counts() -> str:
    """Return function calls, objects and instructions per call."""
    found = {python: dict(figures["counts"]) for python, figures in measured("counts").items()}
    for python, figures in measured("instructions").items():
        names = {"loanasync": "own session", "loanasync, session of the user": "session of the user"}
        found[python] |= {
            f"CPU instructions, {names.get(name, name)}": count for name, count in figures.items()
        }
    rows = {
        python: {name: (f"{count:,.0f}",) for name, count in every.items()} for python, every in found.items()
    }
    return by_python("", ("",), rows)


TABLES = {
    "targets": targets,
    "scenarios": scenarios,
    "calls": calls,
    "conversions": conversions,
    "telemetry": telemetry,
    "growth": growth,
    "startup": startup,
    "operations": operations,
    "ledger": ledger,
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
