"""Formats of the results: JSON or CSV, compressed or not."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.approve_many.results import result_lines
from loanasync.sandbox import Sandbox
from support.cli import create, make_row, run, write

NAMES = ["out.jsonl", "out.jsonl.gz", "out.csv", "out.csv.gz"]


def content(file: Path) -> str:
    raw = file.read_bytes()
    return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode()


def read(file: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    text = content(file).splitlines()
    return [*csv.DictReader(text, delimiter=delimiter)] if ".csv" in file.name else [*map(json.loads, text)]


def approve_calls(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


@pytest.mark.parametrize("name", NAMES)
def test_results_format_follows_the_name_and_is_resumed(tmp_path: Path, served: Sandbox, name: str) -> None:
    rows = [
        make_row(tag, id=f'order "{tag}"; x,y') for tag in ("approved", "refused", "invalid.city", "reset")
    ]
    create(served, rows)
    out, file = tmp_path / name, write(tmp_path / "rows.jsonl", rows)
    assert run(served, "approve-many", file, "-o", out).returncode == 3
    assert approve_calls(served) == 4
    found = {line["id"]: line for line in read(out)}
    assert {order: line["status"] for order, line in found.items()} == {
        'order "approved"; x,y': "approved",
        'order "refused"; x,y': "refused",
        'order "invalid.city"; x,y': "rejected",
        'order "reset"; x,y': "unknown",
    }
    approved, rejected = found['order "approved"; x,y'], found['order "invalid.city"; x,y']
    assert approved["redirect_url"].startswith(served.base_url)
    assert int(approved["net_amount"]) == 43_650
    assert "city" in str(rejected["problems"])
    assert run(served, "approve-many", file, "-o", out).returncode == 3
    assert approve_calls(served) == 5, "only the rejected row is requested again"
    assert len(read(out)) == 4, "one line for each row, and the header once"


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_csv_results_keep_the_delimiter_of_the_rows(tmp_path: Path, served: Sandbox, delimiter: str) -> None:
    rows = [make_row("approved"), make_row("refused")]
    create(served, rows)
    file, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerow(rows[0])
    assert run(served, "approve-many", file, "-o", out).returncode == 0
    both = write(tmp_path / "rows.jsonl", rows)
    assert run(served, "approve-many", both, "-o", out).returncode == 0
    assert [line["status"] for line in read(out, delimiter)] == ["approved", "refused"]


def test_csv_record_is_one_line() -> None:
    record = {"status": "unknown", "id": 'a;b"c\nd\re', "repeatable": False}
    _, line = result_lines("a.csv", ";", [record])
    assert (line.count("\n"), line[-1], '"a;b""c d e"' in line) == (1, "\n", True)
