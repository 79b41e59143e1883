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
ENGLISH = "Tax code;amount;Installments;First name;Surname;Mobile;ZIP code;Town;province;Street;House number"
ENGLISH += ";citizenship;E-mail"
CELLS = "TSTXYZ00A00A000A;€ 450,00;12;Anna;Prova;3330000000;00100;Forlì;RM;Via Prova;12/A;Italiana"
CELLS += ";anna@example.com"
MARKS = ("utf-8", "utf-8-sig")
MONTHS: dict[str, Any] = {"columns": {"instalments": "Mesi"}, "ignore": ["Bolla"]}
EURO: dict[str, Any] = {"euro": True}
ID: dict[str, Any] = {"required": ["id"]}


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
        (row,) = self.rows(json.dumps(order(**changed)), **(options or {}))
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


# Files


@pytest.mark.parametrize(
    "content",
    [
        *(csv().replace("\n", end).encode(mark) for end in ("\n", "\r\n", "\r") for mark in MARKS),
        *(csv().replace(",", ".").replace(";", delimiter).encode() for delimiter in (",", "\t", "|")),
        *(csv(each).encode() for each in (HEADER.lower(), HEADER.upper(), HEADER.replace(" ", "_"), ENGLISH)),
    ],
)  # fmt: skip
def test_read_takes_any_mark_line_end_delimiter_and_known_name(file: InputFile, content: bytes) -> None:
    for options in ({}, {"encoding": "cp1252"})[: 2 if content.startswith(b"\xef\xbb\xbf") else 1]:
        (row,) = file.rows(content, **options)
        assert (row.request.city, row.request.amount, row.line, row.problems) == ("Forlì", 45_000, 2, ())


def test_read_guesses_no_encoding(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = CELLS.replace("€ 450,00", "45000")
    content = csv(HEADER, cells.replace("Forlì", "Roma"), cells).encode("cp1252")
    message = "line 3: not valid UTF-8 from this line on; save the whole file as UTF-8, or name its encoding"
    assert file.error(content) == [f"{message}: --encoding cp1252"]
    assert file.rows(content, encoding="cp1252")[1].request.city == "Forlì"
    assert file.rows(csv().encode("utf-16"), encoding="utf-16")[0].request.city == "Forlì"
    assert "unknown text encoding 'x-1'" in file.error(content, encoding="x-1")[0]
    mixed = csv(HEADER, cells).encode("cp1252") + f"{cells.replace('A;', 'B;', 1)}\n".encode()
    first, second = file.rows(mixed, encoding="cp1252")
    assert first.problems == ()
    assert texts(second)[0].startswith("line 3, column 'Comune': city: this text has another encoding than")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(csv().encode())))
    assert [row.line for row in read("-")] == [2]


HINT = "give it the name of a field, remove it, or ignore it"
MISSING = "no column for this field; add one, or rename the column that has it"


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("", {}, "contains no rows"),
        ("\n \n", {}, "contains no rows"),
        ('[{"a": 1}]', {}, "contains a JSON array; write one object per line"),
        (b"PK\x03\x04abc", {}, "this is a workbook (.xlsx, .ods)"),
        (gzip.compress(b"CF;Nome", mtime=0), {}, "this is a compressed file (.gz)"),
        (b"CF;Nome\nA\x00;b\n", {}, "line 2: contains NUL bytes"),
        ('CF;"Nome\n', {}, "the first line is not a CSV header"),
        ("Anna;Prova\n", {}, "line 1: no column name is known"),
        ("sep=;\nCF;Nome\n", {}, "line 1: no column name is known"),
        ("CF;3330000000\n", {}, "line 1: this is not a header"),
        ("CF;TSTXYZ00A00A000A\n", {}, "line 1: this is not a header"),
        ("CF;anna@example.com\n", {}, "line 1: this is not a header"),
        (csv(f"{HEADER};Città", f"{CELLS};Roma"), {},
         "line 1: city: columns 'Comune' and 'Città' have names of this field; remove one"),
        *((csv(), {"columns": {name: "Totale"}},
           f"line 1: {name}: must be in 'Totale', which is stated for this field; correct its name")
          for name in ("amount", "iban")),
        (csv(), ID, f"line 1: id: {MISSING}"),
        (csv(), {"columns": []}, "columns must be a table"),
        (csv(), {"columns": {"name": "x"}}, "columns: unknown field name; the fields are additional_data"),
        (csv(), {"columns": {"amount": 1}}, "columns: amount must be the name of a column"),
        (csv(), {"columns": {"amount": "x", "id": "x"}}, "columns: 'x' is named for two fields"),
        (csv(), {"ignore": "Note"}, "ignore must be a list of names"),
        (csv(), {"ignore": 5}, "ignore must be a list of names"),
    ],
)  # fmt: skip
def test_unusable_file_or_argument_is_one_message(
    file: InputFile, content: str | bytes, options: dict[str, Any], expected: str
) -> None:
    (message,) = file.error(content, **options)
    assert message.startswith(expected)


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    for name, message in (("missing", "file not found"), (".", "this is a directory")):
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


def test_header_error_has_the_problems_of_header_and_rows(file: InputFile) -> None:
    rows = [CELLS.replace("RM", "Roma").replace("A;", f"{letter};", 1) for letter in "ABCDEFGHIJ" * 3]
    found = file.error(csv(HEADER.replace("Comune", "Posto") + ";Nome", *(f"{row};x" for row in rows)))
    assert found[:4] == [
        "line 1, column 'Nome': appears more than once",
        f"line 1, column 'Posto': unknown column; {HINT}",
        f"line 1: city: {MISSING}",
        "line 2, column 'Provincia': province: must be two upper-case letters, such as RM",
    ]
    assert found[-1].startswith("and ")


def test_columns_with_other_names_are_stated_or_ignored(file: InputFile) -> None:
    text = csv(HEADER.replace("Rate", "Mesi") + ";Bolla", f"{CELLS};17")
    assert len(file.error(text)) == 3
    for row in (*file.rows(text, **MONTHS), file.row(MONTHS, instalments=..., Mesi=12, Bolla="17")):
        assert (row.request.instalments, row.problems, row.members["Bolla"]) == (12, (), "17")


@pytest.mark.parametrize(("name", "is_refused"), [("Importo €", True), ("EUR", True), ("euro cent", False)])
def test_column_that_names_euro_needs_amounts_in_euro(
    file: InputFile, name: str, *, is_refused: bool
) -> None:
    columns, header = {"columns": {"amount": name}}, HEADER.replace("Importo", name)
    found = texts(file.row(columns, amount=..., **{name: "45000"}))
    assert [f"member {name!r} names euro, but amounts are read as euro cents" in each for each in found] == (
        [True] * is_refused
    )
    if is_refused:
        assert " names euro, but " in file.error(csv(header), **columns)[0]
    assert file.rows(csv(header), **columns, euro=True)[0].problems == ()


# Values


@pytest.mark.parametrize(
    ("field", "written", "value"),
    [
        ("amount", "€ 1.450,00", 145000), ("amount", "1.450,00 €", 145000), ("instalments", "24", 24),
        ("zero_interest_rate", "sì", True), ("zero_interest_rate", "No", False),
        ("payment_day_of_month", "5", 5),
        ("citizenship", "ITALIANA", "italian"), ("citizenship", "extra-UE", "outside_eu"),
        ("citizenship", "Outside EU", "outside_eu"), ("iban", "", None),
        # These only resemble spoiled values.
        ("province", "NA", "NA"),
        *(("city", each, each) for each in ("Nan", "Null", "12/A", "12E05", "Forlì", "Città «È»", "333")),
    ],
)  # fmt: skip
def test_cell_becomes_value_of_field(file: InputFile, field: str, written: str, value: object) -> None:
    row = file.row(**{field: written}, id="7.0")  # an id is not sent
    assert (getattr(row.request, field), row.id, row.problems) == (value, "7.0", ())


@pytest.mark.parametrize(
    ("written", "cents"),
    [("450", 45000), ("450 EUR", 45000), ("450,5", 45050), ("1.450,00", 145000), ("1,450.00", 145000),
     (450.5, 45050), ("64,35", 6435), ("€ 1.450,00", 145000), ("1\xa0450,00", 145000)],
)  # fmt: skip
def test_amount_in_euro_becomes_cents(file: InputFile, written: object, cents: int) -> None:
    assert file.row(EURO, amount=written).request.amount == cents


@pytest.mark.parametrize("block", ["flat", "nested"])
def test_additional_data_may_be_columns_or_an_object(file: InputFile, block: str) -> None:
    data = {
        "residence": "In affitto", "residence_start_date": "05/2019", "educational_qualification": "Laurea",
        "children": "2", "salary_type": "netto mensile", "salary": "1600",
    }  # fmt: skip
    row = file.row(additional_data_needed="yes", **(data if block == "flat" else {"additional": data}))
    found: Any = row.request.additional
    assert (row.additional_data_needed, row.problems) == (True, ())
    assert (found.residence, found.residence_start_date) == ("rent", date(2019, 5, 1))
    assert (found.salary_type, found.salary) == ("net-monthly", 1600)


LOST = "a data frame has written a missing value as text"
FORMULA = "a spreadsheet has written the error of a"
# Texts that a spreadsheet or a data frame writes in place of a value.
SPOILED = {
    **dict.fromkeys(("3,33E+09", "3.33e+09"), "a spreadsheet has shortened this number"),
    **dict.fromkeys(("3330000000.0", "100,00"), "a spreadsheet or data frame has added decimals"),
    **dict.fromkeys(("nan", "NaN", "NaT", "None", "null", "NULL", "<NA>", "N/A"), LOST),
    **dict.fromkeys(("#N/A", "#N/D", "#REF!", "#RIF!", "#VALUE!", "#VALORE!", "#NAME?", "#DIV/0!"), FORMULA),
    "########": "the column of the spreadsheet was too",
    **dict.fromkeys(('="333"', "=A1&B1"), "this is a formula"),
    "Forl\ufffd": "letters were lost",
    "ForlÃ¬": "this text has another encoding than the rest",
}
AMBIGUOUS = "ambiguous: the separator may mean thousands or decimals"


@pytest.mark.parametrize(
    ("options", "field", "written", "expected"),
    [
        *(({}, name, *each) for name in ("mobile_phone", "city", "order_id") for each in SPOILED.items()),
        *((EURO, "amount", written, AMBIGUOUS) for written in ("1.450", "€ 1.450")),
        (EURO, "amount", "$ 450", "must be an amount in euro"),
        (EURO, "amount", True, "must be a whole number"),
        ({}, "amount", "450,00", "must be whole euro cents, digits only; for euro write € 450,50"),
        ({}, "amount", 450.0, "must be whole euro cents"),
        ({}, "amount", "4,5E+04", "a spreadsheet has shortened this number"),
        ({}, "amount", float("nan"), LOST),
        ({}, "amount", "€ 1.450.00", "must be an amount in euro with at most two decimals"),
        ({}, "instalments", "12.5", "must be a whole number, digits only"),
        ({}, "instalments", 0, "must be a whole number between 3 and 60"),
        ({}, "mobile_phone", 3330000000, "must be text"),
        ({}, "zero_interest_rate", "maybe", "must be true or false"),
        ({}, "residence_start_date", "31/02/2019", "must be a date, such as 2019-05-31"),
        ({}, "residence_start_date", "43586", "is a spreadsheet's number for a date"),
        ({}, "order_id", 7, "must be text"),
        ({}, "order_id", "A\n1", "must not contain line breaks"),
        ({"columns": {"city": "Stadt"}}, "city", "Roma", "must be in 'Stadt', which is stated"),
        ({}, "additional", 7, "must be an object"),
        ({}, "citizenship", "Marte", "must be one of italian, eu, outside_eu, Italian"),
        ({}, "province", "rm", "must be two upper-case letters"),
        ({}, "fiscal_code", ..., "is required"),
        (ID, "id", ..., "is required"),
    ],
)  # fmt: skip
def test_wrong_value_is_a_problem_of_its_field(
    file: InputFile, options: dict[str, Any], field: str, written: object, expected: str
) -> None:
    (problem,) = texts(file.row(options, **{field: written}))
    assert problem.startswith(f"line 1: {field}: {expected}")


# Rows


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
        (json.dumps(order(Colore="x")), f"Colore: unknown member; {HINT}"),
    ],
)
def test_wrong_json_line_is_a_problem_of_the_row(file: InputFile, line: str, expected: str) -> None:
    first, second = file.rows(f"\n  {json.dumps(order(fiscal_code='TSTXYZ00A00A000B'))}\n{line}\n")
    assert (first.line, first.problems) == (2, ())
    found = [text.removeprefix("line 3").lstrip(":, ") for text in texts(second)]
    assert any(text.startswith(expected) for text in found), found


def test_csv_rows_have_their_problems_and_lines(file: InputFile) -> None:
    short, long = "TSTXYZ00A00A000C;1", f"{CELLS.replace('000A;', '000F;')};x;y"
    quoted = f'"TSTXYZ00A00A000D";"€ 450,00"x{CELLS[25:]}'
    several = CELLS.replace("Via Prova", '"Via\r\nProva"').replace("000A;", "000E;")
    rows = file.rows(csv(HEADER, short, ";;;", "", long, quoted, several, CELLS, '"TST'))
    assert [(row.line, texts(row)) for row in rows if row.line != 7] == [
        (2, ["line 2: has 2 cells, but the header has 13"]),
        (5, ["line 5: has 15 cells, but the header has 13"]),
        (6, ["line 6: invalid CSV"]),
        (9, []),
        (10, ["line 10: incomplete: the file ends inside a quoted cell"]),
    ]
    rows = file.rows(csv(f"{HEADER};id", f"{CELLS}; 7 ", f"{CELLS.replace('A;', 'B;', 1)};"), **ID)
    found = [(row.id, texts(row)) for row in rows]
    assert found == [("7", []), (None, ["line 3, column 'id': id: is required"])]
    cut = file.rows(f'{json.dumps(order())}\n{{"amount"')[1]
    assert texts(cut) == ["line 2: incomplete: the file ends in the middle of this row"]


def test_second_row_of_a_customer_and_order_is_a_problem(file: InputFile) -> None:
    """Also if the first one is wrong: after a correction, the two must not change places."""
    again = {"order_id": " ", "fiscal_code": "tstxyz00a00a000a "}
    changes: list[dict[str, Any]] = [{"amount": 1}, {"order_id": "B"}, {"Ordine": " B\u200b\n"}, again]
    rows = file.rows("\n".join(json.dumps(order(**changed)) for changed in changes))
    assert [row.order_id for row in rows] == ["", "B", "B", ""]
    found = [[text for text in texts(row) if "duplicate" in text] for row in rows]
    message = "fiscal_code: duplicate of line {}; remove one of them"
    assert found == [[], [], [f"line 3: {message.format(2)}"], [f"line 4: {message.format(1)}"]]


def test_reason_of_a_rejected_row_is_not_read(file: InputFile) -> None:
    (row,) = file.rows(csv(f"loanasync_reason;{HEADER}", f"wrong;{CELLS}"))
    for each in (row, file.row(loanasync_reason="wrong", city="Forlì")):
        assert (each.request.city, each.problems, "loanasync_reason" in each.members) == ("Forlì", (), False)


def test_rows_are_checked_by_the_client_and_rejected_with_their_problems(file: InputFile) -> None:
    def check(*_: object, **__: object) -> tuple[()]:
        return ()

    changes: list[dict[str, Any]] = [{"order_id": "A"}, {"order_id": "B"}, {"amount": 1}]
    text = "\n".join(json.dumps(order(**changed)) for changed in changes)
    assert [len(row.problems) for row in file.rows(text, check=check)] == [0, 0, 0]
    rows = file.rows(text)

    async def run() -> list[RowResult]:
        async with scripted_client(approved(), approved()) as client:
            return [result async for result in client.approve_many(rows)]

    results = sorted(asyncio.run(run()), key=lambda result: result.index)
    assert [result.status for result in results] == ["approved", "approved", "rejected"]
    assert isinstance(error := results[2].error, InvalidRequestError)
    assert [problem.field for problem in error.problems] == ["amount"]
