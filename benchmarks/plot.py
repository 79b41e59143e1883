"""Draw the ratios of `calls.py`, in colours for light and dark pages."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

TEXT = "#808890"  # readable on white and on black
OURS, OTHERS = "#2e9e6b", "#7a9cc6"


def draw(figures: dict[str, Any], file: Path, in_flight: int = 32) -> None:
    """Draw the ratios with `in_flight` calls, or with the first number that was measured."""
    level = next((each for each in figures["levels"] if each["in_flight"] == in_flight), figures["levels"][0])
    rows = sorted(level["rows"], key=lambda row: -row["ratio"]["median"])
    # Equal figures must produce equal files.
    mpl.rcParams.update({"svg.hashsalt": "loanasync", "text.color": TEXT, "font.size": 9})
    figure = Figure(figsize=(8, 0.3 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows):
        ratio = row["ratio"]
        color = OURS if row["name"].startswith("loanasync") else OTHERS
        axes.plot([ratio["low"], ratio["high"]], [y, y], color=color, linewidth=2)
        axes.plot(ratio["median"], y, "o", color=color)
        axes.annotate(
            f"{ratio['median']:.2f}", (ratio["high"], y), (8, -3), textcoords="offset points", color=TEXT
        )
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlim(right=max(row["ratio"]["high"] for row in rows) * 1.6)
    axes.set_xlabel(f"client CPU per call, plain aiohttp = 1, {level['in_flight']} in flight", color=TEXT)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.tick_params(which="both", colors=TEXT)
    axes.grid(axis="x", color=TEXT, alpha=0.25)
    axes.spines[:].set_visible(False)
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
