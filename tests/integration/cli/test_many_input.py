"""Input files of ``approve-many``: formats, encodings, conversion, and one message for each problem."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loanasync.cli.app import app
from loanasync.sandbox import Sandbox
from support.cli import PLAIN, create, make_row, read, run, write

HEAD = (
    "fiscal_code,amount,instalments,email,last_name,first_name,mobile_phone,city,address,province,postal_code"
)
HEAD += ",street_number,citizenship"
LINE = "TSTXYZ00A00A000A,45000,12,anna@example.com,Prova,Anna,3330000000,Roma,Via Prova,RM,00100,12/A,italian"


def check(tmp_path: Path, content: str | bytes, *options: str) -> tuple[int, list[str]]:
    """Return the exit code and the messages for a file with a content."""
    file = tmp_path / "rows"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = CliRunner(env=PLAIN).invoke(app, ["approve-many", str(file), "--validate-only", *options])
    assert done.stdout == ""
    return done.exit_code, [line.removeprefix(f"{file}: ") for line in done.stderr.splitlines()]


def test_invalid_rows_are_all_reported_and_nothing_is_sent(tmp_path: Path, served: Sandbox) -> None:
    good = make_row("approved")
    rows: list[Any] = [
        good,
        make_row("approved", amount=450, province="rm"),
        make_row("approved", postal_code=100, first_name=None),
        make_row("approved", zero_interest_rate="perhaps", amount="450,00"),
        make_row("approved", nmae="Anna"),
        {**good, "amount": 90_000},
        make_row("approved", additional_data_needed=True),
        make_row("approved", additional={"children": "2"}, additional_data_needed=True, fiscal_code="RSSMRA"),
        make_row("approved", extra={"new": 1.5}),
        5,
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    with file.open("a", encoding="utf-8") as more:
        more.write('{"amount": 1, "amount": 2}\n\n{"fiscal_code": "TSTXYZ00')
    done = run(served, "approve-many", file, "-o", tmp_path / "out.jsonl")
    assert done.returncode == 2
    output = [line.removeprefix(f"{file}: ") for line in done.stderr.splitlines()]
    for expected in (
        "line 2: amount: must be a whole number between 5000 and 1500000 (euro cents)",
        "line 2: province: must be two upper-case letters, such as RM",
        "line 3: first_name: is required",
        "line 4: zero_interest_rate: must be true or false",
        "line 4: amount: must be whole euro cents, digits only; if the amounts are in euro",
        "line 6: fiscal_code: duplicate of line 1: each customer may appear only once",
        "2 × salary: is required; the service asked for additional data (lines 7 and 8)",
        "line 8: fiscal_code: must be 16 letters and digits",
        "line 10: must be a JSON object",
        "line 11: a JSON member appears more than once",
        "line 13: incomplete: the file ends in the middle of this row",
        "nothing was sent: correct these rows, or add --skip-invalid",
    ):
        assert any(line.startswith(expected) for line in output), (expected, output)
    assert any(line.startswith("line 3: postal_code: ") and "leading zeros" in line for line in output)
    assert any(line.startswith("line 5: nmae: unknown member") for line in output)
    assert not any(line.startswith(("line 1:", "line 1,", "line 9")) for line in output)
    assert served.journal.calls() == []
    assert not (tmp_path / "out.jsonl").exists()
    assert good["fiscal_code"] not in done.stderr
    assert "Prova" not in done.stderr


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_with_any_line_ends_byte_order_mark_and_quotes_is_read(
    tmp_path: Path, line_end: str, mark: str
) -> None:
    lines = [HEAD, LINE, "", LINE.replace("00A000A", "00A000B").replace("Roma", '"San Donà, ""alto"""'), ""]
    assert check(tmp_path, mark + line_end.join(lines)) == (0, ["2 rows: 2 valid, 0 invalid"])


def test_csv_of_excel_with_semicolons_and_decimal_commas_is_read(tmp_path: Path) -> None:
    head, line = HEAD.replace(",", ";"), LINE.replace(",", ";").replace("45000", "1.250,50")
    for first in ("", "sep=;\r\n"):
        text = f"{first}{head}\r\n{line}\r\n"
        assert check(tmp_path, text, "--euro") == (0, ["1 row: 1 valid, 0 invalid"])
        code, output = check(tmp_path, text)
        assert code == 2
        assert output[0].endswith("if the amounts are in euro, add --euro")
        assert output[0].startswith("line 3," if first else "line 2,")
    text = text.replace("Roma", "Forlì")
    assert check(tmp_path, text.encode("utf-16"), "--euro")[0] == 0, "Excel's format Unicode text"
    code, output = check(tmp_path, text.encode("cp1252"), "--euro")
    assert code == 2
    assert (
        "not valid UTF-8 from about this line on; save the file as UTF-8, or name its encoding" in output[0]
    )
    assert check(tmp_path, text.encode("cp1252"), "--euro", "--encoding", "cp1252")[0] == 0


@pytest.mark.parametrize(
    ("written", "cents"),
    [
        *(("450", 45_000), ("450,5", 45_050), ("450.50", 45_050), ("1.250,00", 125_000)),
        *(("1,250.00", 125_000), ("1250,00", 125_000), (450, 45_000), (450.1, 45_010)),
    ],
)
def test_euro_option_converts_amounts_to_cents(
    tmp_path: Path, served: Sandbox, written: object, cents: int
) -> None:
    row = make_row("approved", amount=written)
    create(served, [row])
    file, out = write(tmp_path / "rows.jsonl", [row]), tmp_path / "out.jsonl"
    assert run(served, "approve-many", file, "-o", out, "--euro").returncode == 0
    assert [result["amount"] for result in read(out)] == [cents]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        *(
            ("1.250", "ambiguous: the separator"),
            ("1,250", "ambiguous: the separator"),
        ),
        *(
            (written, "must be an amount in euro")
            for written in ("450,5055", "-450", "450 €", "1.250.00", 450.123)
        ),
        ("4,5", "must be a whole number between 5000 and 1500000 (euro cents)"),
        (True, "must be a whole number between 5000 and 1500000 (euro cents); use an int, not bool"),
    ],
)
def test_ambiguous_or_invalid_amount_is_a_problem(tmp_path: Path, written: object, message: str) -> None:
    code, lines = check(tmp_path, json.dumps(make_row("approved", amount=written)), "--euro")
    assert code == 2
    assert lines[0].startswith(f"line 1: amount: {message}")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(
            (
                "instalments",
                "12.0",
                "must be a whole number, digits only; format the column without decimals",
            ),
            (
                "instalments",
                "12,00",
                "must be a whole number, digits only; format the column without decimals",
            ),
            ("instalments", "dodici", "must be a whole number, digits only"),
            ("mobile_phone", "3,33E+09", "mobile_phone: a spreadsheet has shortened this number"),
            ("amount", "4,5E+02", "amount: a spreadsheet has shortened this number"),
            ("instalments", 12.5, "must be a whole number between 3 and 60; use an int, not float"),
        ),
        *(
            ("residence_start_date", "31/02/2019", "must be a date, such as"),
            ("residence_start_date", "45231", "is a spreadsheet's number for a date; format the column as a"),
            ("residence_start_date", 5, "must be a"),
        ),
        *(("zero_interest_rate", 1, "must be"), ("additional", 5, "must be an object")),
        ("firstname", "Bruna", "appears twice, under two names"),
        (
            "additional",
            {"amount": 99_000},
            "amount: appears twice: in the row and in its member",
        ),
    ],
)
def test_value_of_a_wrong_type_is_a_problem(tmp_path: Path, field: str, value: object, message: str) -> None:
    code, lines = check(tmp_path, json.dumps(make_row("approved", **{field: value})))
    assert code == 2
    assert any(message in line for line in lines), lines


def test_csv_header_with_an_open_quote_is_refused(tmp_path: Path) -> None:
    code, [message] = check(tmp_path, f'"{HEAD}\n{LINE}\n')
    assert code == 2
    assert message.endswith("the first line is not a CSV header; write the column names in it")


def test_columns_may_have_our_names_the_specs_names_or_mapped_names(tmp_path: Path) -> None:
    head = "Fiscal Code,amount,installments,e-mail,lastname,firstname,mobilePhone,city,address,province,ZIP"
    text = f"{head},civicNumber,citizenship\n{LINE}\n"
    code, output = check(tmp_path, text)
    assert (code, len(output)) == (2, 2)
    assert output[0].startswith(
        "line 1, column 'ZIP': unknown column. Map it: --column FIELD=ZIP, or skip unknown columns"
    )
    assert output[1] == (
        "line 1: postal_code: no column for this field; if it has another name, add --column postal_code=NAME"
    )
    assert check(tmp_path, text, "--column", "postal_code=ZIP")[0] == 0
    assert check(tmp_path, text, "--column", "postal_code=ZIP", "--column", "city=address")[1][0] == (
        "line 1, column 'city': not used, because --column city=address maps city to 'address';"
        " remove one of the two, or add --ignore-unknown to skip unknown columns"
    )
    assert check(tmp_path, text, "--column", "postal_code=ZIP", "--column", "iban=IBAN") == (
        *(2, ["line 1: --column iban=IBAN: there is no column 'IBAN'"]),
    )
    assert check(tmp_path, f"{HEAD},note\n{LINE},soon\n", "--ignore-unknown")[0] == 0
    assert check(tmp_path, f"{HEAD},city\n{LINE},Roma\n")[1] == [
        "line 1, column 'city': appears more than once"
    ]


def test_problems_of_columns_and_of_rows_are_reported_together(tmp_path: Path) -> None:
    head = HEAD.replace("postal_code", "ZIP") + ",note"
    wrong = LINE.replace("45000", "1").replace("00A000A", "00A000B")
    code, output = check(tmp_path, f"{head}\n{LINE},soon\n{wrong},late\n{LINE}\n")
    assert code == 2
    assert [line.partition(";")[0].partition(". ")[0] for line in output] == [
        "line 1, column 'ZIP': unknown column",
        "line 1, column 'note': unknown column",
        "line 1: postal_code: no column for this field",
        "line 3, column 'amount': amount: must be a whole number between 5000 and 1500000 (euro cents)",
        "line 4: has 13 cells, but the header has 14",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            f"{HEAD}\n{LINE}\nTSTXYZ00A00A000B,450",
            "line 3: incomplete: the file ends in the middle",
        ),
        (f'{HEAD}\n{LINE}\nTSTXYZ00A00A000B,"450', "line 3: incomplete: the file ends inside a quoted cell"),
        (f"{HEAD}\nTSTXYZ00A00A000B,450\n{LINE}\n", "line 2: has 2 cells, but the header has 13"),
        (f"{HEAD}\n{LINE}\n\0\n", "line 3: contains NUL bytes; this is not a text file"),
        ('{"a": 1}\n{"b": nope}\n', "line 2: invalid JSON at character 7"),
        ("[{}]", "contains a JSON array; write one object per line"),
        (b"PK\x03\x04\x14\x00", "this is a workbook (.xlsx, .ods) or another zip file, not text; open it in"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "this is an Excel workbook (.xls), not text; open it in"),
        (b"PAR1\x15\x04", "this is a Parquet file, not text; open it in"),
        ("", "contains no rows"),
        ("\n \n", "contains no rows"),
        (gzip.compress(f"{HEAD}\n{LINE}\n".encode())[:-9], "the gzip data is incomplete or damaged"),
        (b"{" + b" " * 1_000_000, "line 1: longer than 1,000,000 characters"),
        (f"{HEAD}\n", "0 rows: 0 valid, 0 invalid"),
    ],
)
def test_incomplete_or_invalid_file_is_reported(tmp_path: Path, content: str | bytes, message: str) -> None:
    code, lines = check(tmp_path, content)
    assert code == 2
    assert any(message in line for line in lines), lines


def test_missing_file_or_directory_prints_one_line(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a directory"), (tmp_path / "none", "file not found")):
        done = run(None, "approve-many", path, "-o", tmp_path / "out")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert message in done.stderr


def test_rows_from_a_pipe_or_gzip_file(tmp_path: Path) -> None:
    text = f"{HEAD}\n{LINE}\n".encode()
    for content in (text, gzip.compress(text), gzip.compress(text[:50]) + gzip.compress(text[50:])):
        piped = CliRunner(env=PLAIN).invoke(app, ["approve-many", "-", "--validate-only"], input=content)
        assert (piped.exit_code, piped.stderr) == (0, "1 row: 1 valid, 0 invalid\n")
        assert check(tmp_path, content)[0] == 0
    done = run(None, "approve-many", "-", "--validate-only", stdin=content)
    assert done.returncode == 0


def test_validate_only_needs_no_service_and_no_credentials(
    tmp_path: Path,
) -> None:
    text = io.StringIO()
    for _ in range(300):
        text.write(json.dumps(make_row("approved")) + "\n")
    assert check(tmp_path, text.getvalue()) == (0, ["300 rows: 300 valid, 0 invalid"])


@pytest.mark.parametrize("value", ["2019-05-31", "31/05/2019", "05/2019", "5/2019"])
def test_conditional_block_can_be_columns_or_a_nested_object(tmp_path: Path, value: str) -> None:
    more = {
        "residence": "rent",
        "residence_start_date": value,
        "educational_qualification": "diploma",
        "children": "2",
        "salary_type": "net-monthly",
        "salary": "1600",
        "additional_data_needed": "sì",
    }
    text = f"{HEAD},{','.join(more)}\n{LINE},{','.join(more.values())}\n"
    assert check(tmp_path, text)[0] == 0
    nested = make_row("approved", additional={**more, "salary": 1600}, additional_data_needed=True)
    del nested["additional"]["additional_data_needed"]
    assert check(tmp_path, json.dumps(nested))[0] == 0
    assert "must be a date" in check(tmp_path, text.replace(value, "31.5.19"))[1][0]


def test_conditional_block_may_be_incomplete_unless_it_is_needed(tmp_path: Path) -> None:
    text = f"{HEAD},children,salary\n{LINE},2,\n"
    assert check(tmp_path, text)[0] == 0
    needed = check(tmp_path, f"{HEAD},children,additional_data_needed\n{LINE},2,yes\n")
    assert needed[0] == 2
    assert not any("children" in line for line in needed[1])
    assert any("salary: is required" in line for line in needed[1])


def test_invalid_options_are_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [make_row("approved")])
    for options, expected in (
        (("--column", "amount"), "must be FIELD=NAME"),
        (("--column", "amout=Importo"), "unknown field 'amout'; the fields are "),
        ((), "name the results file"),
        (("-o", "out", "--concurrency", "0"), "concurrency"),
        (("-o", "out"), "LOANASYNC_BASE_URL"),
    ):
        invoked = CliRunner(env=PLAIN).invoke(app, ["approve-many", str(file), *options])
        assert (invoked.exit_code, expected in invoked.stderr) == (2, True), (options, invoked.stderr)
    for more, expected in (
        (["-o", tmp_path / "out", "--rate", "0"], "must be a number of calls per second greater than 0"),
        (["-o", tmp_path / "no" / "out"], "no does not exist"),
    ):
        done = run(None, "approve-many", file, "--sandbox", *more)
        assert (done.returncode, expected in done.stderr) == (2, True), (more, done.stderr)
