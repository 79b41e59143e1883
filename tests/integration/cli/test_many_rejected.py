"""``approve-many --rejected``: a copy of failed rows that is corrected and passed as input again."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, write

NOT_CREATED = "UserNotFoundError: fiscal_code: User not found"
OWN = ("loanasync_line", "loanasync_reason")


def content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


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
    text = csv_text(rows, "\r\n") if is_csv else "".join(json.dumps(row) + "\n" for row in rows)
    file, dead, out = tmp_path / name, tmp_path / f"dead-{name}", tmp_path / "out.jsonl"
    file.write_bytes(gzip.compress(text.encode(codec)) if name.endswith(".gz") else text.encode(codec))
    options = ("-o", out, "--skip-invalid", "--rejected", dead)
    assert run(served, "approve-many", file, *options).returncode == 1, "no request is created yet"
    written = content(dead).decode("utf-8-sig")
    found: list[dict[str, Any]] = (
        [*csv.DictReader(written.splitlines(), delimiter=";")]
        if is_csv
        else [json.loads(line) for line in written.splitlines()]
    )
    reason = "amount: must be a whole number between 5000 and 1500000 (euro cents)"
    first = 2 if is_csv else 1
    assert {(int(row.pop(OWN[0])), row.pop(OWN[1])) for row in found} == {
        (first, NOT_CREATED), (first + 1, reason), (first + 2, NOT_CREATED)
    }  # fmt: skip
    assert found == [{each: str(cell) for each, cell in row.items()} if is_csv else row for row in rows]

    create(served, rows)
    corrected = tmp_path / f"corrected-{name}"
    edited = written.replace(";1;", ";45000;").replace('amount": 1,', 'amount": 45000,').encode()
    corrected.write_bytes(gzip.compress(edited) if name.endswith(".gz") else edited)
    again = run(served, "approve-many", corrected, *options)
    assert again.returncode == 0, again.stderr
    lines = dict.fromkeys(range(first, first + 3), "approved")
    assert {line["line"]: line["status"] for line in read(out)} == lines
    assert content(dead).decode("utf-8-sig").count("\n") == is_csv, "a run without failures empties them"
    kept = dead.with_name(f"{dead.name}.old").read_bytes()
    assert (gzip.decompress(kept) if name.endswith(".gz") else kept).decode("utf-8-sig") == written


def test_rejected_rows_that_cannot_be_parsed_keep_their_text(tmp_path: Path, served: Sandbox) -> None:
    file, dead = tmp_path / "rows.jsonl", tmp_path / "dead.jsonl"
    broken = '{"fiscal_code": "TSTXYZ00A00A000A", "amount": 1, "amount": 2}'
    file.write_text("\n".join([json.dumps(make_row("approved")), broken, "5", '{"fiscal_code": "TST']))
    done = run(served, "approve-many", file, "--dry-run", "--rejected", dead)
    assert done.returncode == 2
    assert [(each[OWN[0]], each["row"]) for each in read(dead)] == [
        (2, broken), (3, "5"), (4, '{"fiscal_code": "TST')
    ]  # fmt: skip


def test_rows_after_an_invalid_csv_row_are_sent(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(3)]
    create(served, rows)
    head, *lines = csv_text(rows).splitlines()
    file, dead, out = (tmp_path / name for name in ("rows.csv", "dead.csv", "out.jsonl"))
    more = f"{lines[1]};more"
    broken = lines[1].replace('"RM"', '"R"M')
    file.write_text("\n".join([head, lines[0], broken, more, lines[2], '"TST\nXYZ']), encoding="utf-8")
    done = run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", dead)
    assert f"{file}: line 3: invalid CSV" in done.stderr
    assert f"{file}: line 6: incomplete: the file ends inside a quoted cell" in done.stderr
    assert {line["line"] for line in read(out) if line["status"] == "approved"} == {2, 5}
    letters = dead.read_text(encoding="utf-8-sig").splitlines()[1:]
    assert [letter.split(";")[0] for letter in letters] == ["3", "4", "6"]
    assert letters[1].endswith(";more")


def test_rejected_rows_twice_keep_the_first_line_and_the_last_reason(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("approved", amount=1, city='Forlì "alto"; centro', id="7")]
    create(served, rows)
    file, out = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    file.write_text(csv_text([{"id": "", **row} for row in rows]), encoding="utf-8")
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", first)
    letters = first.read_text(encoding="utf-8-sig").replace(";RM;", ";rm;").replace(";1;", ";45000;")
    # Excel writes all cells anew, and a person moves the columns of the command to the end.
    cells = [row[2:] + row[:2] for row in csv.reader(letters.splitlines(), delimiter=";")]
    with first.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, delimiter=";").writerows(cells)
    run(served, "approve-many", first, "-o", out, "--skip-invalid", "--rejected", second)
    [letter] = csv.DictReader(second.read_text(encoding="utf-8-sig").splitlines(), delimiter=";")
    assert (letter.pop(OWN[0]), letter.pop(OWN[1])) == (
        "3",
        "province: must be two upper-case letters, such as RM",
    )
    assert letter == {name: str(value) for name, value in rows[1].items()} | {
        "amount": "45000",
        "province": "rm",
    }
    assert [(line["line"], line.get("id")) for line in read(out) if line["status"] == "rejected"][-1] == (
        3,
        "7",
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("text", ["my notes\n", "fiscal_code;amount\n"])
def test_rejected_rows_do_not_replace_another_file(
    tmp_path: Path, served: Sandbox, text: str, suffix: str
) -> None:
    file, dead = write(tmp_path / "rows.jsonl", [make_row("approved")]), tmp_path / f"notes.txt{suffix}"
    for found in (text.encode(), gzip.compress(text.encode()), gzip.compress(text.encode())[:-9]):
        dead.write_bytes(found)
        for options in (("-o", tmp_path / "out.jsonl"), ("--validate-only",)):
            done = run(served, "approve-many", file, *options, "--rejected", dead)
            assert (done.returncode, f"{dead} exists and contains no rejected rows" in done.stderr) == (
                2,
                True,
            )
            assert dead.read_bytes() == found
    assert {*tmp_path.iterdir()} == {file, dead}


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.jsonl"])
def test_rejected_rows_of_the_run_before_are_kept(tmp_path: Path, served: Sandbox, name: str) -> None:
    rows = [make_row("approved"), make_row("approved", amount=1)]
    create(served, rows)
    file, dead, old = tmp_path / name, tmp_path / f"dead-{name}", tmp_path / f"dead-{name}.old"
    if "csv" in name:
        text = csv_text(rows).encode()
        file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    else:
        write(file, rows)
    command = ("approve-many", file, "-o", tmp_path / "out.jsonl", "--skip-invalid", "--rejected", dead)
    run(served, *command)
    corrected = content(dead).replace(b'amount": 1,', b'amount": 9000,').replace(b";1;", b";9000;")
    dead.write_bytes(gzip.compress(corrected) if name.endswith(".gz") else corrected)
    written = dead.read_bytes()
    done = run(served, *command)
    assert f"the earlier {dead} is kept as {old}" in done.stderr
    assert old.read_bytes() == written
    assert content(dead) not in (b"", corrected)
    refused = run(served, "approve-many", old, *command[2:])
    assert (refused.returncode, old.read_bytes()) == (2, written)


def test_resume_writes_each_rejected_row_once(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("forbidden"), make_row("approved", amount=1), make_row("approved")]
    create(served, rows)
    file, dead = write(tmp_path / "rows.jsonl", rows), tmp_path / "dead.jsonl.gz"
    command = ("approve-many", file, "-o", tmp_path / "out.jsonl", "--skip-invalid", "--rejected", dead)
    for _ in range(3):
        assert run(served, *command).returncode == 1
    letters = [json.loads(line) for line in content(dead).splitlines()]
    assert [
        (letter[OWN[0]], letter[OWN[1]]) for letter in sorted(letters, key=lambda each: each[OWN[0]])
    ] == [
        (1, "AccessDeniedError: Access denied"),
        (2, "amount: must be a whole number between 5000 and 1500000 (euro cents)"),
    ]
