"""``approve-many --rejected``: a copy of failed rows that is corrected and passed as input again."""

import csv
import gzip
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.rows.parse import Table
from loanasync.cli.rows.source import Source
from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, statuses, write

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


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
@pytest.mark.parametrize(
    ("codec", "options"),
    [("utf-8", ()), ("utf-8-sig", ()), ("utf-16", ()), ("cp1252", ("--encoding", "cp1252"))],
)
def test_dead_letters_keep_encoding_mark_line_ends_and_quotes(
    tmp_path: Path, served: Sandbox, codec: str, options: tuple[str, ...], name: str
) -> None:
    rows = [make_row("approved", amount=amount, city="Forlì; centro") for amount in (45_000, 1, 45_000)]
    text = "sep=;\r\n" + csv_text(rows, "\r\n").removesuffix("\r\n")
    file, dead, out = tmp_path / name, tmp_path / f"dead-{name}", tmp_path / "out.jsonl"
    file.write_bytes(gzip.compress(text.encode(codec)) if name.endswith(".gz") else text.encode(codec))
    options = (*options, "-o", str(out), "--skip-invalid", "--rejected", str(dead))
    assert run(served, "approve-many", file, *options).returncode == 1, "no request is created yet"
    lines = text.splitlines()
    reason = "amount: must be a whole number between 5000 and 1500000 (euro cents)"
    expected = {f"4;{reason};{lines[3]}", *(f"{n};{NOT_CREATED};{lines[n - 1]}" for n in (3, 5))}
    raw = content(dead)
    mark = len("\ufeff".encode(codec)) if codec in ("utf-8-sig", "utf-16") else 0
    assert raw[:mark] == text.encode(codec)[:mark]
    begin, header, *letters, end = raw.decode(codec).split("\r\n")
    assert (begin, header, end) == ("sep=;", f"loanasync_line;loanasync_reason;{lines[1]}", "")
    assert set(letters) == expected

    create(served, rows)
    corrected = tmp_path / f"corrected-{name}"
    edited = raw.decode(codec).replace('"1"', '"45000"').encode(codec)
    corrected.write_bytes(gzip.compress(edited) if name.endswith(".gz") else edited)
    again = run(served, "approve-many", corrected, *options)
    assert again.returncode == 0, again.stderr
    assert {line["line"]: line["status"] for line in read(out)} == dict.fromkeys((3, 4, 5), "approved")
    assert {(call.request or {})["city"] for call in served.journal.calls(status=201) if call.evaluated} == {
        "Forlì; centro"
    }
    assert content(dead).decode(codec).splitlines() == [begin, header], "a run without failures empties them"
    assert run(served, "approve-many", corrected, *options).returncode == 0
    kept = dead.with_name(f"{dead.name}.old")
    written = kept.read_bytes()
    assert (gzip.decompress(written) if name.endswith(".gz") else written) == raw, "not replaced by a header"


def test_dead_letters_of_json_lines_keep_the_text_of_the_row(tmp_path: Path, served: Sandbox) -> None:
    good = make_row("approved")
    wrong = {**make_row("approved", amount=1), "extra": {"rate": 1.50}, "city": "Forl\u00ec"}
    text = json.dumps(wrong).replace("1.5", "1.50")
    broken = '{"fiscal_code": "TSTXYZ00A00A000A", "amount": 1, "amount": 2}'
    file, dead, out = (tmp_path / name for name in ("rows.jsonl", "dead.jsonl", "out.jsonl"))
    lines = [json.dumps(good), text, broken, "5", "{}", '{"fiscal_code": "TST']
    file.write_bytes("\r\n".join(lines).encode())
    options = ("--skip-invalid", "--rejected", dead, "-o", out)
    create(served, [good, wrong])
    assert run(served, "approve-many", file, *options).returncode == 1
    letters = dead.read_bytes().decode().split("\r\n")
    assert letters.pop() == ""
    reason = "amount: must be a whole number between 5000 and 1500000 (euro cents)"
    assert letters[0] == f'{{"loanasync_line": 2, "loanasync_reason": "{reason}", {text[1:]}'
    assert letters[1].endswith(f'a JSON member appears more than once", {broken[1:]}')
    assert letters[2] == "5"
    assert json.loads(letters[3]).keys() == {*OWN}
    assert letters[4].startswith('{"loanasync_line": 6, "loanasync_reason": "incomplete')
    assert letters[4].endswith('", "fiscal_code": "TST')

    # The same lines fail again, with the line of the first file and one reason each.
    again = tmp_path / "again.jsonl"
    done = run(served, "approve-many", dead, "--skip-invalid", "--rejected", again, "-o", out)
    assert done.returncode == 1, done.stderr
    assert again.read_bytes().splitlines()[:4] == dead.read_bytes().splitlines()[:4]
    moved = json.loads(letters[0])
    reason = moved.pop(OWN[1])
    write(dead, [{**moved, OWN[1]: reason}])  # as `jq -S` does
    run(served, "approve-many", dead, "--skip-invalid", "--rejected", again, "-o", out)
    assert json.loads(again.read_text(encoding="utf-8")) == json.loads(letters[0])
    assert again.read_text(encoding="utf-8").count(OWN[1]) == 1
    again.write_text(again.read_text(encoding="utf-8").splitlines()[0].replace(": 1,", ": 45000,"))
    assert run(served, "approve-many", again, "-o", out).returncode == 0
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in (good, wrong)}


def test_dead_letters_twice_keep_the_first_line_and_the_last_reason(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("approved", amount=1, city='Forlì "alto"; centro', id="7")]
    create(served, rows)
    file, out = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    file.write_text(csv_text([{"id": "", **row} for row in rows]), encoding="utf-8")
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", first)
    letters = first.read_text(encoding="utf-8").replace('"RM"', '"rm"').replace(';"1";', ';"45000";')
    # Excel writes all cells anew, and a person moves the columns of the command to the end.
    cells = [row[2:] + row[:2] for row in csv.reader(letters.splitlines(), delimiter=";")]
    with first.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, delimiter=";").writerows(cells)
    run(served, "approve-many", first, "-o", out, "--skip-invalid", "--rejected", second)
    [letter] = csv.DictReader(second.read_text(encoding="utf-8").splitlines(), delimiter=";")
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


def test_rows_after_an_invalid_csv_row_are_read(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(3)]
    create(served, rows)
    head, *lines = csv_text(rows).splitlines()
    file, dead, out = (tmp_path / name for name in ("rows.csv", "dead.csv", "out.jsonl"))
    broken = lines[1].replace('"RM"', '"R"M')
    incomplete = '"TST\nXYZ'
    file.write_text("\n".join([head, lines[0], broken, lines[2], incomplete]), encoding="utf-8")
    done = run(served, "approve-many", file, "-o", out, "--skip-invalid", "--rejected", dead)
    assert f"{file}: line 3: invalid CSV" in done.stderr
    assert f"{file}: line 5: incomplete: the file ends inside a quoted cell" in done.stderr
    assert {line["line"] for line in read(out) if line["status"] == "approved"} == {2, 4}
    assert dead.read_text(encoding="utf-8").splitlines()[1:] == [
        f"3;invalid CSV;{broken}",
        f"5;incomplete: the file ends inside a quoted cell;{incomplete.splitlines()[0]}",
        incomplete.splitlines()[1],
    ]
    text = dead.read_text(encoding="utf-8").replace('"R"M', '"RM"').partition("5;")[0]
    dead.write_text(text, encoding="utf-8")
    assert run(served, "approve-many", dead, "-o", out).returncode == 0
    assert set(statuses(out).values()) == {"approved"}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("text", ["my notes\n", "fiscal_code;amount\n"])
def test_dead_letters_do_not_replace_another_file(
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
def test_dead_letters_of_the_run_before_are_kept(tmp_path: Path, served: Sandbox, name: str) -> None:
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
    corrected = content(dead).replace(b'amount": 1,', b'amount": 9000,').replace(b'"1"', b'"9000"')
    dead.write_bytes(gzip.compress(corrected) if name.endswith(".gz") else corrected)
    written = dead.read_bytes()
    done = run(served, *command)
    assert f"the earlier {dead} is kept as {old}" in done.stderr
    assert old.read_bytes() == written
    assert content(dead) not in (b"", corrected)
    refused = run(served, "approve-many", old, *command[2:])
    assert (refused.returncode, old.read_bytes()) == (2, written)


def test_resume_writes_each_dead_letter_once(tmp_path: Path, served: Sandbox) -> None:
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


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{"loanasync_line": 5.0, "a": 1.50}', '{OWN, "a": 1.50}'),  # as pandas writes it
        ('{"a": 1, "loanasync_line": 5.0}', '{OWN, "a": 1}'),
        ('{"loanasync_line": [5], "a": 1}', '{OWN, "a": 1}'),
        ('{"\\u006coanasync_line": 5, "a": 1}', '{OWN, "a": 1}'),
        ('{"loanasync_line": 5, "a": {"loanasync_line": 3}}', '{OWN, "a": {"loanasync_line": 3}}'),
        (
            '{"a": {"loanasync_line": 3, "b": 2}, "loanasync_line": 5}',
            '{OWN, "a": {"loanasync_line": 3, "b": 2}}',
        ),
        ('{"a": {"loanasync_line": 3, "b": 2}}', '{OWN, "a": {"loanasync_line": 3, "b": 2}}'),
        ('{"a": "\\"loanasync_line\\": 3"}', '{OWN, "a": "\\"loanasync_line\\": 3"}'),
        ('{"loanasync_reason": "x\\u0022", "loanasync_line": 5}', "{OWN}"),
        (
            '{"loanasync_line": 5, "a": {"loanasync_line": 3}, "a": 1}',
            '{OWN, "a": {"loanasync_line": 3}, "a": 1}',
        ),
    ],
)
def test_dead_letter_of_a_json_row_keeps_all_other_members(tmp_path: Path, row: str, expected: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(row + "\n", encoding="utf-8")
    with closing(Source(str(file))) as source:
        table = Table(source)
        [parsed] = table.rows()
        letter = table.dead_letter(parsed, "why")
    line = 5 if json.loads(row).get("loanasync_line") in (5, 5.0) else 1
    own = f'"loanasync_line": {line}, "loanasync_reason": "why"'
    assert json.loads(letter) == {**json.loads(row), OWN[0]: line, OWN[1]: "why"}
    assert letter == expected.replace("OWN", own) + "\n"


def test_dead_letter_with_an_open_quote_is_the_last(tmp_path: Path, served: Sandbox) -> None:
    """Its cell contains all lines that follow."""
    rows = [make_row("forbidden+slow300"), make_row("x", amount=1)]
    create(served, rows[:1])
    file, dead = tmp_path / "rows.csv", tmp_path / "dead.csv"
    file.write_text(csv_text(rows) + '"TST\n', encoding="utf-8")
    options = ("-o", tmp_path / "out.jsonl", "--skip-invalid", "--rejected", dead)
    assert run(served, "approve-many", file, *options).returncode == 1
    letters = dead.read_text(encoding="utf-8").splitlines()[1:]
    assert [letter.partition(";")[0] for letter in letters] == ["2", "3", "4"]


def test_rejected_rows_are_also_written_without_sending(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("forbidden"), make_row("approved", amount=1), make_row("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    checked, exported = tmp_path / "checked.jsonl", tmp_path / "exported.jsonl"
    assert run(None, "approve-many", file, "--validate-only", "--rejected", checked).returncode == 2
    assert [row[OWN[0]] for row in read(checked)] == [2]
    assert run(served, "approve-many", file, "-o", out, "--skip-invalid").returncode == 1
    for _ in range(2):
        assert run(None, "export", f"{out}.ledger", "--rejected", exported).returncode == 0
        assert [row[OWN[0]] for row in read(exported)] == [1, 2]
    assert read(exported.with_name("exported.jsonl.old")) == read(exported)
