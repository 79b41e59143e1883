"""The notebooks of the documentation run completely, and show the described output."""

import os
import re
from collections.abc import Callable
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


def below(cells: list[Any], source: str, kind: str = "text/plain") -> str:
    """Return the output of the one cell that contains this source, one line per output."""
    [cell] = [cell for cell in cells if source in cell.source]
    found = [each["text"] if "text" in each else each["data"].get(kind, "") for each in cell.outputs]
    return re.sub(r"[ \t]+", " ", "\n".join(found))


def first(cells: list[Any]) -> None:
    """Check that one customer is approved once, and another one refused."""
    problems = below(cells, "amount=450.0", "text/html")
    assert "InvalidRequestError" in problems
    assert "loses its leading zeros" in problems
    assert below(cells, "client.check(") == "()"
    assert below(cells, "decision = await").startswith("Approved(")
    assert below(cells, "match decision").startswith("send the customer to a page of 127.0.0.1:")
    assert below(cells, "same = await client.approve(") == "(True, 1)"
    assert below(cells, "+refused").startswith("Refused(")


def day(cells: list[Any]) -> None:
    """Check that each mistake in the table is reported, and that the outcomes are plotted."""
    problems = below(cells, "for order in careless")
    for trap in ("reads NA (Napoli)", "loses its leading zeros", "use None for missing values"):
        assert trap in problems
    assert "00100" in below(cells, "keep_default_na=False")
    assert below(cells, "problems = [").splitlines()[1:] == [
        "0 A0017 amount must be a whole number between 5000 and 1500000 (euro cents)",
        "1 A0099 amount must be a whole number between 5000 and 1500000 (euro cents)",
    ]
    assert "widget-view" in str([cell.outputs for cell in cells if "progress=True" in cell.source])
    counts = "240 rows: 203 approved, 32 refused, 2 rejected, 3 unknown;"
    assert counts in below(cells, "bulk.summary")
    assert below(cells, "plt.show()", "image/png").strip()
    left = below(cells, "left = day[")
    assert (
        left.count("rejected not_sent InvalidRequestError"),
        left.count("unknown unknown ConnectionLostError"),
    ) == (2, 3)


def unknown(cells: list[Any]) -> None:
    """Check that outcomes are resolved, and that only customers never evaluated are requested again."""
    first_run = below(cells, "first_run[columns]")
    assert [first_run.count(f" {word} {word}") for word in ("unknown", "approved", "refused")] == [4, 2, 1]
    assert below(cells, "again[columns]").count("unknown unknown OutcomeUnknownError") == 4
    assert below(cells, "pd.Timestamp(").count("ConnectionLostError") == 3
    assert "released" in below(cells, "def service_outcome(")
    settled = below(cells, "last_run[columns]").splitlines()[2:]  # below the names of columns and index
    assert [line.split()[1:] for line in settled] == [
        ["A0001", "approved", "approved", "None"],
        ["A0002", "refused", "refused", "None"],
        ["A0003", "approved", "approved", "None"],
        ["A0004", "refused", "refused", "None"],
        ["A0005", "approved", "approved", "None"],
        ["A0006", "approved", "approved", "None"],
        ["A0007", "approved", "approved", "None"],
    ]


# `nox -s docs` runs all notebooks, too.
@pytest.mark.parametrize(
    "claims",
    [first, *(pytest.param(each, marks=pytest.mark.scheduled) for each in (day, unknown))],
    ids=lambda claims: claims.__name__,
)
def test_notebook_runs_and_shows_no_personal_data(
    claims: Callable[[list[Any]], None], tmp_path: Path
) -> None:
    cells = executed((FOLDER / f"{claims.__name__}.md").read_text("utf-8"), tmp_path)
    claims(cells)
    shown = [output for cell in cells for output in cell.outputs]
    assert [output for output in shown if output.get("name") == "stderr"] == []
    for person in ("Prova", "@example.com", "TSTXYZ", "sandbox-token"):
        assert person not in str(shown)


def test_each_notebook_has_a_check() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == {"index", "first", "day", "unknown"}
