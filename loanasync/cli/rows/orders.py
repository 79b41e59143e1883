"""Conversion of a file's rows to `Row`, with all problems of each row."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, cast

import attrs
from attrs import define, field, frozen

from loanasync import AdditionalData, ApprovalRequest, Dialect, LoanClient
from loanasync._models.dialect import APPROVAL_NAMES, READ_ALIASES
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.bulk import Row
from loanasync.cli.rows.convert import READERS, BadCell, Reader, cents, euro
from loanasync.cli.rows.parse import ParsedRow, Table
from loanasync.cli.rows.source import RowProblem, Unreadable

_REQUEST = frozenset(attrs.fields_dict(ApprovalRequest)) - {"additional"}
_ADDITIONAL = tuple(attrs.fields_dict(AdditionalData))
_OWN = ("fiscal_code", "additional_data_needed", "id")
_NEEDED = (
    "fiscal_code",
    *(each.name for each in attrs.fields(ApprovalRequest) if each.default is attrs.NOTHING),
)


def plain(name: str) -> str:
    """A name however it is written: ``fiscalCode``, ``fiscal_code`` or ``Fiscal Code``."""
    return re.sub("[^a-z0-9]", "", name.lower())


_FIELDS = {
    **{
        plain(wire): name for name, wire in APPROVAL_NAMES.items() if name in (*_REQUEST, *_ADDITIONAL, *_OWN)
    },
    **{
        plain(alias): name
        for alias, wire in READ_ALIASES.items()
        for name, own in APPROVAL_NAMES.items()
        if own == wire
    },
    **{plain(name): name for name in (*_REQUEST, *_ADDITIONAL, *_OWN)},
}


FIELDS = frozenset(_FIELDS.values())


class Description(StrEnum):
    """The two descriptions of the approval call, by their name of the street number."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def dialect_of(description: Description) -> Dialect:
    """Return the preset of a description."""
    street = description is Description.STREET_NUMBER
    return Dialect.street_number() if street else Dialect.civic_number()


def checking_client(dialect: Dialect) -> LoanClient:
    """A client of nowhere: it checks, and sends nothing."""
    return LoanClient("http://localhost", shop_id="none", auth_token="none", dialect=dialect)  # noqa: S106  (made up)


@frozen
class Order:
    """One row of the file: to be asked for, or with what is wrong with it."""

    entry: ParsedRow
    row: Row | None
    problems: tuple[RowProblem, ...] = ()
    is_duplicate: bool = False

    @property
    def code(self) -> str:
        """The customer's fiscal code as it is sent; empty where there is none."""
        return "" if self.row is None else normalize_fiscal_code(self.row.fiscal_code)

    @property
    def line(self) -> int:
        """Where it begins in its file."""
        return self.entry.line


@define
class Orders:
    """Reads a table's rows by the names of its columns or members, ours or the specification's.

    Args:
        table: The rows.
        client: Checks them, and is asked for nothing else.
        named: Column or member by field, where their names are others.
        euro: Whether amounts are euro; else they are euro cents.
        ignore_unknown: Pass over columns and members that are no field; else each is an error.
    """

    table: Table
    client: LoanClient
    named: Mapping[str, str]
    euro: bool
    ignore_unknown: bool
    _seen: dict[str, int] = field(init=False, factory=dict)
    _readers: Mapping[str, Reader] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._readers = {**READERS, "amount": euro if self.euro else cents}

    def wrong_with_columns(self) -> Iterator[RowProblem]:
        """Yield the problems of the header, and so of each row."""
        columns = self.table.columns
        if columns is None:
            return
        found = {column: self._field(column) for column in columns}
        for column in columns:
            if columns.count(column) > 1:
                yield self.table.problem("is there more than once", 1, f"column {column!r}")
        for column, name in found.items():
            if name is None and not self.ignore_unknown:
                yield self.table.problem(self._unknown(column), 1, f"column {column!r}")
        for name in _NEEDED:
            if name not in found.values():
                yield self.table.problem(
                    f"no column for it; if it has another name: --column {name}=NAME", 1, "", name
                )
        for name, column in self.named.items():
            if column not in columns:
                yield self.table.problem(f"--column {name}={column}: there is no such column", 1)

    def read(self) -> Iterator[Order]:
        """The rows, from the first on; a customer who stands there twice is wrong the second time."""
        self._seen = {}
        try:
            for entry in self.table.entries():
                yield self.order(entry)
        except Unreadable as unreadable:
            line = unreadable.line
            yield Order(ParsedRow(line, {}, ""), None, (self.table.problem(str(unreadable), line),))

    def _field(self, column: str) -> str | None:
        for name, given in self.named.items():
            if given == column:
                return name
        found = _FIELDS.get(plain(column))
        return None if found in self.named else found

    def _unknown(self, column: str) -> str:
        if (own := _FIELDS.get(plain(column), "")) in self.named:
            told = f"is not read: --column says that {own} is in {self.named[own]!r}"
            return f"{told}; give one of the two, or pass over such with --ignore-unknown"
        near = get_close_matches(plain(column), _FIELDS, n=1)
        meant = f"did you mean {_FIELDS[near[0]]}? " if near else ""
        mend = f"name it with --column FIELD={column}, or pass over such with --ignore-unknown"
        return f"is no field; {meant}{mend}"

    def order(self, entry: ParsedRow) -> Order:
        """One row."""
        if entry.wrong:
            return Order(entry, None, (self.table.problem(entry.wrong, entry.line),))
        values, columns, wrong = self._values(entry)
        row = Row(
            cast("str", values.get("fiscal_code")),  # None is for the rules to name
            _request(values),
            additional_data_needed=bool(values.get("additional_data_needed", False)),
            id=values.get("id"),
        )
        broken = self.client.check(
            row.fiscal_code, row.request, additional_data_needed=row.additional_data_needed
        )
        wrong.update({each.field: each.message for each in broken if each.field not in wrong})
        is_duplicate = False
        if not wrong:
            first = self._seen.setdefault(normalize_fiscal_code(row.fiscal_code), entry.line)
            is_duplicate = first != entry.line
            if is_duplicate:
                wrong["fiscal_code"] = f"stands in line {first}, too: a customer is asked for once"
        problems = tuple(
            self.table.problem(message, entry.line, columns.get(name, ""), name)
            for name, message in wrong.items()
        )
        return Order(entry, None if problems else row, problems, is_duplicate)

    def _values(self, entry: ParsedRow) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
        """Values by field, the columns that they stand in, and what is wrong with some."""
        values: dict[str, Any] = {}
        columns: dict[str, str] = {}
        wrong: dict[str, str] = {}
        members = dict(entry.members)
        nested = members.pop("additional", None)
        if isinstance(nested, dict):
            told = "is given twice, the second time in additional"
            wrong |= {self._field(name) or name: told for name in nested if name in members}
            members |= nested
        elif nested is not None:
            wrong["additional"] = "must be an object"
        for column, value in members.items():
            name = self._field(column)
            if name is None:
                if self.table.columns is None and not self.ignore_unknown:
                    wrong[column] = self._unknown(column)
                continue
            columns[name] = f"column {column!r}"
            if value is None or value == "":
                continue
            if name in values:
                wrong[name] = "is given twice, under two names"
            try:
                values[name] = self._readers[name](value) if name in self._readers else value
            except BadCell as bad:
                wrong[name] = str(bad)
        return values, columns, wrong


def _request(values: Mapping[str, object]) -> ApprovalRequest:
    """As it is given, None for what is not: the rules name that, and all else at once."""
    own: dict[str, Any] = dict.fromkeys(name for name in _NEEDED if name != "fiscal_code")
    own |= {name: value for name, value in values.items() if name in _REQUEST}
    if not values.keys().isdisjoint(_ADDITIONAL):
        additional: dict[str, Any] = {name: values.get(name) for name in _ADDITIONAL}
        own["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**own)
