"""`read`: the rows of a CSV file or of JSON lines, with their problems."""

import asyncio
import gzip
import io
import json
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loanasync import InvalidRequestError
from loanasync.bulk import FileRow, InputError, RowResult, read
from loanasync.testing import approved, scripted_client

HEADER = "Codice Fiscale;Importo;Rate;Nome;Cognome;Cellulare;CAP;Comune;Provincia;Indirizzo;Civico"
HEADER += ";Cittadinanza;Email"
CELLS = (
    "TSTXYZ00A00A000A;450,00;12;Anna;Prova;3330000000;00100;Forlì;RM;Via Prova;12/A;Italiana;anna@example.com"
)


def order(**changed: object) -> dict[str, Any]:
    """Return the members of a row. A member that is changed to `...` is left out."""
    row = {
        "fiscal_code": "TSTXYZ00A00A000A", "amount": 45000, "instalments": 12, "email": "anna@example.com",
        "first_name": "Anna", "last_name": "Prova", "mobile_phone": "3330000000", "city": "Roma",
        "address": "Via Prova", "province": "RM", "postal_code": "00100", "street_number": "12/A",
        "citizenship": "italian",
    }  # fmt: skip
    return {name: value for name, value in (row | changed).items() if value is not ...}


class InputFile:
    """Writes one input file, and reads it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows"

    def rows(self, content: str | bytes, **options: Any) -> list[FileRow]:
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read(self.path, **options))

    def row(self, options: dict[str, Any] | None = None, /, **changed: Any) -> FileRow:
        """Return the row of a file of JSON lines."""
        (row,) = self.rows(json.dumps(order(**changed), default=str), **(options or {}))
        return row

    def error(self, content: str | bytes, **options: Any) -> list[str]:
        """Return the lines of the error, without the path."""
        with pytest.raises(InputError) as raised:
            self.rows(content, **options)
        return [line.removeprefix(f"{self.path}: ") for line in str(raised.value).splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> InputFile:
    return InputFile(tmp_path)


def texts(row: FileRow) -> list[str]:
    """Return the problems of a row without the name of the file."""
    return [str(each).partition(": ")[2] for each in row.problems]


def csv(header: str = HEADER, *rows: str) -> str:
    return "".join(f"{line}\n" for line in (header, *(rows or (CELLS,))))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_read_takes_a_byte_order_mark_and_any_line_end(file: InputFile, encoding: str, line_end: str) -> None:
    text = csv().replace("450", "€ 450").replace("\n", line_end)
    for options in ({}, {"encoding": "cp1252"} if encoding == "utf-8-sig" else {}):
        (row,) = file.rows(text.encode(encoding), **options)
        assert (row.request.city, row.request.amount, row.line, row.problems) == ("Forlì", 45_000, 2, ())


@pytest.mark.parametrize("delimiter", [",", "\t", "|"])
def test_read_finds_the_delimiter_in_the_header(file: InputFile, delimiter: str) -> None:
    text = csv().replace("450,00", "450.00").replace(";", delimiter)
    assert file.rows(text, euro=True)[0].problems == ()


def test_read_guesses_no_encoding(file: InputFile) -> None:
    content = csv(HEADER, CELLS.replace("Forlì", "Roma"), CELLS).encode("cp1252")
    (message,) = file.error(content, euro=True)
    assert message == (
        "line 3: not valid UTF-8 from this line on; save the whole file as UTF-8, or name its encoding: "
        "--encoding cp1252"
    )
    assert file.rows(content, euro=True, encoding="cp1252")[1].request.city == "Forlì"
    assert file.rows(csv().encode("utf-16"), euro=True, encoding="utf-16")[0].request.city == "Forlì"
    assert "unknown text encoding 'x-1'" in file.error(content, encoding="x-1")[0]


def test_line_in_another_encoding_than_the_file_is_a_problem(file: InputFile) -> None:
    lines = csv(HEADER, CELLS, CELLS.replace("A;", "B;", 1)).splitlines(keepends=True)
    content = b"".join((lines[0].encode(), lines[1].encode("cp1252"), lines[2].encode()))
    first, second = file.rows(content, euro=True, encoding="cp1252")
    assert first.problems == ()
    assert texts(second)[0].startswith("line 3, column 'Comune': city: this text has another encoding than")


def test_json_lines_may_begin_with_spaces_and_have_zeros(file: InputFile) -> None:
    (row,) = file.rows(f"\n  {json.dumps(order(instalments=0))}\n")
    assert texts(row) == ["line 2: instalments: must be a whole number between 3 and 60"]


def test_read_takes_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(csv().encode())))
    assert [row.line for row in read("-", euro=True)] == [2]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "contains no rows"),
        ("\n \n", "contains no rows"),
        ('[{"a": 1}]', "contains a JSON array; write one object per line"),
        (b"PK\x03\x04abc", "this is a workbook (.xlsx, .ods)"),
        (gzip.compress(b"CF;Nome", mtime=0), "this is a compressed file (.gz)"),
        (b"CF;Nome\nA\x00;b\n", "line 2: contains NUL bytes"),
        ('CF;"Nome\n', "the first line is not a CSV header"),
        ("Anna;Prova\n", "line 1: no column name is known"),
        ("sep=;\nCF;Nome\n", "line 1: no column name is known"),
        ("CF;3330000000\n", "line 1: this is not a header"),
        ("CF;TSTXYZ00A00A000A\n", "line 1: this is not a header"),
        ("CF;anna@example.com\n", "line 1: this is not a header"),
    ],
)
def test_read_refuses_what_is_no_file_of_rows(file: InputFile, content: str | bytes, expected: str) -> None:
    (message,) = file.error(content)
    assert message.startswith(expected)


@pytest.mark.parametrize(("name", "message"), [("missing", "file not found"), (".", "this is a directory")])
def test_read_refuses_missing_file_and_directory(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


ENGLISH = "Tax code;amount;Installments;First name;Surname;Mobile;ZIP code;Town;province;Street;House number"
ENGLISH += ";citizenship;E-mail"


@pytest.mark.parametrize(
    "header", [HEADER, HEADER.lower(), HEADER.upper(), HEADER.replace(" ", "_"), ENGLISH]
)
def test_header_is_recognised_in_any_spelling(file: InputFile, header: str) -> None:
    assert file.rows(csv(header), euro=True)[0].problems == ()


def test_header_error_has_the_problems_of_header_and_rows(file: InputFile) -> None:
    rows = [CELLS.replace("RM", "Roma").replace("A;", f"{letter};", 1) for letter in "ABCDEFGHIJ" * 3]
    found = file.error(
        csv(HEADER.replace("Comune", "Posto") + ";Nome", *(f"{row};x" for row in rows)), euro=True
    )
    assert found[:4] == [
        "line 1, column 'Nome': appears more than once",
        "line 1, column 'Posto': unknown column; give it the name of a field, remove it, or ignore it",
        "line 1: city: no column for this field; add one, or rename the column that has it",
        "line 2, column 'Provincia': province: must be two upper-case letters, such as RM",
    ]
    assert found[-1].startswith("and ")


def test_columns_with_other_names_are_stated_or_ignored(file: InputFile) -> None:
    text = csv(HEADER.replace("Rate", "Mesi") + ";Bolla", f"{CELLS};17")
    assert len(file.error(text, euro=True)) == 3
    (row,) = file.rows(text, euro=True, columns={"instalments": "Mesi"}, ignore=["Bolla"])
    assert (row.request.instalments, row.problems, row.members["Bolla"]) == (12, (), "17")
    row = file.row(
        {"columns": {"instalments": "Mesi"}, "ignore": ["Bolla"]}, instalments=..., Mesi=12, Bolla=7
    )
    assert (row.request.instalments, row.problems) == (12, ())


def test_two_columns_of_one_field_are_refused(file: InputFile) -> None:
    (message,) = file.error(csv(f"{HEADER};Città", f"{CELLS};Roma"), euro=True)
    assert message == "line 1: city: columns 'Comune' and 'Città' have names of this field; remove one"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"columns": []}, "columns must be a table"),
        ({"columns": {"name": "x"}}, "columns: unknown field name; the fields are additional_data_needed"),
        ({"columns": {"amount": 1}}, "columns: amount must be the name of a column"),
        ({"columns": {"amount": "x", "id": "x"}}, "columns: 'x' is named for two fields"),
        ({"ignore": "Note"}, "ignore must be a list of names"),
        ({"ignore": 5}, "ignore must be a list of names"),
    ],
)
def test_wrong_argument_is_refused(file: InputFile, options: dict[str, Any], expected: str) -> None:
    (message,) = file.error(csv(), **options)
    assert message.startswith(expected)


def test_required_field_needs_a_column_and_a_value(file: InputFile) -> None:
    missing = "no column for this field; add one, or rename the column that has it"
    assert file.error(csv(), euro=True, required=["id"]) == [f"line 1: id: {missing}"]
    rows = file.rows(
        csv(f"{HEADER};id", f"{CELLS}; 7 ", f"{CELLS.replace('A;', 'B;', 1)};"), euro=True, required=["id"]
    )
    assert [(row.id, texts(row)) for row in rows] == [
        ("7", []),
        (None, ["line 3, column 'id': id: is required"]),
    ]
    assert texts(file.row({"required": ["id"]})) == ["line 1: id: is required"]


@pytest.mark.parametrize(
    ("written", "cents"),
    [("450", 45000), ("450 EUR", 45000), ("450,5", 45050), ("1.450,00", 145000), ("1,450.00", 145000),
     (450.5, 45050), ("64,35", 6435), ("€ 1.450,00", 145000), ("1.450,00 €", 145000),
     ("1\xa0450,00", 145000)],
)  # fmt: skip
def test_amount_in_euro_becomes_cents(file: InputFile, written: object, cents: int) -> None:
    assert file.row({"euro": True}, amount=written).request.amount == cents
    if "€" in str(written):
        assert file.row(amount=written).request.amount == cents


@pytest.mark.parametrize(
    ("options", "written", "expected"),
    [
        ({"euro": True}, "1.450", "ambiguous: the separator may mean thousands or decimals"),
        ({"euro": True}, "€ 1.450", "ambiguous: the separator may mean thousands or decimals"),
        ({"euro": True}, "$ 450", "must be an amount in euro"),
        ({"euro": True}, True, "must be a whole number"),
        ({}, "450,00", "must be whole euro cents, digits only; for euro write € 450,50"),
        ({}, 450.0, "must be whole euro cents"),
        ({}, "4,5E+04", "a spreadsheet has shortened this number"),
        ({}, float("nan"), "a data frame has written a missing value"),
    ],
)
def test_unclear_amount_is_a_problem(
    file: InputFile, options: dict[str, Any], written: object, expected: str
) -> None:
    (problem,) = texts(file.row(options, amount=written))
    assert problem.startswith(f"line 1: amount: {expected}")


@pytest.mark.parametrize(("name", "messages"), [("Importo €", 1), ("EUR", 1), ("euro cent", 0)])
def test_column_that_names_euro_needs_amounts_in_euro(file: InputFile, name: str, messages: int) -> None:
    columns = {"columns": {"amount": name}}
    header = HEADER.replace("Importo", name)
    message = f"member {name!r} names euro, but amounts are read as euro cents"
    found = texts(file.row(columns, amount=..., **{name: "45000"}))
    assert sum(message in text for text in found) == messages
    if messages:
        assert " names euro, but " in file.error(csv(header), **columns)[0]
    assert file.rows(csv(header), **columns, euro=True)[0].problems == ()


SHORTENED, DECIMALS = (
    "a spreadsheet has shortened this number",
    "a spreadsheet or data frame has added decimals",
)
MISSING, FORMULA = (
    "a data frame has written a missing value as text",
    "a spreadsheet has written the error of a",
)
NARROW, EQUALS, LETTERS = "the column of the spreadsheet was too", "this is a formula", "letters were lost"
# Texts that a spreadsheet or a data frame writes in place of a value.
SPOILED = {
    "3,33E+09": SHORTENED, "3.33e+09": SHORTENED,
    "3330000000.0": DECIMALS, "100,00": DECIMALS,
    **dict.fromkeys(("nan", "NaN", "NaT", "None", "null", "NULL", "<NA>", "N/A"), MISSING),
    **dict.fromkeys(("#N/A", "#N/D", "#REF!", "#RIF!", "#VALUE!", "#VALORE!", "#NAME?", "#DIV/0!"), FORMULA),
    "########": NARROW,
    '="333"': EQUALS, "=A1&B1": EQUALS,
    "Forl\ufffd": LETTERS,
    "ForlÃ¬": "this text has another encoding than the rest",
}  # fmt: skip


@pytest.mark.parametrize("field", ["mobile_phone", "city", "order_id"])
@pytest.mark.parametrize(("written", "expected"), SPOILED.items())
def test_spoiled_value_is_a_problem(file: InputFile, field: str, written: str, expected: str) -> None:
    (problem,) = texts(file.row(**{field: written}))
    assert problem.startswith(f"line 1: {field}: {expected}")


@pytest.mark.parametrize(
    "written", ["NA", "Nan", "Null", "12/A", "12E05", "Forlì", "Città «È»", "3330000000"]
)
def test_value_that_only_resembles_a_spoiled_one_is_read(file: InputFile, written: str) -> None:
    field = "province" if written == "NA" else "street_number"
    assert file.row(**{field: written}).problems == ()
    assert file.row(id=f"{written}.0").problems == (), "an id is not sent"


@pytest.mark.parametrize(
    ("field", "written", "value"),
    [
        ("instalments", "24", 24),
        ("payment_day_of_month", "5", 5),
        ("zero_interest_rate", "sì", True),
        ("zero_interest_rate", "No", False),
        ("citizenship", "ITALIANA", "italian"),
        ("citizenship", "extra-UE", "outside_eu"),
        ("citizenship", "Outside EU", "outside_eu"),
        ("iban", "", None),
    ],
)
def test_cell_becomes_value_of_field(file: InputFile, field: str, written: str, value: object) -> None:
    row = file.row(**{field: written})
    assert (getattr(row.request, field), row.problems) == (value, ())


@pytest.mark.parametrize("block", ["flat", "nested"])
def test_additional_data_may_be_columns_or_an_object(file: InputFile, block: str) -> None:
    data = {
        "residence": "In affitto", "residence_start_date": "05/2019", "educational_qualification": "Laurea",
        "children": "2", "salary_type": "netto mensile", "salary": "1600",
    }  # fmt: skip
    row = file.row(additional_data_needed="yes", **(data if block == "flat" else {"additional": data}))
    assert (row.additional_data_needed, row.problems) == (True, ())
    additional = row.request.additional
    assert additional is not None
    assert (additional.residence, additional.residence_start_date) == ("rent", date(2019, 5, 1))
    assert (additional.salary_type, additional.salary) == ("net-monthly", 1600)


@pytest.mark.parametrize(
    ("field", "written", "expected"),
    [
        ("instalments", "12.5", "must be a whole number, digits only"),
        ("mobile_phone", 3330000000, "must be text"),
        ("zero_interest_rate", "maybe", "must be true or false"),
        ("residence_start_date", "31/02/2019", "must be a date, such as 2019-05-31"),
        ("residence_start_date", "43586", "is a spreadsheet's number for a date"),
        ("amount", "€ 1.450.00", "must be an amount in euro with at most two decimals"),
        ("order_id", 7, "must be text"),
        ("additional", 7, "must be an object"),
        ("citizenship", "Marte", "must be one of italian, eu, outside_eu, Italian"),
        ("province", "rm", "must be two upper-case letters"),
        ("fiscal_code", ..., "is required"),
    ],
)
def test_wrong_cell_is_a_problem_of_its_field(
    file: InputFile, field: str, written: object, expected: str
) -> None:
    (problem,) = texts(file.row(**{field: written}))
    assert problem.startswith(f"line 1: {field}: {expected}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[]", "must be a JSON object"),
        ('{"amount": 1, "amount": 2}', "a JSON member appears more than once"),
        ('{"amount": }', "invalid JSON at character 12"),
        ('{"amount": 1' + "0" * 5000 + "}", "cannot be parsed as JSON"),
        ('{"cell 3330000000": 1, "amount": 1}', "unknown members, not printed because"),
        (json.dumps(order(importo="1")), "member 'importo': amount: appears twice, under two names"),
        (json.dumps(order(additional={"amount": 1})), "amount: appears twice: in the row and"),
        (json.dumps(order(Colore="x")), "Colore: unknown member; give it"),
    ],
)
def test_wrong_json_line_is_a_problem_of_the_row(file: InputFile, line: str, expected: str) -> None:
    first, second = file.rows(f"{json.dumps(order(fiscal_code='TSTXYZ00A00A000B'))}\n{line}\n")
    assert first.problems == ()
    found = [text.removeprefix("line 2").lstrip(":, ") for text in texts(second)]
    assert any(text.startswith(expected) for text in found), found


def test_row_that_is_cut_off_is_a_problem(file: InputFile) -> None:
    rows = file.rows(f'{json.dumps(order())}\n{{"amount"')
    assert texts(rows[1]) == ["line 2: incomplete: the file ends in the middle of this row"]
    rows = file.rows(csv(HEADER, CELLS, '"TST'), euro=True)
    assert texts(rows[1]) == ["line 3: incomplete: the file ends inside a quoted cell"]


def test_rows_after_an_invalid_csv_row_are_read(file: InputFile) -> None:
    short, long = "TSTXYZ00A00A000C;1", f"{CELLS.replace('000A;', '000F;')};x;y"
    quoted = f'"TSTXYZ00A00A000D";"450,00"x{CELLS[23:]}'
    several = CELLS.replace("Via Prova", '"Via\r\nProva"').replace("000A;", "000E;")
    rows = file.rows(csv(HEADER, short, ";;;", "", long, quoted, several, CELLS), euro=True)
    assert [row.line for row in rows] == [2, 5, 6, 7, 9]
    assert texts(rows[0]) == ["line 2: has 2 cells, but the header has 13"]
    assert texts(rows[1]) == ["line 5: has 15 cells, but the header has 13"]
    assert texts(rows[2]) == ["line 6: invalid CSV"]
    assert rows[4].problems == ()


def test_second_row_of_a_customer_and_order_is_a_problem(file: InputFile) -> None:
    """Also if the first one is wrong: after a correction, the two must not change places."""
    again = {"order_id": "", "fiscal_code": "tstxyz00a00a000a "}
    changes: list[dict[str, Any]] = [{"amount": 1}, {"order_id": "B"}, {"Ordine": "B"}, again]
    rows = file.rows("\n".join(json.dumps(order(**changed)) for changed in changes))
    assert [row.order_id for row in rows] == ["", "B", "B", ""]
    found = [[text for text in texts(row) if "duplicate" in text] for row in rows]
    message = "fiscal_code: duplicate of line {}; remove one of them"
    assert found == [[], [], [f"line 3: {message.format(2)}"], [f"line 4: {message.format(1)}"]]


def test_reason_of_a_rejected_row_is_not_read(file: InputFile) -> None:
    row = file.row(loanasync_reason="wrong", id="order 7")
    assert (row.line, row.id, row.problems) == (1, "order 7", ())
    assert "loanasync_reason" not in row.members
    (row,) = file.rows(csv(f"loanasync_reason;{HEADER}", f"wrong;{CELLS}"), euro=True)
    assert (row.problems, "loanasync_reason" in row.members) == ((), False)


def test_rows_are_checked_by_the_client(file: InputFile) -> None:
    file.path.write_text(json.dumps(order()))

    def check(*_: object, **__: object) -> tuple[()]:
        return ()

    assert [*read(file.path, check=check)] == [*read(file.path)]
    file.path.write_text(json.dumps(order(amount=1)))
    assert [len(row.problems) for row in read(file.path)] == [1]
    assert [len(row.problems) for row in read(file.path, check=check)] == [0]


def test_approve_many_sends_each_order_and_rejects_rows_with_problems(file: InputFile) -> None:
    rows = file.rows(
        "\n".join(map(json.dumps, [order(order_id="A"), order(order_id="B"), order(province="Roma")]))
    )

    async def run() -> list[RowResult]:
        async with scripted_client(approved(), approved()) as client:
            return [result async for result in client.approve_many(rows)]

    results = sorted(asyncio.run(run()), key=lambda result: result.index)
    assert [result.status for result in results] == ["approved", "approved", "rejected"]
    assert isinstance(error := results[2].error, InvalidRequestError)
    assert "province" in [problem.field for problem in error.problems]
