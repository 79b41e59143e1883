"""Input of ``approve-many``: options, problems with their lines, and rejected rows."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.bulk.columns import NAMES
from loanasync.sandbox import Sandbox
from support.cli import Bulk, create, make_row, name_service, read, run, write

POSTAL = "must be five digits; if it is shorter, it may have lost leading zeros"


def rows_with_problems() -> list[dict[str, Any]]:
    """Return rows of which 2, 4, 5, 6 and 7 have a wrong postal code, and 6 and 8 a wrong amount."""
    rows = [make_row("approved") for _ in range(8)]
    for line in (2, 4, 5, 6, 7):
        rows[line - 1]["postal_code"] = "1"
    for line in (6, 8):
        rows[line - 1]["amount"] = 1
    return rows


@pytest.fixture(autouse=True)
def _service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a service, which a dry run does not use."""
    name_service(monkeypatch)


def csv_file(path: Path, rows: list[dict[str, Any]], **renamed: str) -> Path:
    header = ";".join(renamed.get(name, name) for name in rows[0])
    lines = [";".join(map(str, row.values())) for row in rows]
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


def check(file: Path, *options: object) -> tuple[int, list[str]]:
    """Return the exit code of a dry run, and the messages without the name of the file."""
    done = run(None, "approve-many", file, "--dry-run", *options)
    assert done.stdout == ""
    return done.returncode, [line.removeprefix(f"{file}: ") for line in done.stderr.splitlines()]


def test_problems_of_one_field_and_message_are_one_line(tmp_path: Path) -> None:
    file = csv_file(tmp_path / "rows.csv", rows_with_problems(), postal_code="CAP")
    code, lines = check(file)
    assert code == 2
    assert f"5 × postal_code, column 'CAP': {POSTAL} (lines 3, 5, 6 and 2 others)" in lines
    assert "to list all 7 problems with their rows, add --rejected FILE" in lines


def test_spoiled_and_unknown_values_name_line_and_column(tmp_path: Path) -> None:
    rows = [{**make_row("approved"), "CAP": "00100", "Note": "x"} for _ in range(2)]
    for row in rows:
        del row["postal_code"]
    file = csv_file(tmp_path / "rows.csv", rows)
    assert (
        "line 1, column 'Note': unknown column; give it the name of a field, remove it, or ignore it"
        in check(file)[1]
    )
    mapping = tmp_path / "mapping.toml"
    mapping.write_text('ignore = ["Note"]\n[columns]\ncity = "Posto"\n', encoding="utf-8")
    rows = [{"Posto": row.pop("city"), **row} for row in rows]
    rows[1]["mobile_phone"] = "3330000000.0"
    code, lines = check(csv_file(file, rows), "--mapping", mapping)
    begin = "1 × mobile_phone, column 'mobile_phone': a spreadsheet or data frame has added decimals"
    assert (code, lines[0].startswith(begin), lines[0].endswith("(line 3)")) == (2, True, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[values]", "unknown values; use [columns], [members] and ignore"),
        ("members = 1", "[members] has the columns of other members than fiscalCode"),
        ("[members]\nprivacy = 1", "[members] has the columns of other members than fiscalCode"),
        ("[members]\nfiscalCode = 'cf'", "[members] has the columns of other members than fiscalCode"),
        ("ignore = 'x'", "ignore must be a list of names of columns"),
        ("= 1", "is not valid TOML in UTF-8"),
        ("\ud8ff", "is not valid TOML in UTF-8"),
        ("[columns]\nname = 'x'", "columns: unknown field name"),
        (None, "No such file or directory"),
    ],
)
def test_wrong_mapping_is_refused(tmp_path: Path, text: str | None, expected: str) -> None:
    file, mapping = write(tmp_path / "rows.jsonl", [make_row("")]), tmp_path / "mapping.toml"
    if text is not None:
        mapping.write_bytes(text.encode(errors="surrogatepass"))
    code, lines = check(file, "--mapping", mapping)
    assert (code, any(expected in line for line in lines)) == (2, True), lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "0"), "must be a number of rows per second greater than 0"),
        (("--rate", "inf"), "must be a number of rows per second greater than 0"),
        (("--encoding", "x-1"), "unknown text encoding 'x-1'"),
        ((), "name the results file: -o FILE, or -o - for standard output"),
    ],
)
def test_invalid_options_are_reported(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    file = write(tmp_path / "rows.jsonl", [make_row("")])
    out = ("-o", "-") if options else ()
    done = run(None, "approve-many", file, *out, *options)
    assert (done.returncode, message in " ".join(done.stderr.replace("│", "").split())) == (2, True)


@pytest.mark.parametrize("options", [("--dry-run",), ("--dry-run", "--skip-invalid"), ("-o", "out.jsonl")])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rejected_rows_are_written_without_sending(
    tmp_path: Path, served: Sandbox, options: tuple[str, ...], name: str
) -> None:
    """The file has the invalid rows with their reason, and can be read when it is corrected."""
    rows, file, again = rows_with_problems(), tmp_path / name, tmp_path / "again"
    (csv_file if name == "rows.csv" else write)(file, rows)
    out = ("-o", tmp_path / "out.jsonl") if "-o" in options else options
    done = run(served, "approve-many", file, "--rejected", again, *out)
    code = 1 if "--skip-invalid" in options else 2
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
    assert check(again)[0] == 0


def test_rejected_rows_are_corrected_and_sent_and_have_no_copies(tmp_path: Path, served: Sandbox) -> None:
    rows = [
        make_row("approved"),
        make_row("approved", amount=1, city='Forlì "alto"; centro'),
        make_row("invalid.city"),
    ]
    create(served, rows)
    file, dead, out = (tmp_path / name for name in ("rows.csv", "dead.csv", "out.jsonl"))
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0], delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    for _ in range(2):
        done = run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", dead)
        assert (done.returncode, len(read(out))) == (1, 3)
    letters = dead.read_text(encoding="utf-8-sig")
    found = [*csv.DictReader(letters.splitlines(), delimiter=";")]
    reasons = [row.pop("loanasync_reason").partition(":")[0] for row in found]
    assert (reasons, found[0]) == (
        ["amount", "RejectedError"],
        {name: str(value) for name, value in rows[1].items()},
    )
    dead.write_text(
        letters.replace(";1;", ";45000;").replace("+invalid.city", "+approved"), encoding="utf-8-sig"
    )
    assert run(served, "approve-many", dead, "-o", tmp_path / "corrected.jsonl").returncode == 0
    assert {each.name for each in tmp_path.glob("dead*")} == {"dead.csv"}
    assert "Forlì" in str([call.request for call in served.journal.calls(operation="approve")])


def test_rows_that_cannot_be_parsed_keep_their_text(tmp_path: Path, served: Sandbox) -> None:
    bulk, dead = Bulk(tmp_path, served, "approved"), tmp_path / "dead.jsonl"
    bulk.file.write_text(bulk.file.read_text(encoding="utf-8") + '[1]\n{"fiscal_code": "T', encoding="utf-8")
    code, output = bulk.run("--skip-invalid", "--rejected", dead)
    assert (code, "1 × incomplete: the file ends in the middle of this row (line 3)" in output) == (1, True)
    assert [row["row"] for row in read(dead)] == ["[1]", '{"fiscal_code": "T']
    assert [json.loads(line)["line"] for line in bulk.out.read_text(encoding="utf-8").splitlines()] == [
        1,
        2,
        3,
    ]


def test_recognised_names_are_on_the_bulk_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "bulk.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for field, names in NAMES.items():
        (row,) = [line for line in rows if line.startswith(f"| `{field}` |")]
        assert [name for name in names if name not in row] == []


def test_member_may_be_a_field_of_the_row(tmp_path: Path) -> None:
    file, mapping = csv_file(tmp_path / "rows.csv", [make_row("approved")]), tmp_path / "mapping.toml"
    mapping.write_text('[members]\nmail = "email"\n', encoding="utf-8")
    assert check(file, "--mapping", mapping)[0] == 0


def test_member_of_a_column_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    file, mapping = csv_file(tmp_path / "rows.csv", [make_row("approved")]), tmp_path / "mapping.toml"
    mapping.write_text('[members]\nprivacy = "Consneso"\n', encoding="utf-8")
    code, [message] = check(file, "--mapping", mapping)
    assert (code, message) == (2, f"{mapping}: [members]: the file has no column 'Consneso'")


def test_file_without_header_prints_no_cell(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("fiscal_code;amount;anna@example.com\n", encoding="utf-8")
    code, [message] = check(file)
    assert (code, message.startswith("line 1: this is not a header"), "anna" in message) == (2, True, False)
