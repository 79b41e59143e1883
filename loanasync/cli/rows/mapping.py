"""Names of the fields in a file: names that are recognised, ``--column``, and files of ``--mapping``."""

import re
import tomllib
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import attrs
import typer
from attrs import field, frozen

from loanasync import AdditionalData, ApprovalRequest
from loanasync._models import APPROVAL_NAMES, READ_ALIASES

_LEAST_NUMBER = -(2**63)
REQUEST_FIELDS: frozenset[str] = frozenset(attrs.fields_dict(ApprovalRequest)) - {"additional"}
ADDITIONAL_FIELDS: tuple[str, ...] = tuple(attrs.fields_dict(AdditionalData))
_ROW_FIELDS = ("fiscal_code", "additional_data_needed", "id")
REQUIRED_FIELDS: tuple[str, ...] = (
    "fiscal_code",
    *(each.name for each in attrs.fields(ApprovalRequest) if each.default is attrs.NOTHING),
)
FIELDS: frozenset[str] = frozenset((*REQUEST_FIELDS, *ADDITIONAL_FIELDS, *_ROW_FIELDS))

# Headers of Italian files that can have no other meaning. docs/howto/bulk.md lists them.
ITALIAN_NAMES: Mapping[str, str] = {
    "Codice fiscale": "fiscal_code",
    "CF": "fiscal_code",
    "Importo": "amount",
    "Rate": "instalments",
    "Numero rate": "instalments",
    "Nome": "first_name",
    "Cognome": "last_name",
    "Cellulare": "mobile_phone",
    "Telefono cellulare": "mobile_phone",
    "Indirizzo email": "email",
    "CAP": "postal_code",
    "Codice postale": "postal_code",
    "Comune": "city",
    "Città": "city",
    "Provincia": "province",
    "Prov": "province",
    "Indirizzo": "address",
    "Via": "address",
    "Civico": "street_number",
    "Numero civico": "street_number",
    "Cittadinanza": "citizenship",
    "Numero ordine": "id",
}


def normalize_name(name: str) -> str:
    """Return the common form of ``fiscalCode``, ``fiscal_code`` and ``Fiscal Code``: ``fiscalcode``."""
    return re.sub("[^a-z0-9]", "", unicodedata.normalize("NFKD", name.casefold()))


# Fields by the normalized form of our name, of the specification's name, of its aliases, and in Italian.
FIELD_BY_NAME: Mapping[str, str] = {
    **{normalize_name(italian): name for italian, name in ITALIAN_NAMES.items()},
    **{normalize_name(wire): name for name, wire in APPROVAL_NAMES.items() if name in FIELDS},
    **{
        normalize_name(alias): name
        for alias, wire in READ_ALIASES.items()
        for name, own in APPROVAL_NAMES.items()
        if own == wire
    },
    **{normalize_name(name): name for name in FIELDS},
}


@frozen
class FieldMapping:
    """The parts of ``--column`` and ``--mapping``.

    Args:
        columns: Column or member by field.
        origins: Part of the options that maps a field, for messages.
        values: By field: values by the text in the file, which is in lower case.
        constants: By field: the value for rows that have none.
    """

    columns: Mapping[str, str] = field(factory=dict)
    origins: Mapping[str, str] = field(factory=dict)
    values: Mapping[str, Mapping[str, object]] = field(factory=dict)
    constants: Mapping[str, object] = field(factory=dict)

    def value_of(self, name: str, value: object) -> object:
        """Return the value that replaces a value of the file; without one, the value itself."""
        if name not in self.values or not isinstance(value, str | int | float):
            return value
        return self.values[name].get(str(value).strip().casefold(), value)


def field_mapping(
    columns: Sequence[str] = (), file: str | None = None, fields: Collection[str] = FIELDS
) -> FieldMapping:
    """Return the mapping of ``--column``, which wins, and ``--mapping``.

    Args:
        columns: Values of ``--column``.
        file: Value of ``--mapping``, the path of a TOML file.
        fields: The fields that the command reads.

    Raises:
        typer.BadParameter: An option or the file is wrong. The text names file, table and key.
    """
    tables = {} if file is None else _read_tables(file, fields)
    named = tables.get("columns", {})
    origins = {name: f"{file}: [columns] {name} = {column!r}" for name, column in named.items()}
    own = _parse_columns(columns, fields)
    named = {name: column for name, column in named.items() if column not in own.values()} | own
    origins |= {name: f"--column {name}={column}" for name, column in own.items()}
    by_column: dict[str, str] = {}
    for name, column in named.items():
        if (other := by_column.setdefault(column, name)) != name:
            raise typer.BadParameter(
                f"{origins[name]}: the column is already used for {other}", param_hint="--column / --mapping"
            )
    return FieldMapping(named, origins, tables.get("values", {}), tables.get("constants", {}))


def _parse_columns(options: Sequence[str], fields: Collection[str]) -> dict[str, str]:
    """Return the column by field from the values of ``--column``."""
    columns = {}
    for option in options:
        name, separator, column = option.partition("=")
        if not separator or not column:
            raise typer.BadParameter(f"'{option}' must be FIELD=NAME", param_hint="--column")
        if name not in fields:
            raise typer.BadParameter(f"unknown field '{name}'; {_list(fields)}", param_hint="--column")
        columns[name] = column
    return columns


def _list(fields: Collection[str]) -> str:
    return f"the fields are {', '.join(sorted(fields))}"


def _read_tables(file: str, fields: Collection[str]) -> dict[str, Any]:
    """Return the tables of a mapping file after checking them."""
    try:
        tables = tomllib.loads(Path(file).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise _wrong(file, error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise _wrong(file, "must be a text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _wrong(file, f"is not valid TOML: {error}") from None
    except (ValueError, RecursionError):
        raise _wrong(
            file, "cannot be read as TOML: a number is too long, or brackets are nested too deeply"
        ) from None
    for table, members in tables.items():
        if table not in ("columns", "values", "constants"):
            raise _wrong(
                file, f"unknown table [{table}]; the tables are [columns], [values.FIELD] and [constants]"
            )
        if not isinstance(members, dict):
            raise _wrong(file, f"{table} must be a table: write [{table}]")
        for name, value in members.items():
            where = f"[{table}.{name}]" if table == "values" else f"[{table}] {name}"
            if name not in fields:
                raise _wrong(file, f"{where}: unknown field; {_list(fields)}")
            members[name] = _checked(table, value, file, where)
    return tables


def _checked(table: str, value: object, file: str, where: str) -> object:
    if table == "columns":
        if not isinstance(value, str) or not value:
            raise _wrong(file, f"{where}: must be the name of a column, in quotes")
    elif table == "constants":
        _check_scalar(file, where, value)
    elif not isinstance(value, dict):
        raise _wrong(file, f"{where} must be a table of texts and their values")
    else:
        for text, replacement in value.items():
            _check_scalar(file, f"{where} {text}", replacement)
        return {text.strip().casefold(): each for text, each in value.items()}
    return value


def _check_scalar(file: str, where: str, value: object) -> None:
    is_time = isinstance(value, datetime)  # which is also a date
    is_number = isinstance(value, int | float) and _LEAST_NUMBER <= value < -_LEAST_NUMBER  # not nan
    if is_time or not (is_number or isinstance(value, str | date)):
        raise _wrong(file, f"{where}: must be a text, a number of at most 64 bits, a date, true or false")


def _wrong(file: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(f"{file}: {message}", param_hint="--mapping")
