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
    code, [first, *last] = check(write(tmp_path / "rows.jsonl", rows_with_problems()))
    assert (code, first) == (2, f"5 × postal_code: {POSTAL} (lines 2, 4, 5 and 2 others)")
    assert last[0].startswith("2 × amount: ")
    assert last[0].endswith(" (lines 6 and 8)")
    assert last[1:] == [
        "to list all 7 problems with their rows, add --rejected FILE",
        "8 rows: 2 valid, 6 invalid",
    ]


def test_problem_of_one_row_keeps_its_line_and_column(tmp_path: Path) -> None:
    rows = [make_row("approved", postal_code=code) for code in ("1", "00100", "00100")]
    file = csv_file(tmp_path / "rows.csv", [*rows, rows[1]], postal_code="Zona")
    code, output = check(file, "--column", "postal_code=Zona")
    assert (code, output) == (
        2,
        [
            f"line 2, column 'Zona': postal_code: {POSTAL}",
            f"line 5, column 'fiscal_code': {DUPLICATE.format(3)}",
            "4 rows: 2 valid, 2 invalid",
        ],
    )


def test_problems_name_a_column_that_differs_from_its_field(tmp_path: Path) -> None:
    rows = [make_row("approved", postal_code="1") for _ in range(2)]
    file = csv_file(tmp_path / "rows.csv", [*rows, *rows], postal_code="CAP")
    assert check(file)[1][0] == f"4 × postal_code, column 'CAP': {POSTAL} (lines 2, 3, 4 and 1 other)"


def test_duplicates_are_one_group(tmp_path: Path) -> None:
    rows = [make_row("approved") for _ in range(2)]
    output = check(write(tmp_path / "rows.jsonl", [*rows, *rows]))[1]
    assert output[0] == f"2 × {DUPLICATE.format('…')} (lines 3 and 4)"


def test_problems_are_printed_in_twenty_groups_at_most(tmp_path: Path) -> None:
    rows = [{**make_row("approved"), f"extra{chr(97 + number)}": 1} for number in range(23)]
    _, lines = check(write(tmp_path / "rows.jsonl", rows))
    assert lines[20:] == [
        "and 3 other problems",
        "to list all 23 problems with their rows, add --rejected FILE",
        "23 rows: 0 valid, 23 invalid",
    ]


def test_problems_of_columns_are_printed_with_those_of_rows(tmp_path: Path) -> None:
    rows = [make_row("approved", amount=1) for _ in range(3)]
    code, output = check(csv_file(tmp_path / "rows.csv", rows, city="where"))
    assert (code, len(output)) == (2, 3)
    assert output[0].startswith("3 × amount: must be a whole number between")
    assert output[1].startswith("line 1, column 'where': unknown column. Map it: --column FIELD=where, or")
    assert output[2].startswith("line 1: city: no column for this field")


@pytest.mark.parametrize("options", [("--validate-only",), ("--dry-run",), ("-o", "out.jsonl")])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rejected_rows_are_written_without_sending(
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    name: str,
) -> None:
    """The file has the invalid rows with line and reason, and can be read again when it is corrected."""
    monkeypatch.chdir(tmp_path)
    rows = rows_with_problems()
    file = write(Path(name), rows) if name.endswith("l") else csv_file(Path(name), rows)
    done = run(served, "approve-many", file, "--rejected", "again", *options)
    assert done.returncode == 2
    assert served.journal.calls(operation="approve") == []
    assert Path("again").stat().st_mode & 0o077 == 0
    first = 1 if name.endswith("l") else 2
    text = Path("again").read_text(encoding="utf-8-sig")
    lines = text.splitlines()[first - 1 :]
    assert [line.partition("postal_code: must be five digits")[1] != "" for line in lines] == [True] * 5 + [
        False
    ]
    for wrong, right in (
        *((";1;12/A", ";00100;12/A"), (";1;12;", ";45000;12;")),
        *(('code": "1"', 'code": "00100"'), ('amount": 1,', 'amount": 45000,')),
    ):
        text = text.replace(wrong, right)
    corrected = tmp_path / "corrected"
    corrected.write_text(text, encoding="utf-8")
    code, output = check(corrected)
    assert (code, output) == (0, ["6 rows: 6 valid, 0 invalid"])


def test_mapping_column_euro_and_ignore_unknown_are_used_together(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.toml"
    mapping.write_text('[columns]\ncity = "Paese"\npostal_code = "Paese"\n', encoding="utf-8")
    row = make_row("approved", amount="450,00")
    file = csv_file(tmp_path / "rows.csv", [{**row, "Note": "x"}], city="Luogo", postal_code="Zona")
    options = ("--euro", "--ignore-unknown", "--column", "city=Luogo")
    code, output = check(file, "--mapping", mapping, *options)
    assert (code, output[0].partition("mapping: ")[2]) == (2, "")
    mapping.write_text('[columns]\ncity = "Paese"\npostal_code = "Zona"\n', encoding="utf-8")
    assert check(file, "--mapping", mapping, *options) == (0, ["1 row: 1 valid, 0 invalid"])


def test_recognised_names_are_on_the_bulk_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "bulk.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for field, names in NAMES.items():
        (row,) = [line for line in rows if line.startswith(f"| `{field}` |")]
        assert [name for name in names if name not in row] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "contains no rows"),
        ("[{}]", "contains a JSON array"),
        ("fiscal_code;amount;anna@example.com\n", "line 1: this is not a header"),
        ('{"b": nope}\n', "line 1: invalid JSON at character 7"),
    ],
)
def test_file_that_cannot_be_read_sends_nothing(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "rows"
    file.write_text(content, encoding="utf-8")
    code, output = check(file)
    assert code == 2
    assert message in output[0]
    assert "anna" not in output[0]


def test_rows_from_a_pipe_are_read() -> None:
    rows = "".join(json.dumps(make_row("approved")) + "\n" for _ in range(300))
    done = run(None, "approve-many", "-", "--validate-only", stdin=rows)
    assert (done.returncode, done.stderr) == (0, "300 rows: 300 valid, 0 invalid\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--column", "amount"), "must be FIELD=NAME"),
        (("--column", "amout=Importo"), "unknown field 'amout'; the fields are "),
        ((), "name the results file"),
        (("-o", "out", "--concurrency", "0"), "concurrency"),
        (("-o", "out"), "LOANASYNC_BASE_URL"),
        (("-o", "out", "--rate", "0"), "must be a number of calls per second greater than 0"),
        (("-o", "no/out", "--sandbox"), "no does not exist"),
    ],
)
def test_invalid_options_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(None, "approve-many", write(Path("rows.jsonl"), [make_row("approved")]), *options)
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.replace("│", " ").split())
