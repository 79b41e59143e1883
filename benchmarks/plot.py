"""The ratios that `calls.py` found as a picture, which can be read on a light and on a dark page."""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["draw"]

TEXT = "#808890"  # as far from white as from black
OURS, OTHERS = "#2e9e6b", "#7a9cc6"


def draw(figures: dict[str, Any], file: Path, in_flight: int = 32) -> None:
    """Draw one level of them, that with so many in flight if it is there."""
    level = next((each for each in figures["levels"] if each["in_flight"] == in_flight), figures["levels"][0])
    rows = sorted(level["rows"], key=lambda row: -row["ratio"]["median"])
    # The same figures make the same file.
    mpl.rcParams.update({"svg.hashsalt": "loanasync", "text.color": TEXT, "font.size": 9})
    figure = Figure(figsize=(8, 0.3 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        ratio = row["ratio"]
        color = OURS if row["name"].startswith("ours") else OTHERS
        axes.plot([ratio["low"], ratio["high"]], [place, place], color=color, linewidth=2)
        axes.plot(ratio["median"], place, "o", color=color)
        axes.annotate(
            f"{ratio['median']:.2f}", (ratio["high"], place), (8, -3), textcoords="offset points", color=TEXT
        )
    axes.axvline(1, color=TEXT, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlim(right=max(row["ratio"]["high"] for row in rows) * 1.6)
    axes.set_xlabel(f"client CPU a call, plain aiohttp = 1, {level['in_flight']} in flight", color=TEXT)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.tick_params(which="both", colors=TEXT)
    axes.grid(axis="x", color=TEXT, alpha=0.25)
    axes.spines[:].set_visible(False)
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})


def main() -> None:
    """Draw what a file of figures says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, help="what calls.py wrote with --json")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    options = parser.parse_args()
    draw(json.loads(options.figures.read_text(encoding="utf-8")), options.picture)


if __name__ == "__main__":
    main()
