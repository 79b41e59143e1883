"""Input of ``approve-many``: options, problems with their lines, and rejected rows that are passed again."""

import csv
import gzip
import io
import json
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from loanasync.bulk import read as rows_of
from loanasync.bulk.columns import NAMES
from loanasync.cli.approve_many.rejected import write_invalid
from loanasync.sandbox import Sandbox
from support.cli import Bulk, create, make_row, read, run, write

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


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.jsonl"])
@pytest.mark.parametrize("codec", ["utf-8", "cp1252"])
def test_rejected_rows_are_corrected_and_sent(tmp_path: Path, served: Sandbox, codec: str, name: str) -> None:
    """The file is UTF-8 with a byte order mark, whatever the input was, so a spreadsheet reads it."""
    rows = [make_row("approved", amount=amount, city="Forlì; centro") for amount in (45_000, 1, 45_000)]
    is_csv = "csv" in name
    file, dead, out = tmp_path / name, tmp_path / f"dead-{name}", tmp_path / "out.jsonl"
    put(file, csv_text(rows, "\r\n") if is_csv else "".join(f"{json.dumps(row)}\n" for row in rows), codec)
    options = ("-o", out, "--skip-invalid", "--rejected", dead)
    assert run(served, "approve-many", file, *options).returncode == 1, "no request is created yet"
    written = content(dead)
    assert uncompressed(dead).startswith(BOM_UTF8) == is_csv
    found, first = parsed(written), 2 if is_csv else 1
    assert [(int(row.pop(OWN[0])), row.pop(OWN[1])) for row in found] == [
        (first, NOT_CREATED), (first + 1, AMOUNT), (first + 2, NOT_CREATED)
    ]  # fmt: skip
    assert found == [{each: str(cell) for each, cell in row.items()} if is_csv else row for row in rows]

    create(served, rows)
    corrected = tmp_path / f"corrected-{name}"
    put(corrected, written.replace(";1;", ";45000;").replace('amount": 1,', 'amount": 45000,'))
    again = run(served, "approve-many", corrected, *options)
    assert (again.returncode, f"the earlier {dead} is kept as {dead}.old" in again.stderr) == (0, True)
    lines = dict.fromkeys(range(first, first + 3), "approved")
    assert {line["line"]: line["status"] for line in read(out)} == lines
    assert content(dead).count("\n") == is_csv, "a run without failures empties them"
    run(served, "approve-many", corrected, *options)
    assert content(dead.with_name(f"{dead.name}.old")) == written, "an empty file is not kept"


def test_rejected_rows_that_cannot_be_parsed_keep_their_text(tmp_path: Path) -> None:
    file, dead = tmp_path / "rows.jsonl", tmp_path / "dead.jsonl"
    broken = '{"fiscal_code": "TSTXYZ00A00A000A", "amount": 1, "amount": 2}'
    file.write_text("\n".join([json.dumps(make_row("approved")), broken, "5", '{"fiscal_code": "TST']))
    assert run(None, "approve-many", file, "--dry-run", "--rejected", dead).returncode == 2
    found = [(each[OWN[0]], each["row"]) for each in read(dead)]
    assert found == [(2, broken), (3, "5"), (4, '{"fiscal_code": "TST')]


def test_rows_after_an_invalid_csv_row_are_sent(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(3)]
    create(served, rows)
    head, *lines = csv_text(rows).splitlines()
    file, dead, out = (tmp_path / name for name in ("rows.csv", "dead.csv", "out.jsonl"))
    broken, more = lines[1].replace('"RM"', '"R"M'), f"{lines[1]};more"
    file.write_text("\n".join([head, lines[0], broken, more, lines[2], '"TST\nXYZ']), encoding="utf-8")
    done = run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", dead)
    assert (done.returncode, f"{file}: line 3: invalid CSV" in done.stderr) == (1, True)
    assert f"{file}: line 6: incomplete: the file ends inside a quoted cell" in done.stderr
    assert {line["line"] for line in read(out) if line["status"] == "approved"} == {2, 5}
    letters = content(dead).splitlines()[1:]
    assert [letter.split(";")[0] for letter in letters] == ["3", "4", "6"]
    assert letters[1].endswith(";more")


def test_rejected_rows_twice_keep_the_first_line_and_the_last_reason(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("approved", amount=1, city='Forlì "alto"; centro', id="7")]
    create(served, rows)
    file, first, second = (tmp_path / name for name in ("rows.csv", "first.csv", "second.csv"))
    file.write_text(csv_text([{"id": "", **row} for row in rows]), encoding="utf-8")
    options = ("-o", tmp_path / "out.jsonl", "--skip-invalid", "--rejected")
    run(served, "approve-many", file, *options, first)
    letters = content(first).replace(";RM;", ";rm;").replace(";1;", ";45000;")
    # Excel writes all cells anew, and a person moves the columns of the command to the end.
    cells = [row[2:] + row[:2] for row in csv.reader(letters.splitlines(), delimiter=";")]
    with first.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, delimiter=";").writerows(cells)
    run(served, "approve-many", first, *options, second)
    [letter] = parsed(content(second))
    reason = "province: must be two upper-case letters, such as RM"
    assert (letter.pop(OWN[0]), letter.pop(OWN[1])) == ("3", reason)
    assert letter == {**{n: str(v) for n, v in rows[1].items()}, "amount": "45000", "province": "rm"}
    last = [line for line in read(tmp_path / "out.jsonl") if line["status"] == "rejected"][-1]
    assert (last["line"], last["id"]) == (3, "7")


def test_rejected_json_lines_keep_their_letters_with_an_encoding(tmp_path: Path, served: Sandbox) -> None:
    file, rejected, mapping = (tmp_path / name for name in ("rows.jsonl", "rejected.jsonl", "mapping.toml"))
    row = make_row("approved", city="Forlì", province="Rm", id=["list", "of texts"])
    create(served, [row])
    file.write_bytes(json.dumps(row, ensure_ascii=False).encode("cp1252"))
    mapping.write_text('encoding = "cp1252"', encoding="utf-8")
    options = ("-o", tmp_path / "out.csv", "--mapping", mapping)
    for _ in range(2):
        done = run(served, "approve-many", file, *options, "--skip-invalid", "--rejected", rejected)
        assert done.returncode == 1
    text = rejected.read_text(encoding="utf-8")
    assert "Forlì" in text
    rejected.write_text(text.replace('"Rm"', '"RM"'), encoding="utf-8")
    assert run(served, "approve-many", rejected, *options).returncode == 0
    [call] = served.journal.calls(operation="approve")
    assert call.request is not None
    assert call.request["city"] == "Forlì"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rejected_rows_do_not_replace_another_file(tmp_path: Path, served: Sandbox, suffix: str) -> None:
    file, dead = write(tmp_path / "rows.jsonl", [make_row("approved")]), tmp_path / f"notes.txt{suffix}"
    notes = b"fiscal_code;amount\n"
    for found in (notes, gzip.compress(notes), gzip.compress(notes)[:-9]):
        dead.write_bytes(found)
        for options in (("-o", tmp_path / "out.jsonl"), ("--validate-only",)):
            done = run(served, "approve-many", file, *options, "--rejected", dead)
            assert f"{dead} exists and contains no rejected rows" in done.stderr
            assert (done.returncode, dead.read_bytes()) == (2, found)
    assert {*tmp_path.iterdir()} == {file, dead}


def test_resume_writes_each_rejected_row_once_and_keeps_the_earlier_file(
    tmp_path: Path, served: Sandbox
) -> None:
    bulk = Bulk(tmp_path, served, "forbidden", make_row("approved", amount=1), "approved")
    dead, old = tmp_path / "dead.jsonl.gz", tmp_path / "dead.jsonl.gz.old"
    options = ("--skip-invalid", "--rejected", dead)
    for _ in range(3):
        before = dead.read_bytes() if dead.exists() else None
        assert bulk.run(*options)[0] == 1
        assert before == (old.read_bytes() if old.exists() else None), "a person may have corrected it"
    letters = [(letter[OWN[0]], letter[OWN[1]]) for letter in parsed(content(dead))]
    assert letters == [(1, "AccessDeniedError: Access denied"), (2, AMOUNT)]
    refused = run(served, "approve-many", old, "-o", bulk.out, *options)
    assert (refused.returncode, old.read_bytes()) == (2, before), "the input would be replaced"


def test_invalid_row_of_the_first_file_comes_back_until_it_is_corrected(
    tmp_path: Path, served: Sandbox
) -> None:
    bulk = Bulk(tmp_path, served, "approved", make_row("approved", amount=1))
    dead, other, exported = (tmp_path / f"{name}.jsonl" for name in ("dead", "other", "exported"))
    options = ("-o", bulk.out, "--skip-invalid", "--rejected")
    assert bulk.run("--skip-invalid", "--rejected", dead)[0] == 1
    write(dead, [{**row, "amount": 45_000} for row in read(dead)])
    for source, amount, expected in (
        (dead, 1, ["approved", "approved"]),
        (bulk.file, 1, ["approved", "approved", "rejected"]),
        (bulk.file, 45_000, ["approved", "approved"]),
    ):
        write(bulk.file, [bulk.rows[0], {**bulk.rows[1], "amount": amount}])
        done = run(served, "approve-many", source, *options, other)
        assert (done.returncode, bulk.statuses) == ("rejected" in expected, expected)
        bulk.export("--rejected", exported)
        assert exported.read_bytes() == other.read_bytes()
    assert [row[OWN[0]] for row in read(tmp_path / "exported.jsonl.old")] == [2]
    assert bulk.calls == 2


def test_each_earlier_file_of_rejected_rows_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"fiscal_code": "WRONG"}])
    for _ in range(4):
        write_invalid(f"{tmp_path}/dead.jsonl", rows_of(file))
    kept = {each.name: each.read_text("utf-8") for each in tmp_path.glob("dead.jsonl*")}
    assert sorted(kept) == ["dead.jsonl", "dead.jsonl.old", "dead.jsonl.old2", "dead.jsonl.old3"]
    assert len({*kept.values()}) == 1
