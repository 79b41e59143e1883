"""Input of ``approve-many``: options, problems with their lines, and rejected rows that are passed again."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.bulk import read as rows_of
from loanasync.bulk.columns import NAMES
from loanasync.cli.approve_many.rejected import write_invalid
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


NOT_CREATED = "UserNotFoundError: fiscal_code: User not found"
AMOUNT = "amount: must be a whole number between 5000 and 1500000 (euro cents)"
OWN = ("loanasync_line", "loanasync_reason")


def uncompressed(file: Path) -> bytes:
    raw = file.read_bytes()
    return gzip.decompress(raw) if ".gz" in file.name else raw


def content(file: Path) -> str:
    return uncompressed(file).decode("utf-8-sig")


def put(file: Path, text: str, codec: str = "utf-8") -> None:
    raw = text.encode(codec)
    file.write_bytes(gzip.compress(raw) if file.name.endswith(".gz") else raw)


def parsed(text: str) -> list[dict[str, Any]]:
    lines = text.splitlines()
    return [*map(json.loads, lines)] if text[0] == "{" else [*csv.DictReader(lines, delimiter=";")]


def csv_text(rows: list[dict[str, Any]], line_end: str = "\n") -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0], delimiter=";", quoting=csv.QUOTE_ALL, lineterminator=line_end)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def test_each_earlier_file_of_rejected_rows_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"fiscal_code": "WRONG"}])
    for _ in range(4):
        write_invalid(f"{tmp_path}/dead.jsonl", rows_of(file))
    kept = {each.name: each.read_text("utf-8") for each in tmp_path.glob("dead.jsonl*")}
    assert sorted(kept) == ["dead.jsonl", "dead.jsonl.old", "dead.jsonl.old2", "dead.jsonl.old3"]
    assert len({*kept.values()}) == 1
