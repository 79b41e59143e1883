"""The notebooks of the documentation run completely, and show the described output."""

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import jupytext
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


def executed(text: str, folder: Path) -> list[Any]:
    """Run a notebook, and return its code cells with their output."""
    notebook = jupytext.reads(text, fmt="md:myst")
    environment = {"IPYTHONDIR": str(folder / "ipython"), "PYTHONWARNINGS": "default"}
    resources = {"metadata": {"path": str(folder)}}
    with mock.patch.dict(os.environ, environment):
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def below(cells: list[Any], source: str) -> str:
    """Return the output of the one cell that contains this source, in every format."""
    [cell] = [cell for cell in cells if source in cell.source]
    found = [each["text"] if "text" in each else str(each["data"]) for each in cell.outputs]
    return re.sub(r"(\s|\\n)+", " ", " ".join(found))


# For each notebook: a part of a cell, and texts that its output has in this order.
SHOWN = {
    "day": [
        ("for order in careless", "reads NA (Napoli)", "loses its leading zeros", "None for missing values"),
        ("keep_default_na=False", "00100"),
        ("problems = [", "0 A0017 amount must be a whole number", "1 A0099 amount must be a whole number"),
        ("progress=True", "widget-view"),
        ("bulk.summary", "240 rows: 203 approved, 32 refused, 2 rejected, 3 unknown;"),
        ("plt.show()", "image/png"),
        ("left = day[", *["rejected not_sent InvalidRequestError"] * 2),
        ("left = day[", *["unknown unknown ConnectionLostError"] * 3),
    ],
    "unknown": [
        ("first_run[columns]", *["unknown unknown"] * 4),
        ("first_run[columns]", *["approved approved"] * 2),
        ("again[columns]", *["unknown unknown OutcomeUnknownError"] * 4),
        ("pd.Timestamp(", *["ConnectionLostError"] * 3),
        ("def service_outcome(", "released"),
        (
            "last_run[columns]",
            *(f"A000{row} {'refused' if row in (2, 4) else 'approved'}" for row in range(1, 8)),
        ),
    ],
}


# `nox -s docs` runs all notebooks, too.
@pytest.mark.parametrize("name", ["unknown", pytest.param("day", marks=pytest.mark.scheduled)])
def test_notebook_runs_and_shows_no_personal_data(name: str, tmp_path: Path) -> None:
    cells = executed((FOLDER / f"{name}.md").read_text("utf-8"), tmp_path)
    for source, *expected in SHOWN[name]:
        rest = below(cells, source)
        for text in expected:
            assert text in rest, source
            rest = rest.partition(text)[2]
    shown = [output for cell in cells for output in cell.outputs]
    assert [output for output in shown if output.get("name") == "stderr"] == []
    for person in ("Prova", "@example.com", "TSTXYZ", "sandbox-token"):
        assert person not in str(shown)


def test_each_notebook_has_a_check() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == {"index", *SHOWN}
