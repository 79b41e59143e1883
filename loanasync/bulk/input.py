"""Reading of input files: `read` returns the rows of a CSV file or of JSON lines, each with its problems."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from loanasync._cells import BY_TYPE, CellError, to_cents
from loanasync._models import AdditionalData, ApprovalRequest, Dialect, UserData
from loanasync._results import Problem, described
from loanasync._settings import Limits
from loanasync._text import seen
from loanasync._validation.rules import check_approval, check_fiscal_code, normalize_fiscal_code
from loanasync.bulk.columns import (
    ADDITIONAL_FIELDS,
    FIELDS,
    REQUEST_FIELDS,
    REQUIRED_FIELDS,
    FieldMapping,
    field_mapping,
    load_mapping,
    similar_field,
)
from loanasync.bulk.problems import InputError, InputProblem
from loanasync.bulk.records import Records, is_like_value
from loanasync.bulk.rows import FileRow

# Columns or members in front of each row of a file of rejected rows. Of these, only the line is read.
LINE_NAME, REASON_NAME = "loanasync_line", "loanasync_reason"
_LINE_NUMBER = re.compile("([1-9][0-9]{0,11})(?:\\.0)?")  # pandas writes 5.0
_UNPRINTED = (
    "unknown members, not printed because their names may be values; write names such as fiscal_code, or map "
    "them: --column FIELD=NAME"
)
_TOO_SHORT = (
    "a spreadsheet has shortened this number to scientific notation, such as 3,33E+09; format the column as "
    "text, and enter the whole number again"
)
_ANY_FIELD = "FIELD"
# Fields with an enumeration, whose values are often written in another language.
_CHOICES = frozenset({"citizenship", "residence", "educational_qualification", "children", "salary_type"})
_SHORTENED = re.compile("[0-9]+(?:[.,][0-9]+)?[Ee][+-][0-9]+")  # 3,33E+09: the other digits are lost
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
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    check: Check = _check_by_default,
) -> "InputRows":
    """Read the rows of a CSV file or of JSON lines, for `LoanClient.approve_many`.

    A CSV file has a header. Delimiter (``;``, comma, tab or ``|``), byte order mark, ``.gz`` and Excel's
    encoding are recognised. Columns may have the names of our fields, of the specification, or usual Italian
    and English names. The whole file is kept in memory, and each row is converted when it is read.

    Args:
        path: Path of the file; ``-`` is standard input.
        mapping: Names and values of the file, as a TOML file or a dict of the same tables.
        check: Validates each row. Pass `LoanClient.check` for the limits and the dialect of a client.

    Returns:
        The rows, in the order of the file. They can be read more than once.

    Raises:
        InputError: The file or the mapping cannot be used. If the header is wrong, `InputError.problems` has
            its problems and those of all rows.

    Example:
        >>> from loanasync.bulk import read
        >>> header = "CF;Importo;Rate;Nome;Cognome;Cellulare;Email;Via;Civico;CAP;Comune;Prov;Nazione"
        >>> order = "TSTXYZ00A00A000A;€ 450,00;12;Anna;Prova;333000000;a@example.com;Via Roma;7;00100;Roma;RM"
        >>> with open("ordini.csv", "w") as file:
        ...     print(header, f"{order};Italiana", sep=chr(10), file=file)
        >>> rows = read("ordini.csv", {"columns": {"citizenship": "Nazione"}})
        >>> [(row.line, row.request.amount, row.request.citizenship.value, row.problems) for row in rows]
        [(2, 45000, 'italian', ())]
    """
    if mapping is None or isinstance(mapping, Mapping):
        fields = field_mapping(mapping or {})
    else:
        fields = field_mapping(load_mapping(mapping), str(mapping))
    return InputRows(Records(str(path), fields.encoding), fields, check)


class InputRows:
    """The rows of an input file, which can be read more than once. `read` returns it.

    Iterating it yields each row as a `FileRow`, also rows with problems. ``name`` is the file for messages,
    ``columns`` the header of a CSV file, ``delimiter`` its delimiter, and ``encoding`` that of the mapping.

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

    def __init__(self, records: Records, mapping: FieldMapping, check: Check) -> None:
        self.name: str = records.name
        self.delimiter: str = records.delimiter
        self.columns: Sequence[str] | None = None  # of a CSV file
        self.encoding: str | None = mapping.encoding
        self._records = records
        self._mapping = mapping
        self._check = check
        if records.columns is not None:
            self.columns = [each for each in records.columns if each not in (LINE_NAME, REASON_NAME)]
            found = {column: mapping.field_of(column) for column in self.columns}
            records.check_header(found, "map the names: --column FIELD=NAME")
            if problems := tuple(self._header_problems(self.columns, found)):
                reported = {each.field for each in problems if each.field}  # once, not for each row
                others = (each for row in self for each in row.problems if each.field not in reported)
                raise InputError((*problems, *others))

    def __iter__(self) -> Iterator[FileRow]:
        first_lines: dict[tuple[str, str], int] = {}
        for line, members, problem in self._records:
            yield self._convert(line, members, problem, first_lines)

    def _header_problems(
        self, columns: Sequence[str], found: Mapping[str, str | None]
    ) -> Iterator[InputProblem]:
        def problem(message: str, column: str = "", name: str = "") -> InputProblem:
            return InputProblem(self.name, 1, column and f"column {column!r}", name, message)

        for column in found:
            if columns.count(column) > 1:
                yield problem("appears more than once", column)
        for column, name in found.items():
            if name is None and (message := self._unused_message(column, found.values())):
                yield problem(message, column)
        for name in (*REQUIRED_FIELDS, *sorted(FIELDS.difference(REQUIRED_FIELDS))):
            for message in self._field_messages(name, [each for each in found if found[each] == name]):
                yield problem(message, "", name)
        for name, column in self._mapping.columns.items():
            if column not in found:
                yield problem(f"is mapped to {column!r}, but there is no such column", "", name)

    def _field_messages(self, name: str, columns: Sequence[str]) -> Iterator[str]:
        """Yield the problems of a field, whose name these columns have."""
        if len(columns) > 1:
            names = " and ".join(map(repr, columns))
            option = f"--column {shlex.quote(f'{name}={columns[0]}')} --ignore-unknown"
            yield f"columns {names} have names of this field; choose one: {option}"
        if not columns and name in REQUIRED_FIELDS and name not in self._mapping.constants:
            yield f"no column for this field; if it has another name, add --column {name}=NAME"
        yield from filter(None, (self._unit_message(name, column) for column in columns))

    def _unit_message(self, name: str, column: str) -> str:
        """Return a problem if the name of the amount's column contradicts the unit in which it is read."""
        text = column.casefold()
        is_euro = self._mapping.amounts == "euro"
        if name != "amount" or is_euro or "cent" in text or not ("€" in text or "eur" in text):
            return ""
        kind = self._kind
        reason = f"{kind} {column!r} names euro, but amounts are read as euro cents"
        return f"{reason}; pass --euro to approve-many, or rename it"

    @property
    def _kind(self) -> str:
        return "member" if self.columns is None else "column"

    def _unused_message(self, column: str, used: Iterable[str | None]) -> str:
        """Return the problem of a column or member without a field; empty if it may be skipped."""
        if own := self._mapping.conflict(column):
            return (
                f"has the name of {own}, which is mapped to {self._mapping.columns[own]!r}; remove that "
                f"mapping, or put ignore = [{column!r}] into the mapping file"
            )
        if self._mapping.skips_unknown or column in self._mapping.ignore:
            return ""
        name = similar_field(column, {*used})
        question = f"; did you mean {name}?" if name else "."
        option = f"--column {shlex.quote(f'{name or _ANY_FIELD}={column}')}"
        kind = self._kind
        return f"unknown {kind}{question} Map it: {option}, or skip unknown {kind}s: --ignore-unknown"

    def _convert(
        self, line: int, members: Mapping[str, object], problem: str, first_lines: dict[tuple[str, str], int]
    ) -> FileRow:
        found = _LINE_NUMBER.fullmatch(str(members.get(LINE_NAME, "")))
        first_line = int(found[1]) if found else line
        members = {name: value for name, value in members.items() if name not in (LINE_NAME, REASON_NAME)}
        values: dict[str, Any] = {}
        columns: dict[str, str] = {}
        messages: dict[str, str] = {"": problem} if problem else {}
        codes: dict[str, str] = {}
        if not problem:
            self._read_values(members, values, columns, messages)
        request = _request_of(values)
        code: Any = values.get("fiscal_code")  # the check reports None
        order_id = values.get("order_id", "")
        needed = bool(values.get("additional_data_needed", False))
        if not isinstance(order_id, str):
            messages["order_id"] = "must be text"
        if not problem:
            for each in self._check(code, request, additional_data_needed=needed):
                if each.field not in messages:
                    codes[each.field] = each.code
                    messages[each.field] = described(each) + self._values_hint(each.field, values)
        if not messages:
            first = first_lines.setdefault((normalize_fiscal_code(code), order_id), line)
            if first != line:
                messages["fiscal_code"] = f"duplicate of line {first}: each customer may appear only once"
                codes["fiscal_code"] = "fiscal_code.duplicate"
        return FileRow(
            "" if code is None else code,
            request,
            additional_data_needed=needed,
            id=values.get("id"),
            order_id=order_id,
            line=first_line,
            is_correction=found is not None,
            members=members,
            problems=tuple(
                InputProblem(self.name, line, columns.get(name, ""), name, text, codes.get(name, ""))
                for name, text in messages.items()
            ),
        )

    def _read_values(
        self,
        members: Mapping[str, object],
        values: dict[str, Any],
        columns: dict[str, str],
        messages: dict[str, str],
    ) -> None:
        """Add the values of a row, their columns and the problems of their conversion, each by field."""
        flat = self._with_additional(members, messages)
        names = {column: self._mapping.field_of(column) for column in flat}
        for column, value in flat.items():
            if (name := names[column]) is None:
                if self.columns is None and (message := self._unused_message(column, names.values())):
                    is_printed = not is_like_value(column) and any(names.values())
                    messages |= {column: message} if is_printed else {"": _UNPRINTED}
                continue
            is_named = self.columns is None and column == name
            columns[name] = "" if is_named else f"{self._kind} {column!r}"
            if value is None or value == "":
                continue
            if self.columns is None and (message := self._unit_message(name, column)):
                messages[name] = message
            elif name in values:
                messages[name] = "appears twice, under two names"
            else:
                self._read_value(name, value, values, messages)
        for name in sorted(self._mapping.constants.keys() - values.keys() - messages.keys()):
            columns[name] = "constant of the mapping"
            self._read_value(name, self._mapping.constants[name], values, messages)

    def _with_additional(
        self, members: Mapping[str, object], messages: dict[str, str]
    ) -> Mapping[str, object]:
        """Return the members of a row with those of its member ``additional``."""
        nested = members.get("additional")
        if nested is None:
            return members
        flat = {name: value for name, value in members.items() if name != "additional"}
        if not isinstance(nested, dict):
            messages["additional"] = "must be an object"
            return flat
        for name in nested.keys() & flat.keys():
            place = self._mapping.field_of(name) or ("" if is_like_value(name) else name)
            messages[place] = "appears twice: in the row and in its member 'additional'"
        return flat | nested

    def _read_value(self, name: str, value: object, values: dict[str, Any], messages: dict[str, str]) -> None:
        value = self._mapping.value_of(name, value)
        if name != "id" and isinstance(value, str) and _SHORTENED.fullmatch(value):
            messages[name] = _TOO_SHORT
            return
        shown = seen(value) if isinstance(value, str) else value
        try:
            if name == "amount":
                values[name] = to_cents(shown, euro=self._mapping.amounts == "euro")
            else:
                values[name] = _CONVERTERS[name](shown) if name in _CONVERTERS else value
        except CellError as error:
            messages[name] = str(error)

    def _values_hint(self, name: str, values: Mapping[str, object]) -> str:
        is_other_text = name in _CHOICES and isinstance(values.get(name), str)
        hint = f"; to translate the values of the file, use --mapping with [values.{name}]"
        return hint if is_other_text else ""


def _request_of(values: Mapping[str, object]) -> ApprovalRequest:
    """Return a request with None for missing fields, so that one check reports all problems."""
    own: dict[str, Any] = dict.fromkeys(name for name in REQUIRED_FIELDS if name != "fiscal_code")
    own |= {name: value for name, value in values.items() if name in REQUEST_FIELDS}
    if not values.keys().isdisjoint(ADDITIONAL_FIELDS):
        additional: dict[str, Any] = {name: values.get(name) for name in ADDITIONAL_FIELDS}
        own["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**own)
