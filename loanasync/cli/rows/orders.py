"""Conversion of a file's rows to `Row`, with all problems of each row."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, cast

from attrs import define, field, frozen

from loanasync import AdditionalData, ApprovalRequest, Dialect, LoanClient
from loanasync._results import described
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.bulk import Row
from loanasync.cli.rows.convert import (
    CONVERTERS,
    CellError,
    Converter,
    cents_to_int,
    check_number_is_complete,
    euro_to_cents,
)
from loanasync.cli.rows.mapping import (
    ADDITIONAL_FIELDS,
    FIELD_BY_NAME,
    FIELDS,
    REQUEST_FIELDS,
    REQUIRED_FIELDS,
    FieldMapping,
    normalize_name,
)
from loanasync.cli.rows.parse import OWN_NAMES, ParsedRow, Table, check_header, is_like_value
from loanasync.cli.rows.source import InputProblem, UnreadableError

_UNPRINTED = (
    "unknown members, not printed because their names may be values; write names such as fiscal_code, or map "
    "them: --column FIELD=NAME"
)
# Fields with an enumeration, whose values are often written in another language.
_CHOICES = frozenset({"citizenship", "residence", "educational_qualification", "children", "salary_type"})


class DialectName(StrEnum):
    """The values of ``--dialect``: the name of the street number in each description of the call."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def dialect_of(name: DialectName) -> Dialect:
    """Return the dialect of a name."""
    is_street = name is DialectName.STREET_NUMBER
    return Dialect.street_number() if is_street else Dialect.civic_number()


def offline_client(dialect: Dialect) -> LoanClient:
    """Return a client for `LoanClient.check` only. Its address and credentials are made up."""
    return LoanClient("http://localhost", shop_id="none", auth_token="none", dialect=dialect)  # noqa: S106  (made up)


@frozen
class Order:
    """One row of the file: either a `Row` to request, or its problems."""

    parsed: ParsedRow
    row: Row | None
    problems: tuple[InputProblem, ...] = ()
    is_duplicate: bool = False
    id: object = None  # also of a row with problems, if it can be read

    @property
    def code(self) -> str:
        """The customer's fiscal code in the form in which it is sent. Empty for a row with problems."""
        return "" if self.row is None else normalize_fiscal_code(self.row.fiscal_code)

    @property
    def line(self) -> int:
        """Number of the line on which the row began in the first run; dead letters contain it."""
        return self.parsed.first_line


@define
class Orders:
    """Converts the rows of a table. Columns and members may have our names or the specification's.

    Args:
        table: The rows.
        client: Validates the rows. It sends nothing.
        mapping: Other names and values of fields, from ``--column`` and ``--mapping``.
        euro: True if amounts are in euro, False if they are in euro cents.
        ignore_unknown: Skip unknown columns and members. Otherwise each one is a problem.
    """

    table: Table
    client: LoanClient
    mapping: FieldMapping
    euro: bool
    ignore_unknown: bool
    _first_line: dict[str, int] = field(init=False, factory=dict)  # by fiscal code
    _converters: Mapping[str, Converter] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._converters = {**CONVERTERS, "amount": euro_to_cents if self.euro else cents_to_int}

    def column_problems(self) -> Iterator[InputProblem]:
        """Yield the problems of a CSV header, which concern every row.

        Raises:
            UnreadableError: The first line is not a header.
        """
        columns = self.table.columns
        if columns is None:
            return
        fields = {column: self._field_of(column) for column in columns}
        check_header(fields)
        for column in columns:
            if columns.count(column) > 1:
                yield self.table.problem("appears more than once", 1, f"column {column!r}")
        for column, name in fields.items():
            if name is None and not self.ignore_unknown:
                yield self.table.problem(self._unknown_message(column), 1, f"column {column!r}")
        for name in (*REQUIRED_FIELDS, *sorted(FIELDS.difference(REQUIRED_FIELDS))):
            own = [column for column, found in fields.items() if found == name]
            for message in self._assignment_messages(name, own):
                yield self.table.problem(message, 1, "", name)
        for name, column in self.mapping.columns.items():
            if column not in columns:
                yield self.table.problem(f"{self.mapping.origins[name]}: there is no column {column!r}", 1)

    def _assignment_messages(self, name: str, columns: Sequence[str]) -> Iterator[str]:
        if len(columns) > 1:
            names = " and ".join(map(repr, columns))
            option = f"{_column_option(name, columns[0])} --ignore-unknown"
            yield f"columns {names} have names of this field; choose one: {option}"
        if not columns and name in REQUIRED_FIELDS and name not in self.mapping.constants:
            yield f"no column for this field; if it has another name, add --column {name}=NAME"
        yield from filter(None, (self._unit_message(name, column) for column in columns))

    def read(self) -> Iterator[Order]:
        """Yield all rows from the beginning. The second row of a customer is a problem."""
        self._first_line = {}
        try:
            for parsed in self.table.rows():
                yield self.convert(parsed)
        except UnreadableError as error:
            line = error.line
            yield Order(ParsedRow(line, {}, ""), None, (self.table.problem(str(error), line),))

    def _field_of(self, column: str) -> str | None:
        for name, mapped in self.mapping.columns.items():
            if mapped == column:
                return name
        found = FIELD_BY_NAME.get(normalize_name(column))
        return None if found in self.mapping.columns else found

    def _unit_message(self, name: str, column: str) -> str:
        """Return a problem if the name of the amount's column contradicts the unit in which it is read."""
        text = column.casefold()
        if name != "amount" or self.euro or "cent" in text or not ("€" in text or "eur" in text):
            return ""
        kind = "member" if self.table.columns is None else "column"
        return f"{kind} {column!r} names euro, but amounts are read as euro cents; add --euro, or rename it"

    def _unknown_message(self, column: str) -> str:
        kind = "member" if self.table.columns is None else "column"
        if (own := FIELD_BY_NAME.get(normalize_name(column), "")) in self.mapping.columns:
            return (
                f"not used, because {self.mapping.origins[own]} maps {own} to {self.mapping.columns[own]!r}; "
                f"remove one of the two, or add --ignore-unknown to skip unknown {kind}s"
            )
        name = _similar_field(column)
        question = f"; did you mean {name}?" if name else "."
        option = _column_option(name or "FIELD", column)
        return f"unknown {kind}{question} Map it: {option}, or skip unknown {kind}s: --ignore-unknown"

    def convert(self, parsed: ParsedRow) -> Order:
        """Convert and validate one row."""
        if parsed.problem:
            return Order(parsed, None, (self.table.problem(parsed.problem, parsed.line),))
        values, columns, messages = self.values(parsed)
        row = Row(
            cast("str", values.get("fiscal_code")),  # the validation reports None
            _request_of(values),
            additional_data_needed=bool(values.get("additional_data_needed", False)),
            id=values.get("id"),
        )
        found = self.client.check(
            row.fiscal_code, row.request, additional_data_needed=row.additional_data_needed
        )
        new = [each for each in found if each.field not in messages]
        codes = {each.field: each.code for each in new}
        messages |= {each.field: described(each) + self._values_hint(each.field, values) for each in new}
        is_duplicate = False
        if not messages:
            first = self._first_line.setdefault(normalize_fiscal_code(row.fiscal_code), parsed.line)
            is_duplicate = first != parsed.line
            if is_duplicate:
                messages["fiscal_code"] = f"duplicate of line {first}: each customer may appear only once"
        problems = tuple(
            self.table.problem(message, parsed.line, columns.get(name, ""), name, codes.get(name, ""))
            for name, message in messages.items()
        )
        return Order(parsed, None if problems else row, problems, is_duplicate, row.id)

    def values(self, parsed: ParsedRow) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
        """Return the values of a row, their columns and the problems of their conversion, each by field."""
        values: dict[str, Any] = {}
        columns: dict[str, str] = {}
        messages: dict[str, str] = {}
        members = {name: value for name, value in parsed.members.items() if name not in OWN_NAMES}
        nested = members.pop("additional", None)
        if isinstance(nested, dict):
            twice = "appears twice: in the row and in its member 'additional'"
            messages |= {
                self._field_of(name) or ("" if is_like_value(name) else name): twice
                for name in nested
                if name in members
            }
            members |= nested
        elif nested is not None:
            messages["additional"] = "must be an object"
        for column, value in members.items():
            name = self._field_of(column)
            if name is None:
                messages |= self._unknown_member(column, members)
                continue
            columns[name] = self._location(column, name)
            if value is None or value == "":
                continue
            if self.table.columns is None and (message := self._unit_message(name, column)):
                messages[name] = message
                continue
            if name in values:
                messages[name] = "appears twice, under two names"
            self._convert_value(name, value, values, messages)
        for name in sorted(self.mapping.constants.keys() - values.keys() - messages.keys()):
            columns[name] = "constant of the mapping"
            self._convert_value(name, self.mapping.constants[name], values, messages)
        return values, columns, messages

    def _unknown_member(self, member: str, members: Iterable[str]) -> dict[str, str]:
        """Return the problem of a member without a field. Its name is not printed if it may be a value."""
        if self.table.columns is not None or self.ignore_unknown:
            return {}
        if is_like_value(member) or not any(map(self._field_of, members)):
            return {"": _UNPRINTED}
        return {member: self._unknown_message(member)}

    def _convert_value(
        self, name: str, value: object, values: dict[str, Any], messages: dict[str, str]
    ) -> None:
        try:
            values[name] = self._converted(name, value)
        except CellError as error:
            messages[name] = str(error)

    def _converted(self, name: str, value: object) -> object:
        value = self.mapping.value_of(name, value)
        if name != "id":
            check_number_is_complete(value)
        return self._converters[name](value) if name in self._converters else value

    def _values_hint(self, name: str, values: Mapping[str, object]) -> str:
        is_other_text = name in _CHOICES and isinstance(values.get(name), str)
        return (
            f"; to translate the values of the file, use --mapping with [values.{name}]"
            if is_other_text
            else ""
        )

    def _location(self, column: str, name: str) -> str:
        """Return the column of a field, or the member if its name is not that of the field."""
        if self.table.columns is not None:
            return f"column {column!r}"
        return "" if column == name else f"member {column!r}"


def _column_option(name: str, column: str) -> str:
    """Return the option that maps a column, with the quotes that a shell needs."""
    return f"--column {shlex.quote(f'{name}={column}')}"


def _similar_field(column: str) -> str:
    """Return the field that a column may mean: one of its words is a name, or the whole is similar to one."""
    for word in re.split(r"[\W_]+", column):
        if found := FIELD_BY_NAME.get(normalize_name(word)):
            return found
    near = get_close_matches(normalize_name(column), FIELD_BY_NAME, n=1)
    return FIELD_BY_NAME[near[0]] if near else ""


def _request_of(values: Mapping[str, object]) -> ApprovalRequest:
    """Return a request with None for missing fields, so that one validation reports all problems."""
    own: dict[str, Any] = dict.fromkeys(name for name in REQUIRED_FIELDS if name != "fiscal_code")
    own |= {name: value for name, value in values.items() if name in REQUEST_FIELDS}
    if not values.keys().isdisjoint(ADDITIONAL_FIELDS):
        additional: dict[str, Any] = {name: values.get(name) for name in ADDITIONAL_FIELDS}
        own["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**own)
