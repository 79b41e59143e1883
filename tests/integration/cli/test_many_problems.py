"""Problems of the rows of ``approve-many``: printed in groups, listed in a file, and not repeated."""

import gc
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, run, write

POSTAL = "must be five digits; if it is shorter, it may have lost leading zeros"


DUPLICATE = "fiscal_code: duplicate of line {}: each customer may appear only once"


def rows_with_problems() -> list[dict[str, Any]]:
    """Return rows of which 2, 4, 5, 6 and 7 have a wrong postal code, and 6 and 8 a wrong amount."""
    rows = [make_row("approved") for _ in range(8)]
    for line in (2, 4, 5, 6, 7):
        rows[line - 1]["postal_code"] = "1"
    for line in (6, 8):
        rows[line - 1]["amount"] = 1
    return rows


def csv_file(path: Path, rows: list[dict[str, Any]], **renamed: str) -> Path:
    header = ";".join(renamed.get(name, name) for name in rows[0])
    lines = [";".join(map(str, row.values())) for row in rows]
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


def test_problems_of_one_field_and_message_are_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", rows_with_problems())
    done = run(None, "approve-many", file, "--validate-only")
    assert done.returncode == 2
    first, *last = done.stderr.splitlines()
    assert first == f"{file}: 5 × postal_code: {POSTAL} (lines 2, 4, 5 and 2 others)"
    assert last[0].startswith(f"{file}: 2 × amount: ")
    assert last[0].endswith(" (lines 6 and 8)")
    assert last[1:] == ["to list all 7 problems, add --problems FILE", "8 rows: 2 valid, 6 invalid"]


def test_problem_of_one_row_keeps_its_line_and_column(tmp_path: Path) -> None:
    rows = [make_row("approved", postal_code=code) for code in ("1", "00100", "00100")]
    rows.append(rows[1])
    file = csv_file(tmp_path / "rows.csv", rows, postal_code="CAP")
    done = run(None, "approve-many", file, "--validate-only", "--column", "postal_code=CAP")
    assert done.stderr.splitlines() == [
        f"{file}: line 2, column 'CAP': postal_code: {POSTAL}",
        f"{file}: line 5, column 'fiscal_code': {DUPLICATE.format(3)}",
        "4 rows: 2 valid, 2 invalid",
    ]


def test_problems_name_a_column_that_differs_from_its_field(tmp_path: Path) -> None:
    rows = [make_row("approved", postal_code="1") for _ in range(2)]
    file = csv_file(tmp_path / "rows.csv", rows, postal_code="CAP")
    done = run(None, "approve-many", file, "--validate-only", "--column", "postal_code=CAP")
    assert done.stderr.splitlines()[0] == f"{file}: 2 × postal_code, column 'CAP': {POSTAL} (lines 2 and 3)"


def test_problems_without_a_field_are_grouped() -> None:
    done = run(None, "approve-many", "-", "--validate-only", stdin="{}\n[1]\n[2]\n{\n[3]\n")
    assert "standard input: 3 × must be a JSON object (lines 2, 3 and 5)" in done.stderr.splitlines()
    assert "standard input: line 4: invalid JSON at character 3" in done.stderr.splitlines()


def test_duplicates_are_one_group(tmp_path: Path) -> None:
    rows = [make_row("approved") for _ in range(2)]
    file = write(tmp_path / "rows.jsonl", [*rows, *rows])
    done = run(None, "approve-many", file, "--validate-only")
    assert done.stderr.splitlines()[0] == f"{file}: 2 × {DUPLICATE.format('…')} (lines 3 and 4)"


def test_problems_are_printed_in_twenty_groups_at_most(tmp_path: Path) -> None:
    rows = [{**make_row("approved"), f"extra{chr(97 + number)}": 1} for number in range(23)]
    file, listed = write(tmp_path / "rows.jsonl", rows), tmp_path / "problems.txt"
    done = run(None, "approve-many", file, "--validate-only")
    lines = done.stderr.splitlines()
    assert lines[20:] == [
        "and 3 other problems",
        "to list all 23 problems, add --problems FILE",
        "23 rows: 0 valid, 23 invalid",
    ]
    done = run(None, "approve-many", file, "--validate-only", "--problems", listed)
    assert done.stderr.splitlines() == [*lines[:21], f"23 problems, listed in {listed}", lines[22]]
    assert listed.read_text(encoding="utf-8").splitlines()[:20] == lines[:20]


@pytest.mark.parametrize("options", [("--validate-only",), ("--dry-run",), ("-o", "out.jsonl")])
def test_problems_file_lists_every_problem_for_its_owner(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_with_problems()
    listed = tmp_path / "problems.txt"
    listed.write_text("of an earlier run\n", encoding="utf-8")
    listed.chmod(0o600)
    write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", "rows.jsonl", "--problems", "problems.txt", *options)
    assert done.returncode == 2
    assert "7 problems, listed in problems.txt\n" in done.stderr
    lines = listed.read_text(encoding="utf-8").splitlines()
    assert [line.split(":")[1] for line in lines] == [f" line {line}" for line in (2, 4, 5, 6, 6, 7, 8)]
    assert lines[0] == f"rows.jsonl: line 2: postal_code: {POSTAL}"
    text = "".join(lines) + done.stderr
    assert not [value for row in rows for value in (row["fiscal_code"], row["email"]) if value in text]
    assert served.journal.calls(operation="approve") == []


@pytest.mark.skipif(os.name != "posix", reason="file modes of POSIX")
@pytest.mark.parametrize("name", ["problems.txt", "problems.txt.gz"])
def test_problems_file_is_readable_by_its_owner_only(tmp_path: Path, name: str) -> None:
    file, listed = write(tmp_path / "rows.jsonl", rows_with_problems()), tmp_path / name
    run(None, "approve-many", file, "--validate-only", "--problems", listed)
    assert listed.stat().st_mode & 0o777 == 0o600
    opened = gzip.open if name.endswith(".gz") else open
    with opened(listed, "rt", encoding="utf-8") as text:
        assert len(text.readlines()) == 7


def test_problems_can_go_to_standard_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", rows_with_problems())
    run(None, "approve-many", file, "--validate-only", "--problems", "-")
    assert len(capfd.readouterr().out.splitlines()) == 7


def test_problems_of_columns_are_listed_with_those_of_rows(tmp_path: Path) -> None:
    rows = [make_row("approved", amount=1) for _ in range(5)]
    file, listed = csv_file(tmp_path / "rows.csv", rows, city="town"), tmp_path / "problems.txt"
    done = run(None, "approve-many", file, "--validate-only", "--problems", listed)
    assert f"{file}: 5 × amount: " in done.stderr
    assert f"{file}: line 1, column 'town': unknown column" in done.stderr
    assert done.stderr.count("city: no column for this field") == 1
    assert len(listed.read_text(encoding="utf-8").splitlines()) == 7


@pytest.mark.parametrize("name", ["nowhere/problems.txt", "."])
def test_problems_file_that_cannot_be_created_sends_nothing(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [make_row("approved")]
    create(served, rows)
    write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", "rows.jsonl", "-o", "out.jsonl", "--problems", name)
    assert (done.returncode, done.stderr.startswith(f"{name}: ")) == (2, True), done.stderr
    assert served.journal.calls(operation="approve") == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_problems_file_on_a_full_disk_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", rows_with_problems() * 100)  # more than one buffer
    done = run(
        None, "approve-many", file, "-o", tmp_path / "out.jsonl", "--problems", "/dev/full", "--sandbox"
    )
    gc.collect()  # an exception in a generator that is discarded fails the test
    assert (done.returncode, done.stderr) == (2, "/dev/full: cannot be written (No space left on device)\n")


PERSONAL = ("TSTXYZ00A00A000A", "anna@example.com", "Prova", "3330000000")


def csv_without_header(tmp_path: Path, **changes: str) -> Path:
    rows = [
        make_row("x", fiscal_code=PERSONAL[0], email=PERSONAL[1], mobile_phone=PERSONAL[3], **changes)
        for _ in range(2)
    ]
    file = csv_file(tmp_path / "rows.csv", rows)
    file.write_text(file.read_text(encoding="utf-8").partition("\n")[2], encoding="utf-8")
    return file


@pytest.mark.parametrize("options", [(), ("--ignore-unknown",)])
def test_file_without_a_header_prints_no_cell(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = csv_without_header(tmp_path)
    done = run(None, "approve-many", file, "--validate-only", *options)
    assert done.returncode == 2
    assert done.stderr == (
        f"{file}: line 1: no column name is known. If this line is a row, write the column names above it; "
        "otherwise map the names: --column FIELD=NAME\n"
    )
    file = csv_without_header(tmp_path, city="Via")  # which is a name of a column
    done = run(None, "approve-many", file, "--validate-only", *options)
    assert done.returncode == 2
    assert done.stderr == (
        f"{file}: line 1: this is not a header: a name contains @, a fiscal code or more than five digits; "
        "write the column names above the first row\n"
    )


@pytest.mark.parametrize("name", ["TSTXYZLMANPAQRSA", "TSTXYZ00A00A000A", "333 000 0000", "a@b"])
def test_unknown_column_that_looks_like_a_value_is_not_printed(tmp_path: Path, name: str) -> None:
    file = csv_file(tmp_path / "rows.csv", [make_row("x", extra="1")], extra=name)
    done = run(None, "approve-many", file, "--validate-only")
    assert (done.returncode, "line 1: this is not a header" in done.stderr, name in done.stderr) == (
        *(2, True, False),
    )
    mapped = run(None, "approve-many", file, "--validate-only", "--column", f"id={name}")
    assert mapped.returncode == 0, "a column that is mapped may have any name"


@pytest.mark.parametrize(
    "row",
    [
        {"Anna Prova": 1, "Roma": 2},
        {**make_row("x"), "TSTXYZ00A00A000A": 1},
        {**make_row("x"), "anna@example.com": 1, "additional": {"anna@example.com": 2}},
    ],
)
def test_unknown_members_that_look_like_values_are_not_printed(tmp_path: Path, row: dict[str, Any]) -> None:
    listed = tmp_path / "problems.txt"
    file = write(tmp_path / "rows.jsonl", [row])
    done = run(None, "approve-many", file, "--validate-only", "--problems", listed)
    text = done.stderr + listed.read_text(encoding="utf-8")
    assert f"{file}: line 1: unknown members, not printed because their names may be values; " in text
    assert [name for name in ("Anna", "Roma", "TSTXYZ", "anna@") if name in text] == []
