"""Formats of the results: JSON or CSV, compressed or not; complete lines at every moment, and resume."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.approve_many.results import format_of
from loanasync.cli.rows.append import AppendFile, read_lines, truncate_incomplete_line
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left", [1, 20, 60])
def test_resume_incomplete_last_line_is_written_again_from_the_ledger(
    tmp_path: Path, served: Sandbox, name: str, left: int
) -> None:
    rows = [make_row("approved") for _ in range(3)]
    create(served, rows)
    out, file = tmp_path / name, write(tmp_path / "rows.jsonl", rows)
    run(served, "approve-many", file, "-o", out, "--concurrency", "1")
    complete = read(out)
    size = out.stat().st_size
    again = AppendFile(str(tmp_path / f"again-{name}"))
    again.add(content(out).splitlines(keepends=True)[-1])
    again.close()
    last = (tmp_path / f"again-{name}").stat().st_size
    out.write_bytes(out.read_bytes()[: size - last + left])
    assert run(served, "approve-many", file, "-o", out).returncode == 0
    assert approve_calls(served) == 3
    now = read(out)
    assert now[:2] == complete[:2]
    same = ("fiscal_code", "status", "redirect_url", "net_amount", "entry")
    assert [now[2][each] for each in same] == [complete[2][each] for each in same]


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


def test_results_with_other_columns_are_not_resumed(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.csv"
    run(served, "approve-many", file, "-o", out)
    out.write_text("name,amount\nx,1\n", encoding="utf-8")
    done = run(served, "approve-many", file, "-o", out)
    assert (done.returncode, "line 1: not a result of this command" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.csv.gz"])
def test_format_writes_a_record_as_one_line_and_reads_it_again(tmp_path: Path, name: str) -> None:
    form = format_of(name, ";")
    record: dict[str, object] = {
        "repeatable": False,
        "fiscal_code": "X",
        "status": "unknown",
        "outcome": "unknown",
        "id": 'a;b"c\nd\re',
    }
    line = form.line(record)
    assert (line.count("\n"), line[-1]) == (1, "\n")
    read_again = form.record(line.rstrip("\n"))
    names = ("fiscal_code", "status", "outcome", "repeatable")
    assert [read_again[name] for name in names] == [record[name] for name in names]
    with pytest.raises(ValueError, match=r"."):
        form.record("5")
    file = tmp_path / name
    appending = AppendFile(str(file))
    for _ in range(3):
        appending.add(line)
    appending.close()
    assert [*read_lines(str(file))] == [line.rstrip("\n")] * 3


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_truncate_incomplete_line_keeps_complete_lines(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    appending = AppendFile(str(file))
    ends = []
    for number in range(4):
        appending.add(f"line {number}\n")
        ends.append(file.stat().st_size)
    content = file.read_bytes()
    for size in range(len(content) + 1):
        file.write_bytes(content[:size])
        truncate_incomplete_line(str(file))
        kept = sum(end <= size for end in ends)
        assert file.stat().st_size == (0 if not kept else ends[kept - 1])
        appending.add("next\n")
        assert [*read_lines(str(file))] == [*(f"line {number}" for number in range(kept)), "next"]
    appending.close()
