"""The fields of an input file's columns, and the names by which they are recognised."""

from collections.abc import Collection, Mapping

import attrs
from attrs import field, frozen

from loanasync._models.cells import normalized
from loanasync._models.requests import APPROVAL_NAMES, READ_ALIASES, AdditionalData, ApprovalRequest
from loanasync.bulk.records import input_error

REQUEST_FIELDS: frozenset[str] = frozenset(attrs.fields_dict(ApprovalRequest)) - {"additional"}
ADDITIONAL_FIELDS: tuple[str, ...] = tuple(attrs.fields_dict(AdditionalData))
REQUIRED_FIELDS: tuple[str, ...] = (
    "fiscal_code",
    *(each.name for each in attrs.fields(ApprovalRequest) if each.default is attrs.NOTHING),
)
_ROW_FIELDS = ("fiscal_code", "additional_data_needed", "id", "order_id")
FIELDS: frozenset[str] = frozenset((*REQUEST_FIELDS, *ADDITIONAL_FIELDS, *_ROW_FIELDS))
REASON_NAME = "loanasync_reason"  # the first column of a file of rejected rows, which is not read

# Headings that can have no other meaning, in Italian and in English. docs/howto/bulk.md lists them.
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
    "order_id": ("Numero ordine", "Ordine", "Order number", "Order"),
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
class Headings:
    """The fields of the columns or JSON members of one file.

    Args:
        columns: The column of a field whose heading is not known, by field.
        ignore: Columns that are not read.
    """

    columns: Mapping[str, str] = field(factory=dict)
    ignore: Collection[str] = ()

    def field_of(self, column: str) -> str | None:
        """Return the field of a column or member, or None."""
        stated = (name for name, own in self.columns.items() if own == column)
        return next(stated, _FIELD_BY_NAME.get(normalized(column)))

    def is_ignored(self, column: str) -> bool:
        """Return True if a column or member is not read."""
        return column == REASON_NAME or column in self.ignore


def headings(columns: object, ignore: object, name: str) -> Headings:
    """Return the headings of a file that is read with these arguments of `read`.

    Args:
        columns: The column by field, or None.
        ignore: The names of columns.
        name: The file for messages.

    Raises:
        InputError: An argument is wrong.
    """
    columns = {} if columns is None else columns
    if not isinstance(columns, Mapping):
        raise input_error(name, "columns must be a table of fields and the names of their columns")
    for each, column in columns.items():
        if each not in FIELDS:
            raise input_error(
                name, f"columns: unknown field {each}; the fields are {', '.join(sorted(FIELDS))}"
            )
        if not isinstance(column, str) or not column:
            raise input_error(name, f"columns: {each} must be the name of a column, in quotes")
        if list(columns.values()).count(column) > 1:
            raise input_error(name, f"columns: {column!r} is named for two fields")
    if isinstance(ignore, str) or not isinstance(ignore, Collection):
        raise input_error(name, "ignore must be a list of names of columns")
    return Headings(columns, ignore)
