"""Results of ``approve-many`` have one line for each row after any number of runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.approve_many.final_lines import keep_final_lines
from loanasync.cli.approve_many.results import Format, format_of
from loanasync.cli.rows.append import read_lines
from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, write
from support.ledger_file import create_at, run_ledger

NAMES = ["out.jsonl", "out.jsonl.gz", "out.csv", "out.csv.gz"]


def records(out: Path) -> list[Mapping[str, Any]]:
    form = format_of(str(out), ",")
    return [form.record(line) for line in read_lines(str(out)) if line != form.header.rstrip("\n")]


def found(out: Path) -> list[tuple[str, str]]:
    """Return line and status of each line of the results."""
    return sorted((str(record["line"]), str(record["status"])) for record in records(out))


@pytest.mark.parametrize("name", NAMES)
def test_results_have_one_line_for_each_row_after_reruns(tmp_path: Path, served: Sandbox, name: str) -> None:
    rows = [
        make_row("approved"),
        make_row("forbidden"),
        make_row("resetafter"),
        make_row("refused", amount=1),
    ]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / name
    command = ("approve-many", file, "-o", out, "--skip-invalid", "--concurrency", "1")
    for _ in range(3):
        assert run(served, *command).returncode == 3
        expected = [("1", "approved"), ("2", "error"), ("3", "unknown"), ("4", "rejected")]
        assert found(out) == expected
    assert not [*tmp_path.glob("*.new*")]

    rows[1]["email"] = "anna+approved@example.com"
    rows[3]["amount"] = 45_000
    write(file, rows)
    [entry] = [each["entry"] for each in records(out) if each["status"] == "unknown"]
    resolved = run_ledger("resolve", f"{out}.ledger", entry, "--as", "refused", "--note", "x")
    assert resolved.exit_code == 0, resolved.stderr
    assert run(served, *command).returncode == 0
    assert found(out) == [("1", "approved"), ("2", "approved"), ("3", "refused"), ("4", "refused")]


def test_results_of_corrected_dead_letters_replace_those_of_the_row(tmp_path: Path, served: Sandbox) -> None:
    """Also if the fiscal code was wrong, by which the results find the customer."""
    rows = [make_row("approved") for _ in range(4)]
    create(served, rows)
    right = [rows[1]["fiscal_code"], rows[3]["fiscal_code"]]
    rows[1]["fiscal_code"], rows[3]["fiscal_code"] = "TSTXYZ00A00A000A", "TST"
    file, out, dead = (tmp_path / name for name in ("rows.jsonl", "out.jsonl", "dead.jsonl"))
    options = ("-o", out, "--skip-invalid", "--dead-letters", dead)
    assert run(served, "approve-many", write(file, rows), *options).returncode == 1
    assert found(out) == [("1", "approved"), ("2", "error"), ("3", "approved"), ("4", "rejected")]
    letters = sorted(read(dead), key=lambda letter: int(letter["loanasync_line"]))
    letters[0]["fiscal_code"] = right[0]
    assert run(served, "approve-many", write(file, letters), *options).returncode == 1
    assert found(out) == [("1", "approved"), ("2", "approved"), ("3", "approved"), ("4", "rejected")]
    [letter] = read(dead)
    letter["fiscal_code"] = right[1]
    assert run(served, "approve-many", write(file, [letter]), *options).returncode == 0
    assert found(out) == [(str(line), "approved") for line in range(1, 5)]


def test_results_of_a_new_export_replace_lines_with_the_same_id(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved", id=f"order {n}", amount=45_000 if n else 1) for n in range(3)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    assert run(served, "approve-many", file, "-o", out, "--skip-invalid").returncode == 1
    write(file, [rows[1], rows[2], {**rows[0], "amount": 45_000}])
    assert run(served, "approve-many", file, "-o", out).returncode == 0
    assert {line["id"]: line["status"] for line in read(out)} == {f"order {n}": "approved" for n in range(3)}
    assert len(read(out)) == 3


def record(line: int, status: str, outcome: str = "not_sent", **more: str) -> str:
    return Format().line({"line": line, "status": status, "outcome": outcome, **more})


@pytest.mark.parametrize(
    ("lines", "earlier", "kept"),
    [
        ([record(1, "rejected", id="7"), record(2, "rejected", id="7")], 0, [0, 1]),
        ([record(1, "rejected", id="7"), record(2, "rejected", id="7")], 1, [1]),
        ([record(1, "rejected", id="7"), record(2, "rejected", id="7")], 2, [0, 1]),
        ([record(1, "rejected", id="7"), record(1, "rejected", id="8")], 1, [0, 1]),
        ([record(1, "rejected"), record(1, "refused", "refused", fiscal_code="X")], 0, [1]),
        ([record(1, "refused", "refused", fiscal_code="X"), record(1, "rejected")], 1, [0, 1]),
        ([record(1, "approved", "approved", fiscal_code="X"), record(1, "error", fiscal_code="x")], 2, [0]),
        ([record(1, "approved", "approved", fiscal_code="X"), record(1, "error", fiscal_code="x")], 1, [1]),
        ([record(1, "unknown", "unknown", fiscal_code="X"), record(1, "error", fiscal_code="Y")], 1, [0, 1]),
        (
            [record(n, "approved", "approved", fiscal_code="X", entry=str(n)) for n in range(3)],
            *(2, [2]),
        ),
    ],
)
def test_keep_final_lines_removes_only_superseded_lines(
    tmp_path: Path, lines: list[str], earlier: int, kept: list[int]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("".join(lines), encoding="utf-8")
    keep_final_lines(str(out), Format(), earlier)
    assert out.read_text(encoding="utf-8") == "".join(lines[number] for number in kept)


def test_results_that_cannot_be_replaced_keep_all_lines(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("forbidden"), make_row("approved")]
    create(served, rows)
    # The name of the file that replaces the results would be too long.
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / ("x" * 239 + ".jsonl")
    ledger = tmp_path / "decisions.db"
    create_at(ledger, served.base_url)
    command = ("approve-many", file, "--ledger", ledger, "-o", out)
    assert run(served, *command).returncode == 1
    done = run(served, *command)
    message = f"{out} keeps earlier lines (File name too long)"
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert len(read(out)) == 3


@pytest.mark.skipif(os.name != "posix", reason="links and modes of POSIX")
def test_replaced_results_keep_link_mode_and_other_files(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("forbidden"), make_row("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl.gz"
    real = tmp_path / "real.jsonl.gz"
    out.symlink_to(real)
    command = ("approve-many", file, "-o", out)
    assert run(served, *command).returncode == 1
    real.chmod(0o640)
    other = tmp_path / "other.txt"
    other.write_text("of the user", encoding="utf-8")
    for name in ("out.jsonl.gz.new.gz", "real.jsonl.gz.new.gz"):
        (tmp_path / name).symlink_to(other)
    before = {*tmp_path.iterdir()}
    assert run(served, *command).returncode == 1
    assert out.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert found(out) == [("1", "error"), ("2", "approved")]
    assert {*tmp_path.iterdir()} == before
    assert other.read_text(encoding="utf-8") == "of the user"


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_results_follow_each_correction_of_a_person(tmp_path: Path, served: Sandbox, name: str) -> None:
    rows = [make_row("resetafter"), make_row("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / name
    command = ("approve-many", file, "-o", out)
    assert run(served, *command).returncode == 3
    [entry] = [each["entry"] for each in records(out) if each["status"] == "unknown"]
    for state, code in (("approved", 0), ("unknown", 3), ("approved", 0), ("refused", 0), ("approved", 0)):
        resolved = run_ledger("resolve", f"{out}.ledger", entry, "--as", state, "--note", f"not {state}")
        assert resolved.exit_code == 0, resolved.stderr
        for _ in range(2):
            assert run(served, *command).returncode == code
            assert found(out) == [("1", state), ("2", "approved")]
    assert len(served.journal.calls(operation="approve")) == 2

    rows[0]["email"] = "anna+refused@example.com"
    write(file, rows)
    resolved = run_ledger("resolve", f"{out}.ledger", entry, "--as", "released", "--note", "never arrived")
    assert resolved.exit_code == 0, resolved.stderr
    run(served, *command)
    assert len(served.journal.calls(operation="approve")) == 3, "the released request is sent"


def test_correction_survives_a_kill_before_the_results_are_replaced(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("resetafter")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out)
    run(served, *command)
    [unknown] = read(out)
    for state in ("approved", "unknown"):
        run_ledger("resolve", f"{out}.ledger", unknown["entry"], "--as", state, "--note", f"not {state}")
        if state == "approved":
            run(served, *command)
    with out.open("a", encoding="utf-8") as results:  # the killed run has appended its line
        results.write(Format().line(unknown))
    assert run(served, *command).returncode == 3
    assert found(out) == [("1", "unknown")]


def test_statement_does_not_replace_a_decision_of_the_service(tmp_path: Path, served: Sandbox) -> None:
    """The ledger could not record it, so a person takes the outcome for unknown."""
    rows = [make_row("resetafter")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out)
    run(served, *command)
    [unknown] = read(out)
    decided = {**unknown, "status": "approved", "outcome": "approved", "attempts": 1, "redirect_url": "x"}
    for state in ("released", "refused"):
        write(out, [decided])
        resolved = run_ledger("resolve", f"{out}.ledger", unknown["entry"], "--as", state, "--note", "x")
        assert resolved.exit_code == 0, resolved.stderr
        assert run(served, *command).returncode == 0
        assert read(out) == [decided]
    assert len(served.journal.calls(operation="approve")) == 1
