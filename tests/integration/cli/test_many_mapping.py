"""Names of columns of ``approve-many``: Italian headers, ``--column``, and the file of ``--mapping``."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.rows.mapping import FIELDS, ITALIAN_NAMES, field_mapping
from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, write

NAMES = "Codice Fiscale;Importo;Rate;Nome;Cognome;Cellulare;CAP;Comune;Provincia;Indirizzo;Civico"
NAMES += ";Cittadinanza;Email"
CELLS = (
    "TSTXYZ00A00A000A;450,00;12;Anna;Prova;3330000000;00100;Forlì;RM;Via Prova;12/A;italian;anna@example.com"
)
HEADERS = dict(zip(NAMES.split(";"), CELLS.split(";"), strict=True))


def italian_file(tmp_path: Path, renamed: dict[str, str] | None = None, **cells: str) -> Path:
    """Write a file of Excel in Italian with one row. `renamed` has other headers, `cells` other values."""
    file = tmp_path / "ordini.csv"
    names = [(renamed or {}).get(name, name) for name in HEADERS]
    row = [cells.get(name, value) for name, value in HEADERS.items()]
    text = "".join(";".join(line) + "\r\n" for line in (names, row))
    file.write_text(text, encoding="utf-8-sig", newline="")
    return file


def mapping_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mapping.toml"
    file.write_text(text, encoding="utf-8-sig")  # as Notepad does
    return file


def check(file: Path, *options: object) -> tuple[int, str]:
    done = run(None, "approve-many", file, "--validate-only", "--euro", *options)
    return done.returncode, done.stderr


def test_italian_headers_are_recognised(tmp_path: Path) -> None:
    for written in (str, str.lower, lambda name: name.replace(" ", "_").upper()):
        file = italian_file(tmp_path, {name: written(name) for name in HEADERS})
        assert check(file) == (0, "1 row: 1 valid, 0 invalid\n")
    assert check(italian_file(tmp_path, {"Civico": "N. civico"}))[0] == 2
    for city in ("Città", "CITTA'"):
        assert check(italian_file(tmp_path, {"Comune": city, "Civico": "Numero civico"}))[0] == 0


def test_italian_names_are_on_the_bulk_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "bulk.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for header, field in ITALIAN_NAMES.items():
        assert any(line.startswith(f"| `{field}` |") and header in line for line in rows), header


def amount_under(name: str) -> dict[str, Any]:
    """Return a row whose amount has another name."""
    return {(name if each == "amount" else each): value for each, value in make_row("x").items()}


@pytest.mark.parametrize("name", ["Importo €", "amount (EUR)", "importoEuro"])
def test_amount_under_a_name_with_euro_needs_option_euro(tmp_path: Path, name: str) -> None:
    row = amount_under(name)
    lines = (";".join(map(str, cells)) + "\n" for cells in (row, row.values()))
    file = tmp_path / "rows.csv"
    file.write_text("".join(lines), encoding="utf-8")
    problem = f"{{}} {name!r} names euro, but amounts are read as euro cents; add --euro, or rename it"
    options = ("--validate-only", "--column", f"amount={name}")
    done = run(None, "approve-many", file, *options)
    expected = f"{file}: line 1: amount: {problem.format('column')}"
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, expected)
    done = run(None, "approve-many", write(tmp_path / "rows.jsonl", [row]), *options)
    assert (done.returncode, f"amount: {problem.format('member')}\n" in done.stderr) == (2, True), done.stderr
    row[name] = "450"
    write(tmp_path / "rows.jsonl", [row])
    assert run(None, "approve-many", tmp_path / "rows.jsonl", *options, "--euro").returncode == 0


@pytest.mark.parametrize("name", ["Importo", "Importo in centesimi di euro"])
def test_amount_under_another_name_is_in_euro_cents(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "rows.jsonl", [amount_under(name)])
    options = ("--validate-only", "--column", f"amount={name}")
    assert run(None, "approve-many", file, *options).returncode == 0


def test_unknown_column_message_has_an_option_that_a_shell_can_run(tmp_path: Path) -> None:
    file = italian_file(tmp_path, {"CAP": "CAP dell'ordine", "Provincia": "Sigla provincia"})
    code, output = check(file)
    assert code == 2
    found = [line.partition(": --column ")[2].partition(", or skip")[0] for line in output.splitlines()]
    options = [f"--column={part}" for part in shlex.split(" ".join(found))]
    assert options == ["--column=postal_code=CAP dell'ordine", "--column=province=Sigla provincia"]
    assert check(file, *options) == (0, "1 row: 1 valid, 0 invalid\n")


def test_two_columns_for_one_field_are_one_problem(tmp_path: Path) -> None:
    file = italian_file(tmp_path)
    text = (
        file.read_text(encoding="utf-8-sig")
        .replace("Email\n", "Email;Città\n")
        .replace(".com\n", ".com;Roma\n")
    )
    file.write_text(text, encoding="utf-8")
    option = "--column city=Comune --ignore-unknown"
    message = f"columns 'Comune' and 'Città' have names of this field; choose one: {option}"
    assert check(file) == (2, f"{file}: line 1: city: {message}\n")
    assert check(file, *shlex.split(option))[0] == 0


def test_mapping_file_names_columns_and_translates_values(tmp_path: Path, served: Sandbox) -> None:
    renamed = {"CAP": "Zona", "Rate": "Mesi"}
    file = italian_file(tmp_path, renamed, Cittadinanza="ITALIANA ", Email="anna+approved@example.com")
    create(served, [{"fiscal_code": HEADERS["Codice Fiscale"]}])
    mapping = mapping_file(
        tmp_path,
        '[columns]\npostal_code = "Zona"\ninstalments = "Mesi"\n'
        '[values.citizenship]\nItaliana = "italian"\n'
        "[values.instalments]\n12 = 24\n"
        '[constants]\nzero_interest_rate = true\ncity = "not used: the row has one"\nid = "x"\n',
    )
    out = tmp_path / "out.jsonl"
    assert run(served, "approve-many", file, "--euro", "-o", out, "--mapping", mapping).returncode == 0
    [call] = served.journal.calls(operation="approve")
    sent = call.request or {}
    assert (sent["citizenship"], sent["instalments"], sent["postalCode"]) == ("italian", 24, "00100")
    assert (sent["zeroInterestRate"], sent["city"]) == (True, "Forlì")
    assert [line["id"] for line in read(out)] == ["x"]


def test_mapping_file_is_used_for_json_members_and_option_column_wins(tmp_path: Path) -> None:
    row = {("zip" if name == "postal_code" else name): value for name, value in make_row("approved").items()}
    rows = write(tmp_path / "rows.jsonl", [row])
    mapping = mapping_file(tmp_path, '[columns]\npostal_code = "cap"\n')
    done = run(None, "approve-many", rows, "--validate-only", "--mapping", mapping)
    assert (done.returncode, "postal_code: is required" in done.stderr) == (2, True)
    options = ("--mapping", mapping, "--column", "postal_code=zip")
    assert run(None, "approve-many", rows, "--validate-only", *options).returncode == 0


def test_constant_of_a_wrong_kind_is_a_problem_of_its_field(tmp_path: Path) -> None:
    mapping = mapping_file(tmp_path, '[constants]\nzero_interest_rate = "perhaps"\n')
    code, output = check(italian_file(tmp_path), "--mapping", mapping)
    problem = "line 2, constant of the mapping: zero_interest_rate: must be true or false"
    assert (code, problem in output) == (2, True), output


def test_constant_may_be_a_date(tmp_path: Path) -> None:
    mapping = mapping_file(tmp_path, "[constants]\nresidence_start_date = 2019-05-31\n")
    assert check(italian_file(tmp_path), "--mapping", mapping) == (0, "1 row: 1 valid, 0 invalid\n")
    mapping.write_text("[constants]\namount = 2019-05-31\n", encoding="utf-8")
    code, output = check(italian_file(tmp_path, Importo=""), "--mapping", mapping)
    assert (code, "constant of the mapping: amount: must be an amount in euro" in output) == (2, True), output


def test_mapped_column_that_is_missing_names_the_mapping_file(tmp_path: Path) -> None:
    mapping = mapping_file(tmp_path, '[columns]\niban = "Conto"\n')
    code, output = check(italian_file(tmp_path), "--mapping", mapping)
    problem = f"{mapping}: [columns] iban = 'Conto': there is no column 'Conto'"
    assert (code, output) == (2, f"{tmp_path / 'ordini.csv'}: line 1: {problem}\n")


def test_text_that_is_no_value_of_a_field_names_the_table_of_the_mapping(tmp_path: Path) -> None:
    code, output = check(italian_file(tmp_path, Cittadinanza="Italiana"))
    assert code == 2
    assert "column 'Cittadinanza': citizenship: must be one of italian" in output
    assert output.count("use --mapping with [values.citizenship]") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[colums]\ncity = "Comune"', "unknown table [colums]; the tables are [columns], [values.FIELD] and"),
        ('columns = "city"', "columns must be a table: write [columns]"),
        (
            '[columns]\ncitty = "Comune"',
            "[columns] citty: unknown field; the fields are additional_data_needed,",
        ),
        ("[columns]\ncity = 5", "[columns] city: must be the name of a column, in quotes"),
        ('[columns]\ncity = ""', "[columns] city: must be the name of a column, in quotes"),
        (
            '[columns]\ncity = "A"\naddress = "A"',
            "[columns] address = 'A': the column is already used for city",
        ),
        (
            '[values]\ncitizenship = "italian"',
            "[values.citizenship] must be a table of texts and their values",
        ),
        (
            "[values.citizenship]\nItaliana = []",
            "[values.citizenship] Italiana: must be a text, a number of at most 64 bits, a date, true or",
        ),
        (
            "[constants]\ncity = 2019-05-31T10:00:00",
            "[constants] city: must be a text, a number of at most 64 bits, a date, true or",
        ),
        ("[constants]\namount = nan", "[constants] amount: must be a text, a number of at most 64 bits, a"),
        ("[constants]\namount = -inf", "[constants] amount: must be a text, a number of at most 64 bits, a"),
        (
            f"[constants]\nid = 0x{'f' * 5000}",
            "[constants] id: must be a text, a number of at most 64 bits, a",
        ),
        (f"[constants]\nid = {'1' * 5000}", "cannot be read as TOML: a number is too long, or brackets are"),
        (
            f"[constants]\nid = {'[' * 20_000}",
            "cannot be read as TOML: a number is too long, or brackets are",
        ),
        ("[columns\n", "is not valid TOML: "),
        (None, "No such file or directory"),
        (b"[columns]\ncity = 'Citt\xe0'", "must be a text in UTF-8"),
    ],
)
def test_wrong_mapping_file_names_file_table_and_key(
    tmp_path: Path, text: str | bytes | None, message: str
) -> None:
    mapping = tmp_path / "m.toml"
    if text is not None:
        mapping.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, output = check(italian_file(tmp_path), "--mapping", mapping)
    shown = " ".join(output.replace("│", " ").split())
    assert (code, f"{mapping}: " in shown, message in shown) == (2, True, True), output


def test_field_mapping_takes_the_fields_of_another_command(tmp_path: Path) -> None:
    mapping = mapping_file(tmp_path, '[columns]\noutcome = "Esito"\n[values.outcome]\nOK = "approved"\n')
    fields = field_mapping(file=str(mapping), fields=FIELDS | {"outcome"})
    assert fields.columns == {"outcome": "Esito"}
    assert (fields.value_of("outcome", " ok"), fields.value_of("outcome", "KO")) == ("approved", "KO")
