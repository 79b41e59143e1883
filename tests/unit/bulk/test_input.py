"""`read`: the rows of a CSV file or of JSON lines, with their problems."""

import asyncio
import gzip
import io
import json
import sys
from collections.abc import Mapping
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
EURO = {"amounts": "euro"}


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

    def rows(self, content: str | bytes, mapping: Mapping[str, Any] | Path | None = None) -> list[FileRow]:
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read(self.path, mapping))

    def row(self, mapping: Mapping[str, Any] | None = None, /, **changed: Any) -> FileRow:
        """Return the row of a file of JSON lines."""
        (row,) = self.rows(json.dumps(order(**changed), default=str), mapping)
        return row

    def error(self, content: str | bytes, mapping: Mapping[str, Any] | Path | None = None) -> list[str]:
        """Return the lines of the error, without the path."""
        with pytest.raises(InputError) as raised:
            self.rows(content, mapping)
        return [line.removeprefix(f"{self.path}: ") for line in str(raised.value).splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> InputFile:
    return InputFile(tmp_path)


def texts(row: FileRow) -> list[str]:
    """Return the problems of a row without the name of the file."""
    return [str(each).partition(": ")[2] for each in row.problems]


def csv(header: str = HEADER, *rows: str) -> str:
    return "".join(f"{line}\n" for line in (header, *(rows or (CELLS,))))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_read_finds_encoding_and_line_ends(file: InputFile, encoding: str, line_end: str) -> None:
    text = csv().replace("450", "€ 450").replace("\n", line_end)
    (row,) = file.rows(text.encode(encoding))
    assert (row.request.city, row.request.amount, row.line, row.problems) == ("Forlì", 45_000, 2, ())


@pytest.mark.parametrize("delimiter", [",", "\t", "|"])
def test_read_finds_delimiter(file: InputFile, delimiter: str) -> None:
    text = csv().replace("450,00", "450.00").replace(";", delimiter)
    assert file.rows(text, EURO)[0].problems == ()
    assert file.rows(f"sep={delimiter}\n{text}", EURO)[0].line == 3


def test_read_takes_encoding_of_mapping(file: InputFile) -> None:
    content = csv().encode("mac_roman")
    assert "not valid UTF-8" in file.error(content, EURO)[0]
    assert file.rows(content, EURO | {"encoding": "mac_roman"})[0].request.city == "Forlì"
    marked = csv(HEADER, CELLS).encode("utf-8-sig")
    assert file.rows(marked, EURO | {"encoding": "cp1252"})[0].request.city == "Forlì"
    assert "unknown text encoding 'x-1'" in file.error(content, {"encoding": "x-1"})[0]


def test_json_lines_may_begin_with_spaces_and_have_zeros(file: InputFile) -> None:
    (row,) = file.rows(f"\n  {json.dumps(order(instalments=0))}\n")
    assert texts(row) == ["line 2: instalments: must be a whole number between 3 and 60"]


def test_read_takes_gzip_and_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(csv().encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert [row.line for row in read("-", EURO)] == [2]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "contains no rows"),
        ("\n \n", "contains no rows"),
        ('[{"a": 1}]', "contains a JSON array; write one object per line"),
        (b"PK\x03\x04abc", "this is a workbook (.xlsx, .ods)"),
        (b"CF;Nome\nA\x00;b\n", "line 2: contains NUL bytes"),
        (gzip.compress(b"CF;Nome", mtime=0)[:12], "the gzip data is incomplete or damaged"),
        ('CF;"Nome\n', "the first line is not a CSV header"),
        ("Anna;Prova\n", "line 1: no column name is known"),
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
    assert file.rows(csv(header), EURO)[0].problems == ()


def test_header_problems_name_column_and_option(file: InputFile) -> None:
    header = HEADER.replace("CAP", "CAP cliente").replace(";Rate", ";Mesi") + ";Note"
    skip = "or skip unknown columns: --ignore-unknown"
    add = "no column for this field; if it has another name, add --column"
    cap = "did you mean postal_code? Map it: --column 'postal_code=CAP cliente'"
    assert file.error(csv(header, f"{CELLS};x"), EURO) == [
        f"line 1, column 'Mesi': unknown column. Map it: --column FIELD=Mesi, {skip}",
        f"line 1, column 'CAP cliente': unknown column; {cap}, {skip}",
        f"line 1, column 'Note': unknown column. Map it: --column FIELD=Note, {skip}",
        f"line 1: instalments: {add} instalments=NAME",
        f"line 1: postal_code: {add} postal_code=NAME",
    ]


def test_header_error_has_the_problems_of_rows(file: InputFile) -> None:
    rows = [CELLS.replace("RM", "Roma")] * 30
    header, *others = file.error(csv(HEADER.replace("Comune", "Posto"), *rows), EURO)
    assert header.startswith("line 1, column 'Posto': unknown column")
    assert others[:2] == [
        "line 1: city: no column for this field; if it has another name, add --column city=NAME",
        "line 2, column 'Provincia': province: must be two upper-case letters, such as RM",
    ]
    assert others[-1] == "and 12 more; see InputError.problems"


def test_suggestion_names_no_field_that_has_a_column(file: InputFile) -> None:
    assert "did you mean" in file.error(csv(HEADER.replace("CAP", "CAP 1")), EURO)[0]
    (message,) = file.error(csv(f"{HEADER};CAP 1", f"{CELLS};x"), EURO)
    assert message.startswith("line 1, column 'CAP 1': unknown column. Map it: --column 'FIELD=CAP 1'")


def test_mapping_of_a_field_that_has_its_column_is_refused(file: InputFile) -> None:
    mapping = {**EURO, "columns": {"first_name": "Note"}, "ignore": ["*"]}
    text = csv(f"{HEADER};Note", f"{CELLS};bolla 17")
    (message,) = file.error(text, mapping)
    assert message == (
        "line 1, column 'Nome': has the name of first_name, which is mapped to 'Note'; remove that mapping, "
        "or put ignore = ['Nome'] into the mapping file"
    )
    (row,) = file.rows(text, mapping | {"ignore": ["Nome"]})
    assert row.request.first_name == "bolla 17"
    row = file.row({"columns": {"first_name": "Note"}, "ignore": ["*"]}, Note="bolla 17")
    assert "first_name: has the name of first_name, which is mapped to 'Note'" in texts(row)[0]


def test_two_columns_of_one_field_need_a_choice(file: InputFile) -> None:
    text = csv(f"{HEADER};Città", f"{CELLS};Roma")
    (message,) = file.error(text, EURO)
    assert message.endswith("choose one: --column city=Comune --ignore-unknown")
    (row,) = file.rows(text, {**EURO, "columns": {"city": "Comune"}, "ignore": ["*"]})
    assert row.request.city == "Forlì"
    assert file.error(csv(f"{HEADER};Nome", f"{CELLS};x"), EURO)[0].endswith("appears more than once")


def test_constant_stands_for_a_missing_column_or_cell(file: InputFile) -> None:
    header, cells = HEADER.replace(";Comune", ";Scritta"), CELLS.replace(";12;", ";;")
    mapping = {**EURO, "ignore": ["Scritta"], "constants": {"city": "Roma", "instalments": 24}}
    first, second = file.rows(csv(header, cells, CELLS.replace("A;", "B;", 1)), mapping)
    assert (first.request.city, first.request.instalments, first.problems) == ("Roma", 24, ())
    assert (second.request.instalments, second.problems) == (12, ())


def test_mapping_to_a_missing_column_is_refused(file: InputFile) -> None:
    (message,) = file.error(csv(HEADER, CELLS), {**EURO, "columns": {"id": "Ordine"}})
    assert message == "line 1: id: is mapped to 'Ordine', but there is no such column"


def test_cells_are_read_without_surrounding_spaces(file: InputFile) -> None:
    (row,) = file.rows(csv(f"{HEADER};id", f"{CELLS}; 7 "), EURO)
    assert row.id == "7"


def test_id_may_look_like_a_shortened_number(file: InputFile) -> None:
    row = file.row(id="12E+05")
    assert (row.id, row.problems) == ("12E+05", ())


def test_mapping_file_names_columns_values_and_constants(file: InputFile, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        'amounts = "euro"\nignore = ["Note"]\n[columns]\ninstalments = "Mesi"\n'
        '[values.instalments]\n"Un anno" = 24\n[values.citizenship]\nfrancese = "eu"\n'
        "[constants]\nresidence_start_date = 2019-05-01\n",
        encoding="utf-8-sig",
    )
    text = csv(f"{HEADER.replace('Rate', 'Mesi')};Note", f"{CELLS.replace(';12;', ';UN ANNO ;')};x")
    (row,) = file.rows(text.replace("Italiana", "Francese"), mapping)
    assert (row.request.instalments, row.request.citizenship, row.problems) == (24, "eu", ())
    assert row.request.additional is not None
    assert row.request.additional.residence_start_date == date(2019, 5, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[colums]", "unknown table [colums]"),
        ("columns = 1", "columns must be a table: write [columns]"),
        ("[columns]\nname = 'x'", "[columns] name: unknown field; the fields are additional_data_needed"),
        ("[columns]\namount = 1", "[columns] amount: must be the name of a column"),
        ("[columns]\namount = 'x'\nid = 'x'", "[columns] id: the column 'x' is already used for amount"),
        ("[constants]\namount = nan", "[constants] amount: must be a text, a number"),
        ("[values]\namount = 1", "[values.amount] must be a table of texts"),
        ("[values.amount]\nx = []", "[values.amount] x: must be a text, a number"),
        ("amounts = 'lire'", "amounts must be 'cents' or 'euro'"),
        ("ignore = 'Note'", "ignore must be a list of names"),
        ("encoding = 1", "encoding must be a text"),
        ("= 1", "is not valid TOML"),
        ("a = 1" + "0" * 5000, "cannot be read as TOML"),
        ("\ud8ff", "must be a text in UTF-8"),
        (None, "No such file or directory"),
    ],
)
def test_wrong_mapping_names_file_table_and_key(
    file: InputFile, tmp_path: Path, text: str | None, expected: str
) -> None:
    mapping = tmp_path / "mapping.toml"
    if text is not None:
        mapping.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(InputError) as raised:
        file.rows(csv(), mapping)
    assert str(raised.value).startswith(f"{mapping}: {expected}")


@pytest.mark.parametrize(
    ("written", "cents"),
    [("450", 45000), ("450 EUR", 45000), ("450,5", 45050), ("1.450,00", 145000), ("1,450.00", 145000),
     (450.5, 45050), ("64,35", 6435), ("€ 1.450,00", 145000), ("1.450,00 €", 145000),
     ("1\xa0450,00", 145000)],
)  # fmt: skip
def test_amount_in_euro_becomes_cents(file: InputFile, written: object, cents: int) -> None:
    assert file.row(EURO, amount=written).request.amount == cents
    if "€" in str(written):
        assert file.row(amount=written).request.amount == cents


@pytest.mark.parametrize(
    ("mapping", "written", "expected"),
    [
        (EURO, "1.450", "ambiguous: the separator may mean thousands or decimals"),
        (EURO, "€ 1.450", "ambiguous: the separator may mean thousands or decimals"),
        (EURO, "$ 450", "must be an amount in euro"),
        (EURO, True, "must be a whole number"),
        ({}, "450,00", "must be whole euro cents, digits only; for euro write € 450,50"),
        ({}, 450.0, "must be whole euro cents"),
        ({}, "4,5E+04", "a spreadsheet has shortened this number"),
    ],
)
def test_unclear_amount_is_a_problem(
    file: InputFile, mapping: dict[str, Any], written: object, expected: str
) -> None:
    (problem,) = texts(file.row(mapping, amount=written))
    assert problem.startswith(f"line 1: amount: {expected}")


@pytest.mark.parametrize(("name", "messages"), [("Importo €", 1), ("EUR", 1), ("euro cent", 0)])
def test_column_that_names_euro_needs_amounts_in_euro(file: InputFile, name: str, messages: int) -> None:
    mapping = {"columns": {"amount": name}}
    header = HEADER.replace("Importo", name)
    message = f"member {name!r} names euro, but amounts are read as euro cents"
    found = texts(file.row(mapping, amount=..., **{name: "45000"}))
    assert sum(message in text for text in found) == messages
    if messages:
        assert " names euro, but " in file.error(csv(header), mapping)[0]
    assert file.rows(csv(header), mapping | EURO)[0].problems == ()


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
        ("instalments", "12.0", "must be a whole number, digits only; format the column without decimals"),
        ("zero_interest_rate", "maybe", "must be true or false"),
        ("residence_start_date", "31/02/2019", "must be a date, such as 2019-05-31"),
        ("residence_start_date", "43586", "is a spreadsheet's number for a date"),
        ("amount", "€ 1.450.00", "must be an amount in euro with at most two decimals"),
        ("mobile_phone", "3,33E+09", "a spreadsheet has shortened this number"),
        ("order_id", 7, "must be text"),
        ("additional", 7, "must be an object"),
        ("citizenship", "Marte", "must be one of italian, eu, outside_eu, Italian; to translate the"),
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
        (json.dumps(order(Colore="x")), "Colore: unknown member. Map it: --column FIELD=Colore"),
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
    rows = file.rows(csv(HEADER, CELLS, '"TST'), EURO)
    assert texts(rows[1]) == ["line 3: incomplete: the file ends inside a quoted cell"]


def test_rows_after_an_invalid_csv_row_are_read(file: InputFile) -> None:
    short, long = "TSTXYZ00A00A000C;1", f"{CELLS};x;y"
    quoted = f'"TSTXYZ00A00A000D";"450,00"x{CELLS[23:]}'
    several = CELLS.replace("Via Prova", '"Via\r\nProva"').replace("000A;", "000E;")
    rows = file.rows(csv(HEADER, short, ";;;", long, quoted, several, CELLS), EURO)
    assert [row.line for row in rows] == [2, 4, 5, 6, 8]
    assert texts(rows[0]) == ["line 2: has 2 cells, but the header has 13"]
    assert texts(rows[1]) == ["line 4: has 15 cells, but the header has 13"]
    assert texts(rows[2]) == ["line 5: invalid CSV"]
    assert rows[4].problems == ()


def test_second_row_of_a_customer_and_scope_is_a_problem(file: InputFile) -> None:
    again = {"order_id": "", "fiscal_code": "tstxyz00a00a000a "}
    changes: list[dict[str, str]] = [{}, {"order_id": "B"}, {"Ordine": "B"}, again]
    rows = file.rows("\n".join(json.dumps(order(**changed)) for changed in changes))
    assert [len(row.problems) for row in rows] == [0, 0, 1, 1]
    assert [row.order_id for row in rows] == ["", "B", "B", ""]
    message = "fiscal_code: duplicate of line 2: each customer may appear only once"
    assert texts(rows[2]) == [f"line 3: {message}"]


def test_rejected_row_keeps_its_first_line(file: InputFile) -> None:
    row = file.row(loanasync_line="7", loanasync_reason="wrong", id="order 7")
    assert (row.line, row.id, row.problems) == (7, "order 7", ())
    assert not {"loanasync_line", "loanasync_reason"} & row.members.keys()


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
            return [result async for result in client.approve_many(rows, ordered=True)]

    results = asyncio.run(run())
    assert [result.status for result in results] == ["approved", "approved", "rejected"]
    assert isinstance(error := results[2].error, InvalidRequestError)
    assert [problem.field for problem in error.problems] == ["province"]
