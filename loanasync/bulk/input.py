"""Reading of input files: `read` returns the rows of a CSV file or of JSON lines, each with its problems."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field

from loanasync._models.cells import BY_TYPE, CellError, to_cents
from loanasync._models.characters import seen
from loanasync._models.decisions import Problem, described
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync._protocol.rules import (
    check_approval,
    check_fiscal_code,
    check_order_id,
    check_payload,
    normalize_fiscal_code,
    normalize_order_id,
)
from loanasync._settings import Dialect, Limits
from loanasync.bulk.columns import (
    ADDITIONAL_FIELDS,
    FIELDS,
    REASON_NAME,
    REQUEST_FIELDS,
    REQUIRED_FIELDS,
    Headings,
    headings,
)
from loanasync.bulk.records import InputError, InputProblem, Records, is_like_value
from loanasync.bulk.rows import FileRow
from loanasync.bulk.spoiled import spoiled

_UNPRINTED = "unknown members, not printed because their names may be values; write names such as fiscal_code"
# By field. Fields that are missing here are text, which needs no conversion.
_CONVERTERS: Mapping[str, Callable[[object], object]] = {
    **{
        each.name: BY_TYPE[each.type]
        for model in (ApprovalRequest, AdditionalData, UserData)
        for each in attrs.fields(model)
        if each.type in BY_TYPE
    },
    "additional_data_needed": BY_TYPE[bool | None],
}
Check = Callable[..., Iterable[Problem]]


def _check_by_default(
    fiscal_code: str, request: ApprovalRequest, *, additional_data_needed: bool
) -> Iterator[Problem]:
    yield from check_fiscal_code(fiscal_code)
    yield from check_approval(
        request,
        additional_data_needed=additional_data_needed,
        dialect=Dialect.street_number(),
        limits=Limits(),
    )


def read(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    required: Collection[str] = (),
    encoding: str = "utf-8",
    euro: bool = False,
    check: Check = _check_by_default,
) -> "InputRows":
    """Read the rows of a CSV file or of JSON lines, for `LoanClient.approve_many`.

    A CSV file has a header, and one of the delimiters ``;``, comma, tab and ``|``. Columns have the names of
    our fields, of the specification, or usual Italian and English names. Values that a spreadsheet or a data
    frame has spoiled, such as ``3330000000.0`` or ``#N/A``, are problems. For other files use pandas, and
    pass rows. The whole file is kept in memory, and each row is converted when it is read.

    Args:
        path: Path of the file; ``-`` is standard input.
        columns: The column or JSON member by field, if it has another name.
        ignore: Other columns, which are not read. All others that are not known are problems.
        required: Further fields that each row must have.
        encoding: Text encoding. UTF-8 may have a byte order mark.
        euro: Amounts are in euro. Otherwise amounts are in euro cents, unless they have a currency sign.
        check: Validates each row. Pass `LoanClient.check` for the limits and the dialect of a client.

    Returns:
        The rows, in the order of the file. They can be read more than once.

    Raises:
        InputError: The file or an argument cannot be used. If the header is wrong, `InputError.problems` has
            its problems and those of all rows.

    Example:
        >>> from loanasync.bulk import read
        >>> header = "CF;Importo;Rate;Nome;Cognome;Cellulare;Email;Via;Civico;CAP;Comune;Prov;Nazione"
        >>> order = "TSTXYZ00A00A000A;€ 450,00;12;Anna;Prova;333000000;a@example.com;Via Roma;7;00100;Roma;RM"
        >>> with open("ordini.csv", "w") as file:
        ...     print(header, f"{order};Italiana", sep=chr(10), file=file)
        >>> rows = read("ordini.csv", columns={"citizenship": "Nazione"})
        >>> [(row.line, row.request.amount, row.request.citizenship.value, row.problems) for row in rows]
        [(2, 45000, 'italian', ())]
    """
    records = Records(str(path), encoding)
    found = headings(columns, ignore, records.name)
    return InputRows(records, found, required=tuple(required), euro=euro, check=check)


class InputRows:
    """The rows of an input file, which can be read more than once. `read` returns it.

    Iterating it yields each row as a `FileRow`, also rows with problems. ``name`` is the file for messages,
    ``columns`` the header of a CSV file, and ``delimiter`` its delimiter.

    Raises:
        InputError: The header has problems.

    Example:
        >>> import json
        >>> from loanasync.bulk import read
        >>> with open("orders.jsonl", "w") as file:
        ...     print(json.dumps({"fiscal_code": fiscal_code, "amount": 45_000}), file=file)
        >>> rows = read("orders.jsonl")
        >>> print([row for row in rows][0].problems[0])
        orders.jsonl: line 1: instalments: is required: a whole number between 3 and 60
    """

    def __init__(
        self,
        records: Records,
        found: Headings,
        *,
        required: Sequence[str],
        euro: bool,
        check: Check = _check_by_default,
        members: Sequence[str] = (),
    ) -> None:
        self.name: str = records.name
        self.delimiter: str = records.delimiter
        self.columns: Sequence[str] | None = records.columns  # of a CSV file
        self._records = records
        self._headings = found
        self._required = required
        self._euro = euro
        self._check = check
        self._members = members  # columns of a creation
        if self.columns is not None:
            fields = {name: found.field_of(name) for name in self.columns if not found.is_ignored(name)}
            records.check_header(fields, "rename the columns")
            if problems := tuple(self._header_problems(self.columns, fields)):
                reported = {each.field for each in problems if each.field}  # once, not for each row
                others = (each for row in self for each in row.problems if each.field not in reported)
                raise InputError((*problems, *others))

    def __iter__(self) -> Iterator[FileRow]:
        first_lines: dict[tuple[str, str], int] = {}
        for line, members, problem in self._records:
            yield self._convert(line, members, problem, first_lines)

    def _header_problems(
        self, columns: Sequence[str], fields: Mapping[str, str | None]
    ) -> Iterator[InputProblem]:
        def problem(message: str, column: str = "", name: str = "") -> InputProblem:
            return InputProblem(self.name, 1, column and f"column {column!r}", name, message)

        for column, name in fields.items():
            if columns.count(column) > 1:
                yield problem("appears more than once", column)
            if name is None:
                yield problem(_UNKNOWN.format("column"), column)
        required = (*REQUIRED_FIELDS, *self._required)
        for name in (*required, *sorted(FIELDS.difference(required))):
            found = [each for each in fields if fields[each] == name]
            if len(found) > 1:
                names = " and ".join(map(repr, found))
                yield problem(f"columns {names} have names of this field; remove one", "", name)
            stated = self._headings.columns.get(name)
            is_missing = not found and name in required if stated is None else stated not in columns
            if is_missing:
                yield problem(_NO_COLUMN if stated is None else _NOT_STATED.format(stated), "", name)
            for each in found:
                if message := self._unit_message(name, each):
                    yield problem(message, "", name)

    def _member_message(self, name: str, column: str) -> str:
        """Return the problem of a JSON member's name; that of a column is one of the header."""
        stated = self._headings.columns.get(name, column)
        return self._unit_message(name, column) if stated == column else _NOT_STATED.format(stated)

    def _unit_message(self, name: str, column: str) -> str:
        """Return a problem if the name of the amount's column contradicts the unit in which it is read."""
        text = column.casefold()
        if name != "amount" or self._euro or "cent" in text or not ("€" in text or "eur" in text):
            return ""
        reason = f"{self._kind} {column!r} names euro, but amounts are read as euro cents"
        return f"{reason}; pass --euro to approve-many, or rename it"

    @property
    def _kind(self) -> str:
        return "member" if self.columns is None else "column"

    def _convert(
        self, line: int, members: Mapping[str, object], problem: str, first_lines: dict[tuple[str, str], int]
    ) -> FileRow:
        members = {name: value for name, value in members.items() if name != REASON_NAME}
        draft = _Draft()
        if problem:
            draft.set_problem("", problem)
        else:
            self._read_values(members, draft)
            for name in self._members:
                draft.set_problem(name, _member_problem(members.get(name)))
        values, request = draft.values, _request_of(draft.values)
        code: Any = values.get("fiscal_code")  # the check reports None
        order_id = values.get("order_id", "")
        needed = bool(values.get("additional_data_needed", False))
        for each in check_order_id(order_id):
            draft.set_problem("order_id", each.message)
        if not problem:
            for name in self._required:
                draft.add_problem(name, "" if name in values else "is required")
            for each in self._check(code, request, additional_data_needed=needed):
                draft.add_problem(each.field, described(each), each.code)
        if isinstance(code, str) and isinstance(order_id, str) and code.strip():
            first = first_lines.setdefault((normalize_fiscal_code(code), order_id), line)
            message = "" if first == line else f"duplicate of line {first}; remove one of them"
            draft.add_problem("fiscal_code", message, "fiscal_code.duplicate")
        return FileRow(
            "" if code is None else code,
            request,
            additional_data_needed=needed,
            id=values.get("id"),
            order_id=order_id,
            line=line,
            members=members,
            problems=tuple(
                InputProblem(self.name, line, draft.columns.get(name, ""), name, text, rule)
                for name, (text, rule) in draft.problems.items()
            ),
        )

    def _read_values(self, members: Mapping[str, object], draft: "_Draft") -> None:
        """Add the values of a row, and the problems of their conversion."""
        flat = self._with_additional(members, draft)
        names = {each: self._headings.field_of(each) for each in flat if not self._headings.is_ignored(each)}
        for column, name in names.items():
            value = flat[column]
            if name == "order_id" and isinstance(value, str):
                value = normalize_order_id(value)
            if name is None:
                if self.columns is None:  # of a CSV file, the header has this problem
                    is_printed = not is_like_value(column) and any(names.values())
                    unknown = (column, _UNKNOWN.format("member")) if is_printed else ("", _UNPRINTED)
                    draft.set_problem(*unknown)
                continue
            is_named = self.columns is not None or column != name
            draft.columns[name] = f"{self._kind} {column!r}" if is_named else ""
            if value is None or value == "":
                continue
            if self.columns is None and (message := self._member_message(name, column)):
                draft.set_problem(name, message)
            elif name in draft.values:
                draft.set_problem(name, "appears twice, under two names")
            elif message := "" if name == "id" else spoiled(value, is_amount=name == "amount"):
                draft.set_problem(name, message)
            else:
                self._read_value(name, value, draft)

    def _with_additional(self, members: Mapping[str, object], draft: "_Draft") -> Mapping[str, object]:
        """Return the members of a row with those of its member ``additional``."""
        nested = members.get("additional")
        if nested is None:
            return members
        flat = {name: value for name, value in members.items() if name != "additional"}
        if not isinstance(nested, dict):
            draft.set_problem("additional", "must be an object")
            return flat
        for name in nested.keys() & flat.keys():
            place = self._headings.field_of(name) or ("" if is_like_value(name) else name)
            draft.set_problem(place, "appears twice: in the row and in its member 'additional'")
        return flat | nested

    def _read_value(self, name: str, value: object, draft: "_Draft") -> None:
        shown = seen(value) if isinstance(value, str) else value
        try:
            if name == "amount":
                draft.values[name] = to_cents(shown, euro=self._euro)
            else:
                draft.values[name] = _CONVERTERS[name](shown) if name in _CONVERTERS else value
        except CellError as error:
            draft.set_problem(name, str(error))


@define
class _Draft:
    """The values, the columns and the problems of one row, by field. Each problem has a code."""

    values: dict[str, Any] = field(factory=dict)
    columns: dict[str, str] = field(factory=dict)
    problems: dict[str, tuple[str, str]] = field(factory=dict)

    def set_problem(self, name: str, message: str) -> None:
        """Set the problem of a field, unless the message is empty."""
        if message:
            self.problems[name] = (message, "")

    def add_problem(self, name: str, message: str, code: str = "") -> None:
        """Add the problem of a field, unless the message is empty or the field has a problem already."""
        if message:
            self.problems.setdefault(name, (message, code))


def _member_problem(value: object) -> str:
    """Return why a value cannot be a member of a creation; empty if it can."""
    if isinstance(value, dict | list):
        return "must be text, a number, true or false; write one value"
    return spoiled(value) or "".join(map(described, check_payload({"": value})))


_NO_COLUMN = "no column for this field; add one, or rename the column that has it"
_NOT_STATED = "must be in {!r}, which is stated for this field; correct its name"
_UNKNOWN = "unknown {}; give it the name of a field, remove it, or ignore it"


def _request_of(values: Mapping[str, object]) -> ApprovalRequest:
    """Return a request with None for missing fields, so that one check reports all problems."""
    own: dict[str, Any] = dict.fromkeys(name for name in REQUIRED_FIELDS if name != "fiscal_code")
    own |= {name: value for name, value in values.items() if name in REQUEST_FIELDS}
    if not values.keys().isdisjoint(ADDITIONAL_FIELDS):
        additional: dict[str, Any] = {name: values.get(name) for name in ADDITIONAL_FIELDS}
        own["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**own)
