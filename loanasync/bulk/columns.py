"""The fields of an input file's columns: recognised names, and a mapping of other names and values."""

import re
import tomllib
from collections.abc import Collection, Mapping
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from loanasync._cells import normalized
from loanasync._models import APPROVAL_NAMES, READ_ALIASES, AdditionalData, ApprovalRequest
from loanasync.bulk.problems import input_error

_LEAST_NUMBER = -(2**63)
_SIMILAR = 0.8  # "Note" is not similar to "Nome"
REQUEST_FIELDS: frozenset[str] = frozenset(attrs.fields_dict(ApprovalRequest)) - {"additional"}
ADDITIONAL_FIELDS: tuple[str, ...] = tuple(attrs.fields_dict(AdditionalData))
REQUIRED_FIELDS: tuple[str, ...] = (
    "fiscal_code",
    *(each.name for each in attrs.fields(ApprovalRequest) if each.default is attrs.NOTHING),
)
_ROW_FIELDS = ("fiscal_code", "additional_data_needed", "id", "order_id")
FIELDS: frozenset[str] = frozenset((*REQUEST_FIELDS, *ADDITIONAL_FIELDS, *_ROW_FIELDS))

# Headers that can have no other meaning, in Italian and in English. docs/howto/bulk.md lists them.
NAMES: Mapping[str, tuple[str, ...]] = {
    "fiscal_code": ("Codice fiscale", "CF", "Tax code"),
    "amount": ("Importo",),
    "instalments": ("Rate", "Numero rate"),
    "first_name": ("Nome", "Given name"),
    "last_name": ("Cognome", "Surname", "Family name"),
    "mobile_phone": ("Cellulare", "Telefono cellulare", "Mobile"),
    "email": ("Indirizzo email", "Email address"),
    "address": ("Indirizzo", "Via", "Street"),
    "street_number": ("Civico", "Numero civico", "House number"),
    "postal_code": ("CAP", "Codice postale", "Postcode", "ZIP code"),
    "city": ("Comune", "Città", "Town"),
    "province": ("Provincia", "Prov"),
    "citizenship": ("Cittadinanza",),
    "id": ("Numero ordine", "Order number"),
    "order_id": ("Ordine",),
}
# Fields by the normalized form of these names, of our name, and of the specification's name and its aliases.
_FIELD_BY_NAME: Mapping[str, str] = {
    **{normalized(each): name for name, names in NAMES.items() for each in names},
    **{normalized(wire): name for name, wire in APPROVAL_NAMES.items() if name in FIELDS},
    **{
        normalized(alias): name
        for alias, wire in READ_ALIASES.items()
        for name, own in APPROVAL_NAMES.items()
        if own == wire
    },
    **{normalized(name): name for name in FIELDS},
}


@frozen
class FieldMapping:
    """A checked mapping: names of columns, and how their values are read.

    Args:
        columns: Column or member by field.
        values: By field: the value for each text of the file. The texts are in lower case.
        constants: By field: the value for rows that have none.
        amounts: Unit of amounts without a currency sign.
        encoding: Text encoding. None: UTF-8, the encoding of the byte order mark, or that of Excel.
        ignore: Columns and members to skip; ``*`` skips all that are unknown.
    """

    columns: Mapping[str, str] = field(factory=dict)
    values: Mapping[str, Mapping[str, object]] = field(factory=dict)
    constants: Mapping[str, object] = field(factory=dict)
    amounts: str = "cents"
    encoding: str | None = None
    ignore: Collection[str] = ()

    @property
    def skips_unknown(self) -> bool:
        """True if unknown columns and members are skipped."""
        return "*" in self.ignore

    def field_of(self, column: str) -> str | None:
        """Return the field of a column or member, or None."""
        for name, mapped in self.columns.items():
            if mapped == column:
                return name
        found = None if column in self.ignore else _FIELD_BY_NAME.get(normalized(column))
        return None if found in self.columns else found

    def conflict(self, column: str) -> str | None:
        """Return the field that an unused column names, if it is mapped to a column of another name.

        The mapping may be a mistake, so `ignore` must name the unused column.
        """
        own = None if column in self.ignore else _FIELD_BY_NAME.get(normalized(column))
        if own is None or (mapped := self.columns.get(own)) in (None, column):
            return None
        return None if _FIELD_BY_NAME.get(normalized(str(mapped))) == own else own

    def value_of(self, name: str, value: object) -> object:
        """Return the value that replaces a value of the file; without one, the value itself."""
        if name not in self.values or not isinstance(value, str | int | float):
            return value
        return self.values[name].get(str(value).strip().casefold(), value)


def similar_field(column: str, used: Collection[str | None]) -> str:
    """Return the field that a column may mean: one of its words is a name, or the whole is similar to one.

    Args:
        column: Name of the column.
        used: Fields that other columns have. A suggestion of one of these would replace its values.
    """
    free = {each: name for each, name in _FIELD_BY_NAME.items() if name not in used}
    for word in re.split(r"[\W_]+", column):
        if found := free.get(normalized(word)):
            return found
    near = get_close_matches(normalized(column), free, n=1, cutoff=_SIMILAR)
    return free[near[0]] if near else ""


def load_mapping(path: str | Path) -> dict[str, Any]:
    """Return the tables of a mapping file in TOML.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except UnicodeDecodeError:
        reason = "must be a text in UTF-8"
    except tomllib.TOMLDecodeError as error:
        reason = f"is not valid TOML: {error}"
    except (ValueError, RecursionError):
        reason = "cannot be read as TOML: a number is too long, or brackets are nested too deeply"
    raise input_error(str(path), reason)


def field_mapping(tables: Mapping[str, Any], name: str = "mapping") -> FieldMapping:
    """Return a mapping after checking it.

    Args:
        tables: The tables ``columns``, ``values`` and ``constants``, and the settings ``amounts``,
            ``encoding`` and ``ignore``.
        name: Name of the mapping for messages.

    Raises:
        InputError: A table or a setting is wrong. The text names table and key.
    """
    parts: dict[str, Any] = {}
    for key, value in tables.items():
        if message := _wrong_setting(key, value):
            raise input_error(name, message)
        parts[key] = value if key not in _TABLES else {}
        for each, content in value.items() if key in _TABLES else ():
            where = f"[{key}.{each}]" if key == "values" else f"[{key}] {each}"
            if each not in FIELDS:
                raise input_error(name, f"{where}: unknown field; the fields are {', '.join(sorted(FIELDS))}")
            if message := _wrong_content(key, content):
                raise input_error(name, f"{where}{message}")
            parts[key][each] = content
    parts["values"] = {
        each: {text.strip().casefold(): value for text, value in texts.items()}
        for each, texts in parts.get("values", {}).items()
    }
    fields_by_column: dict[str, str] = {}
    for each, column in parts.get("columns", {}).items():
        if (other := fields_by_column.setdefault(column, each)) != each:
            raise input_error(name, f"[columns] {each}: the column {column!r} is already used for {other}")
    return FieldMapping(**parts)


_TABLES = ("columns", "values", "constants")


def _wrong_setting(key: str, value: object) -> str:
    if key in _TABLES:
        return "" if isinstance(value, Mapping) else f"{key} must be a table: write [{key}]"
    match key:
        case "amounts":
            return "" if value in ("cents", "euro") else "amounts must be 'cents' or 'euro'"
        case "encoding":
            return "" if isinstance(value, str | None) else "encoding must be a text such as 'cp1252'"
        case "ignore":
            is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
            return "" if is_list else "ignore must be a list of names of columns; '*' is all unknown ones"
    return f"unknown table [{key}]; use [columns], [values.FIELD], [constants], amounts, encoding or ignore"


def _wrong_content(table: str, content: object) -> str:
    if table == "columns":
        return "" if isinstance(content, str) and content else ": must be the name of a column, in quotes"
    if table == "constants":
        return _wrong_scalar(content)
    if not isinstance(content, Mapping):
        return " must be a table of texts and their values"
    return next((f" {text}{wrong}" for text, each in content.items() if (wrong := _wrong_scalar(each))), "")


def _wrong_scalar(value: object) -> str:
    is_time = isinstance(value, datetime)  # which is also a date
    is_number = isinstance(value, int | float) and _LEAST_NUMBER <= value < -_LEAST_NUMBER  # not nan
    if not is_time and (is_number or isinstance(value, str | date)):
        return ""
    return ": must be a text, a number of at most 64 bits, a date, true or false"
