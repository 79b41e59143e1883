"""Input of ``approve-many``: options, problems with their lines, and rejected rows."""

import csv
import json
import math
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
    with path.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, delimiter=";")
        writer.writerows([[renamed.get(name, name) for name in rows[0]], *(row.values() for row in rows)])
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


MEMBERS = "[members] has the columns of other members than fiscalCode, each in quotes"
PLAIN = "must be text, a number, true or false; write one value"
IGNORED, TOML = "ignore = ['Note']\n", "mapping.toml: "
SPOILED = "a spreadsheet has written the error of a formula; correct the formula"


@pytest.mark.parametrize(
    ("name", "mapping", "code", "expected"),
    [
        ("csv", "[values]", 2, f"{TOML}unknown values; use [columns], [members] and ignore"),
        ("csv", "members = 1", 2, f"{TOML}{MEMBERS}"),
        ("csv", "[members]\nprivacy = 1", 2, f"{TOML}{MEMBERS}"),
        ("csv", "[members]\nfiscalCode = 'cf'", 2, f"{TOML}{MEMBERS}"),
        ("csv", f"{IGNORED}[members]\nprivacy = 'Consneso'", 2, f"{TOML}[members]: the file has no column "),
        ("csv", "ignore = 'x'", 2, f"{TOML}ignore must be a list of names of columns"),
        ("csv", "= 1", 2, f"{TOML}is not valid TOML in UTF-8"),
        ("csv", "\ud8ff", 2, f"{TOML}is not valid TOML in UTF-8"),
        ("csv", "[columns]\nname = 'x'", 2, f"{TOML}columns: unknown field name"),
        ("csv", None, 2, f"{TOML}No such file or directory"),
        ("csv", "", 2, "line 1, column 'Note': unknown column; give it the name of a field, remove it, or"),
        ("csv", IGNORED, 0, ""),
        ("csv", f"\ufeff{IGNORED}", 0, ""),
        ("csv", f"{IGNORED}[members]\nmail = 'email'", 0, ""),
        ("csv", "[members]\nprivacy = 'Note'", 2, f"1 × Note: {SPOILED} (line 3)"),
        ("json", "[members]\nprivacy = 'Note'", 2, f"1 × Note: {PLAIN} (line 2)"),
        ("csv", "[columns]\niban = 'Note'", 2, f"1 × iban, column 'Note': {SPOILED} (line 3)"),
    ],
)  # fmt: skip
def test_mapping_of_columns_is_used_or_refused(
    tmp_path: Path, name: str, mapping: str | None, code: int, expected: str
) -> None:
    rows = [{**make_row("approved"), "Note": each} for each in (True, "#N/A" if name == "csv" else {"a": 1})]
    file, toml = (csv_file if name == "csv" else write)(tmp_path / "rows", rows), tmp_path / "mapping.toml"
    if mapping is not None:
        toml.write_bytes(mapping.encode(errors="surrogatepass"))
    found, lines = check(file, "--mapping", toml)
    messages = [line.removeprefix(f"{tmp_path}/") for line in lines]
    assert (found, any(each.startswith(expected) for each in messages)) == (code, True), lines


@pytest.mark.parametrize("options", [("--dry-run",), ("-o", "out.jsonl", "--create")])
def test_member_that_is_no_json_has_the_same_problem_in_plan_and_run(
    tmp_path: Path, served: Sandbox, options: tuple[str, ...]
) -> None:
    notes = (True, math.inf, "a\ud800", "a\0")
    rows = [make_row("approved", Note=note) for note in notes]
    file, toml, again = write(tmp_path / "rows", rows), tmp_path / "mapping.toml", tmp_path / "again"
    toml.write_text("[members]\nprivacy = 'Note'", encoding="utf-8")
    given = [tmp_path / each if each == "out.jsonl" else each for each in options]
    done = run(served, "approve-many", file, "--mapping", toml, "--rejected", again, *given)
    assert (done.returncode, served.journal.calls()) == (2, [])
    message = "must contain only JSON values; use str, int, finite float, bool, None, list and dict"
    assert f"2 × Note: {message} (lines 2 and 3)" in done.stderr
    assert "1 × Note: must not contain a NUL character (line 4)" in done.stderr
    assert again.read_text(encoding="utf-8").count("loanasync_reason") == 3


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
    assert {each.name for each in tmp_path.iterdir()} == {name, "again"}
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
    wrong = make_row("approved", amount=1, city='Forlì "alto"; centro')
    rows = [make_row("approved"), wrong, make_row("invalid.city")]
    create(served, rows)
    dead, out = tmp_path / "dead.csv", tmp_path / "out.jsonl"
    file = csv_file(tmp_path / "rows.csv", rows)
    for _ in range(2):
        done = run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", dead)
        assert (done.returncode, len(read(out))) == (1, 3)
    letters = dead.read_text(encoding="utf-8-sig")
    found = [*csv.DictReader(letters.splitlines(), delimiter=";")]
    assert [row.pop("loanasync_reason").partition(":")[0] for row in found] == ["amount", "RejectedError"]
    assert found[0] == {name: str(value) for name, value in wrong.items()}
    again = ("-o", tmp_path / "again.jsonl", "--skip-invalid", "--rejected", tmp_path / "again.csv")
    assert run(served, "approve-many", dead, *again).returncode == 1
    assert (tmp_path / "again.csv").read_bytes() == dead.read_bytes(), "with one column of reasons"
    corrected = letters.replace(";1;", ";45000;").replace("+invalid.city", "+approved")
    dead.write_text(corrected, encoding="utf-8-sig")
    assert run(served, "approve-many", dead, "-o", tmp_path / "corrected.jsonl").returncode == 0
    assert {each.name for each in tmp_path.glob("dead*")} == {"dead.csv"}
    assert "Forlì" in str([call.request for call in served.journal.calls(operation="approve")])


def test_rows_that_cannot_be_parsed_keep_their_text(tmp_path: Path, served: Sandbox) -> None:
    bulk, dead = Bulk(tmp_path, served, "approved"), tmp_path / "dead.jsonl"
    bulk.file.write_text(bulk.file.read_text(encoding="utf-8") + '[1]\n{"fiscal_code": "T', encoding="utf-8")
    code, output = bulk.run("--skip-invalid", "--rejected", dead)
    assert (code, "1 × incomplete: the file ends in the middle of this row (line 3)" in output) == (1, True)
    assert [row["row"] for row in read(dead)] == ["[1]", '{"fiscal_code": "T']
    lines = bulk.out.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["line"] for line in lines] == [1, 2, 3]


def test_recognised_names_are_on_the_bulk_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "bulk.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for field, names in NAMES.items():
        (row,) = [line for line in rows if line.startswith(f"| `{field}` |")]
        assert [name for name in names if name not in row] == []


def test_default_ledger_is_that_of_the_service_and_the_shop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ledgers = write(tmp_path / "rows.jsonl", [make_row("approved")]), set()
    for variable, value in (("SHOP_ID", "first"), ("SHOP_ID", "other"), ("BASE_URL", "http://localhost:8")):
        monkeypatch.setenv(f"LOANASYNC_{variable}", value)
        ledgers.add(check(file)[1][-1])
    assert (len(ledgers), all(each.startswith("ledger: ") for each in ledgers)) == (3, True)


def test_file_without_header_prints_no_cell(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("fiscal_code;amount;anna@example.com\n", encoding="utf-8")
    code, [message] = check(file)
    assert (code, message.startswith("line 1: this is not a header"), "anna" in message) == (2, True, False)
