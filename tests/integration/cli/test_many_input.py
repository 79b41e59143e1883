"""Input of ``approve-many``: its options, and problems that are printed in groups with line and column."""

import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.bulk.columns import NAMES
from loanasync.sandbox import Sandbox
from support.cli import make_row, run, write

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


def check(file: Path, *options: object) -> tuple[int, list[str]]:
    """Return the exit code, and the messages without the name of the file."""
    done = run(None, "approve-many", file, "--validate-only", *options)
    assert done.stdout == ""
    return done.returncode, [line.removeprefix(f"{file}: ") for line in done.stderr.splitlines()]


def test_problems_of_one_field_and_message_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    code, [first, second, *last] = check(write(file, rows_with_problems()))
    assert (code, first) == (2, f"5 × postal_code: {POSTAL} (lines 2, 4, 5 and 2 others)")
    assert (second.startswith("2 × amount: "), second.endswith(" (lines 6 and 8)")) == (True, True)
    all_of_them = "to list all {} problems with their rows, add --rejected FILE"
    assert last == [all_of_them.format(7), "8 rows: 2 valid, 6 invalid"]
    rejected = tmp_path / "rejected.jsonl"
    listed = f"all 7 problems with their rows are listed in {rejected}"
    assert check(file, "--rejected", rejected)[1][-2] == listed
    rows = [make_row("approved") for _ in range(2)]
    assert check(write(file, [*rows, *rows]))[1][0] == f"2 × {DUPLICATE.format('…')} (lines 3 and 4)"
    names = [*map(chr, range(ord("a"), ord("x")))]
    many = [{**make_row("approved"), f"extra{name}": 1} for name in (*names, *names)]
    _, lines = check(write(file, many))
    assert lines[20:] == ["and 6 other problems", all_of_them.format(46), "46 rows: 0 valid, 46 invalid"]


def test_problems_name_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    rows = [make_row("approved", postal_code=code) for code in ("1", "00100", "00100")]
    csv_file(file, [*rows, rows[1]], postal_code="Zona")
    lines = [
        f"line 2, column 'Zona': postal_code: {POSTAL}",
        f"line 5, column 'fiscal_code': {DUPLICATE.format(3)}",
        "4 rows: 2 valid, 2 invalid",
    ]
    for options in ((), ("--skip-invalid",)):
        assert check(file, "--column", "postal_code=Zona", *options) == (2, lines)
    csv_file(file, [rows[0]] * 4, postal_code="CAP")
    assert check(file)[1][0] == f"4 × postal_code, column 'CAP': {POSTAL} (lines 2, 3, 4 and 1 other)"
    code, [first, second, third] = check(csv_file(file, [make_row("", amount=1)] * 3, city="where"))
    assert (code, first.startswith("3 × amount: must be a whole number between")) == (2, True)
    assert second.startswith("line 1, column 'where': unknown column. Map it: --column FIELD=where, or")
    assert third.startswith("line 1: city: no column for this field")


@pytest.mark.parametrize(
    "options",
    [("--validate-only",), ("--dry-run",), ("--dry-run", "--skip-invalid"), ("-o", "out.jsonl")],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rejected_rows_are_written_without_sending(
    tmp_path: Path, served: Sandbox, options: tuple[str, ...], name: str
) -> None:
    """The file has the invalid rows with line and reason, and can be read again when it is corrected."""
    rows, file, again = rows_with_problems(), tmp_path / name, tmp_path / "again"
    (csv_file if name == "rows.csv" else write)(file, rows)
    out = ("-o", tmp_path / "out.jsonl") if "-o" in options else options
    done = run(served, "approve-many", file, "--rejected", again, *out)
    code = 0 if "--skip-invalid" in options else 2
    assert (done.returncode, served.journal.calls(operation="approve")) == (code, [])
    assert again.stat().st_mode & 0o077 == 0
    text = again.read_text(encoding="utf-8-sig")
    assert text.count("postal_code: must be five digits") == 5
    for wrong, right in (
        *((";1;12/A", ";00100;12/A"), (";1;12;", ";45000;12;")),
        *(('code": "1"', 'code": "00100"'), ('amount": 1,', 'amount": 45000,')),
    ):
        text = text.replace(wrong, right)
    again.write_text(text, encoding="utf-8")
    assert check(again) == (0, ["6 rows: 6 valid, 0 invalid"])


def test_mapping_column_euro_and_ignore_unknown_are_used_together(tmp_path: Path) -> None:
    mapping, row = tmp_path / "mapping.toml", {**make_row("approved", amount="450,00"), "Note": "x"}
    file = csv_file(tmp_path / "rows.csv", [row], city="Luogo", postal_code="Zona")
    text = 'amounts = "cents"\n[columns]\ncity = "Paese"\npostal_code = "Zona"\n'
    mapping.write_text(text, encoding="utf-8")
    options = ("--euro", "--ignore-unknown", "--column", "city=Luogo", "--mapping", mapping)
    assert check(file, *options) == (0, ["1 row: 1 valid, 0 invalid"])


def test_recognised_names_are_on_the_bulk_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "bulk.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for field, names in NAMES.items():
        (row,) = [line for line in rows if line.startswith(f"| `{field}` |")]
        assert [name for name in names if name not in row] == []


def test_file_without_header_prints_no_cell(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("fiscal_code;amount;anna@example.com\n", encoding="utf-8")
    code, [message] = check(file)
    assert (code, message.startswith("line 1: this is not a header"), "anna" in message) == (2, True, False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--column", "amount"), "must be FIELD=NAME"),
        (("--column", "amout=Importo"), "unknown field 'amout'; the fields are "),
        (("-o", "out", "--create", "--member", "privacy"), "must be NAME=COLUMN"),
        (("-o", "out", "--create", "--member", "fiscalCode=cf"), "use --column fiscal_code=COLUMN"),
        ((), "name the results file"),
        (("-o", "out", "--concurrency", "0"), "concurrency"),
        (("-o", "out"), "LOANASYNC_BASE_URL"),
        (("-o", "out", "--rate", "0"), "must be a number of rows per second greater than 0"),
        (("-o", "out", "--rate", "inf"), "must be a number of rows per second greater than 0"),
        (("-o", "out", "--deadline", "0"), "must be a number of seconds greater than 0"),
        (("-o", "out", "--deadline", "nan"), "must be a number of seconds greater than 0"),
    ],
)
def test_invalid_options_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(None, "approve-many", "-", *options, stdin=json.dumps(make_row("approved")))
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.replace("│", " ").split())
    assert [*tmp_path.iterdir()] == []
