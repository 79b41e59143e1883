"""Results as JSON or CSV, compressed or not: whole at every moment, and gone on with by the same command."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.approve_many.results import format_of
from loanasync.cli.rows.append import AppendFile, read_lines, truncate_incomplete_line
from loanasync.sandbox import Sandbox
from support.cli import create, member, run, write

NAMES = ["out.jsonl", "out.jsonl.gz", "out.csv", "out.csv.gz"]


def content(file: Path) -> str:
    raw = file.read_bytes()
    return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode()


def read(file: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    text = content(file).splitlines()
    return [*csv.DictReader(text, delimiter=delimiter)] if ".csv" in file.name else [*map(json.loads, text)]


def asked(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


@pytest.mark.parametrize("name", NAMES)
def test_results_have_the_form_that_their_name_says_and_are_gone_on_with(
    tmp_path: Path, served: Sandbox, name: str
) -> None:
    rows = [
        member(word, id=f'order "{word}"; x,y') for word in ("approved", "refused", "invalid.city", "reset")
    ]
    create(served, rows)
    out, file = tmp_path / name, write(tmp_path / "rows.jsonl", rows)
    assert run(served, "approve-many", file, "-o", out).returncode == 3
    assert asked(served) == 4
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
    assert asked(served) == 5, "only who may be asked again was"
    assert len(read(out)) == 5, "and the names of columns stand there once"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left", [1, 20, 60])
def test_resume_incomplete_last_line_is_written_again_from_the_ledger(
    tmp_path: Path, served: Sandbox, name: str, left: int
) -> None:
    rows = [member("approved") for _ in range(3)]
    create(served, rows)
    out, file = tmp_path / name, write(tmp_path / "rows.jsonl", rows)
    run(served, "approve-many", file, "-o", out, "--concurrency", "1")
    whole = read(out)
    two = out.stat().st_size
    again = AppendFile(str(tmp_path / f"again-{name}"))
    again.add(content(out).splitlines(keepends=True)[-1])
    again.close()
    last = (tmp_path / f"again-{name}").stat().st_size
    out.write_bytes(out.read_bytes()[: two - last + left])
    assert run(served, "approve-many", file, "-o", out).returncode == 0
    assert asked(served) == 3
    now = read(out)
    assert now[:2] == whole[:2]
    same = ("fiscal_code", "status", "redirect_url", "net_amount", "entry")
    assert [now[2][each] for each in same] == [whole[2][each] for each in same]


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_a_csv_is_answered_with_its_own_delimiter_and_goes_on_with_it(
    tmp_path: Path, served: Sandbox, delimiter: str
) -> None:
    rows = [member("approved"), member("refused")]
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


def test_a_csv_of_another_kind_is_not_gone_on_with(tmp_path: Path, served: Sandbox) -> None:
    rows = [member("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.csv"
    run(served, "approve-many", file, "-o", out)
    out.write_text("name,amount\nx,1\n", encoding="utf-8")
    done = run(served, "approve-many", file, "-o", out)
    assert (done.returncode, "line 1: not a result of this command" in done.stderr) == (2, True)


def test_dead_letters_may_be_compressed_too(tmp_path: Path, served: Sandbox) -> None:
    rows = [member("forbidden"), member("approved")]
    create(served, rows)
    dead = tmp_path / "dead.jsonl.gz"
    file = write(tmp_path / "rows.jsonl", rows)
    assert run(served, "approve-many", file, "-o", "-", "--dead-letters", dead).returncode == 1
    assert [json.loads(line) for line in content(dead).splitlines()] == [rows[0]]
    assert run(None, "approve-many", dead, "--validate-only").returncode == 0


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.csv.gz"])
def test_a_record_is_one_line_whatever_is_in_it_and_reads_as_it_was(tmp_path: Path, name: str) -> None:
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
def test_wherever_a_file_is_cut_its_whole_lines_are_kept_and_it_can_be_added_to(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    appending = AppendFile(str(file))
    ends = []
    for number in range(4):
        appending.add(f"line {number}\n")
        ends.append(file.stat().st_size)
    whole = file.read_bytes()
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        truncate_incomplete_line(str(file))
        kept = sum(end <= size for end in ends)
        assert file.stat().st_size == (0 if not kept else ends[kept - 1])
        appending.add("next\n")
        assert [*read_lines(str(file))] == [*(f"line {number}" for number in range(kept)), "next"]
    appending.close()
