"""Reading of input files: `read` returns the rows of a CSV file or of JSON lines, each with its problems."""

import codecs
import csv
import gzip
import json
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from loanasync._models import AdditionalData, ApprovalRequest, Dialect
from loanasync._results import Problem, described
from loanasync._settings import Limits
from loanasync._validation.rules import check_approval, check_fiscal_code, normalize_fiscal_code
from loanasync.bulk.cells import CONVERTERS, CellError, check_number_is_complete, to_cents
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
from loanasync.bulk.problems import InputError, InputProblem, input_error
from loanasync.bulk.rows import FileRow

# Columns or members in front of each row of a file of rejected rows. Of these, only the line is read.
LINE_NAME, REASON_NAME = "loanasync_line", "loanasync_reason"
_DELIMITERS = ";,\t|"
_LINE_NUMBER = re.compile("([1-9][0-9]{0,11})(?:\\.0)?")  # pandas writes 5.0
_LINE = re.compile("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_LINE_END = re.compile("\r\n|\r|\n")
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # Excel saves "Unicode text" as UTF-16
_EXCEL = "cp1252"
# In cp1252 these are signs that no Italian or English text has, and in other encodings of one byte they are
# à, è or ù. So they mean another encoding.
_NOT_IN_EXCEL = re.compile(b"[\x81-\x91\x93-\x9f]")
_NOT_TEXT = {
    b"PK\x03\x04": "a workbook (.xlsx, .ods) or another zip file",
    b"\xd0\xcf\x11\xe0": "an Excel workbook (.xls)",
    b"PAR1": "a Parquet file",
}
_ITEMS_OF_FISCAL_CODE = "[a-z]{6}[0-9l-np-v]{2}[a-z][0-9l-np-v]{2}[a-z][0-9l-np-v]{3}[a-z]"
_FISCAL_CODE = re.compile(_ITEMS_OF_FISCAL_CODE, re.IGNORECASE)  # some of its digits may be letters
_MOST_DIGITS_OF_A_NAME = 5  # a telephone or card number has more
_UNPRINTED = (
    "unknown members, not printed because their names may be values; write names such as fiscal_code, or map "
    "them: --column FIELD=NAME"
)
_ANY_FIELD = "FIELD"
_CANNOT_BE_PARSED = "cannot be parsed as JSON: a number is too long, or brackets are nested too deeply"
# Fields with an enumeration, whose values are often written in another language.
_CHOICES = frozenset({"citizenship", "residence", "educational_qualification", "children", "salary_type"})


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
        InputError: The file or the mapping cannot be used. `InputError.problems` has all problems of the
            header.

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
    name = "standard input" if str(path) == "-" else str(path)
    if mapping is None or isinstance(mapping, Mapping):
        fields = field_mapping(mapping or {})
    else:
        fields = field_mapping(load_mapping(mapping), str(mapping))
    return InputRows(name, _text(name, _content(str(path)), fields.encoding), fields, check)


class InputRows:
    """The rows of an input file, which can be read more than once. `read` returns it.

    Iterating it yields each row as a `FileRow`, also rows with problems. ``name`` is the file for messages,
    ``columns`` the header of a CSV file, and ``delimiter`` its delimiter.

    Raises:
        InputError: The file has no rows, or its header has problems.

    Example:
        >>> import json
        >>> from loanasync.bulk import read
        >>> with open("orders.jsonl", "w") as file:
        ...     print(json.dumps({"fiscal_code": fiscal_code, "amount": 45_000}), file=file)
        >>> rows = read("orders.jsonl")
        >>> print([row for row in rows][0].problems[0])
        orders.jsonl: line 1: instalments: is required: a whole number between 3 and 60
    """

    def __init__(self, name: str, text: str, mapping: FieldMapping, check: Check) -> None:
        self.name = name
        self.delimiter: str = ","
        self.columns: Sequence[str] | None = None  # of a CSV file
        self._text = text
        self._mapping = mapping
        self._check = check
        first = next((line for line in self._lines() if line.strip()), "")
        if not first:
            raise input_error(name, "contains no rows")
        if first.lstrip().startswith("["):
            raise input_error(name, "contains a JSON array; write one object per line, as `jq -c '.[]'` does")
        if not first.lstrip().startswith("{"):
            self.columns = [*self._csv_reader()[0]]
            self._check_header()

    def __iter__(self) -> Iterator[FileRow]:
        first_lines: dict[tuple[str, str], int] = {}
        for line, members, problem in self._csv_rows() if self.columns is not None else self._json_rows():
            yield self._convert(line, members, problem, first_lines)

    def _check_header(self) -> None:
        """Raise an error with all problems of a CSV header, which concern every row.

        If the first line is not a header, it is not printed.
        """
        found = {column: self._mapping.field_of(column) for column in self._own_columns}
        if not any(found.values()):
            message = (
                "no column name is known. If this line is a row, write the column names above it; otherwise "
                "map the names: --column FIELD=NAME"
            )
            raise input_error(self.name, message, 1)
        if any(name is None and is_like_value(column) for column, name in found.items()):
            message = (
                "this is not a header: a name contains @, a fiscal code or more than five digits; write the "
                "column names above the first row"
            )
            raise input_error(self.name, message, 1)
        if problems := tuple(self._header_problems(found)):
            raise InputError(problems)

    @property
    def _own_columns(self) -> Sequence[str]:
        return [each for each in self.columns or () if each not in (LINE_NAME, REASON_NAME)]

    def _header_problems(self, found: Mapping[str, str | None]) -> Iterator[InputProblem]:
        def problem(message: str, column: str = "", name: str = "") -> InputProblem:
            return InputProblem(self.name, 1, column and f"column {column!r}", name, message)

        for column in found:
            if self._own_columns.count(column) > 1:
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
        return f"{kind} {column!r} names euro, but amounts are read as euro cents; add --euro, or rename it"

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
        scope = values.get("scope", "")
        needed = bool(values.get("additional_data_needed", False))
        if not isinstance(scope, str):
            messages["scope"] = "must be text"
        if not problem:
            for each in self._check(code, request, additional_data_needed=needed):
                if each.field not in messages:
                    codes[each.field] = each.code
                    messages[each.field] = described(each) + self._values_hint(each.field, values)
        if not messages:
            first = first_lines.setdefault((normalize_fiscal_code(code), scope), line)
            if first != line:
                messages["fiscal_code"] = f"duplicate of line {first}: each customer may appear only once"
                codes["fiscal_code"] = "fiscal_code.duplicate"
        return FileRow(
            "" if code is None else code,
            request,
            additional_data_needed=needed,
            id=values.get("id"),
            scope=scope,
            line=first_line,
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
        try:
            if name != "id":
                check_number_is_complete(value)
            if name == "amount":
                values[name] = to_cents(value, euro=self._mapping.amounts == "euro")
            else:
                values[name] = CONVERTERS[name](value) if name in CONVERTERS else value
        except CellError as error:
            messages[name] = str(error)

    def _values_hint(self, name: str, values: Mapping[str, object]) -> str:
        is_other_text = name in _CHOICES and isinstance(values.get(name), str)
        hint = f"; to translate the values of the file, use --mapping with [values.{name}]"
        return hint if is_other_text else ""

    def _lines(self) -> Iterator[str]:
        return (found[0] for found in _LINE.finditer(self._text))

    def _json_rows(self) -> Iterator[tuple[int, Mapping[str, object], str]]:
        for number, line in enumerate(self._lines(), 1):
            if line.strip():
                members, problem = parse_object(line)
                if problem and not number > 1 and not parse_object(self._text)[1]:
                    yield number, parse_object(self._text)[0], ""  # one object on several lines
                    return
                if problem.startswith("invalid JSON") and not line.endswith(("\n", "\r")):
                    problem = "incomplete: the file ends in the middle of this row"
                yield number, members, problem

    def _csv_reader(self) -> tuple[Sequence[str], Any, int]:
        """Return the header, the reader of the rows, and the number of lines before the reader's first."""
        lines = self._lines()
        skipped = 0
        first = ""
        for first in lines:
            if first.strip():
                break
            skipped += 1
        if first.lower().startswith("sep=") and len(first.rstrip("\r\n")) == len("sep=;"):  # Excel's
            self.delimiter = first[4]
            first = next(lines, "")
            skipped += 1
        else:
            self.delimiter = max(_DELIMITERS, key=first.count)
        reader = csv.DictReader(chain([first], lines), delimiter=self.delimiter, strict=True)
        try:
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        except csv.Error:
            message = "the first line is not a CSV header; write the column names in it"
            raise input_error(self.name, message) from None
        return reader.fieldnames, reader, skipped

    def _csv_rows(self) -> Iterator[tuple[int, Mapping[str, object], str]]:
        columns, reader, skipped = self._csv_reader()
        while True:
            line = reader.line_num + skipped + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                is_open = "unexpected end" in str(error)
                yield line, {}, "incomplete: the file ends inside a quoted cell" if is_open else "invalid CSV"
                continue
            if row is None:
                return
            extra = row.pop(None, ())  # cells beyond the header
            cells = [cell for cell in (*row.values(), *extra) if cell is not None]
            if not any(cell.strip() for cell in cells):
                continue
            line = reader.line_num + skipped - sum(len(_LINE_END.findall(cell)) for cell in cells)
            problem = ""
            if len(cells) != len(columns):
                noun = "cell" if len(cells) == 1 else "cells"
                problem = f"has {len(cells):,} {noun}, but the header has {len(columns):,}"
            yield line, {name: cell.strip() for name, cell in row.items() if cell is not None}, problem


def parse_object(text: str) -> tuple[dict[str, Any], str]:
    """Return the members of a JSON object, or the problem of the text."""
    try:
        members = json.loads(text, object_pairs_hook=_unique_members)
    except _RepeatedMemberError:
        return {}, "a JSON member appears more than once"
    except json.JSONDecodeError as error:
        return {}, f"invalid JSON at character {error.pos + 1}"
    except (ValueError, RecursionError):
        return {}, _CANNOT_BE_PARSED
    return (members, "") if isinstance(members, dict) else ({}, "must be a JSON object")


class _RepeatedMemberError(ValueError):
    """Two members have one name. Without the hook, the parser would keep the last one."""


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RepeatedMemberError
    return members


def is_like_value(name: str) -> bool:
    """Return True if the name of a column or member looks like an e-mail address, a code or a number."""
    digits = sum(each.isdigit() for each in name)
    return "@" in name or digits > _MOST_DIGITS_OF_A_NAME or bool(_FISCAL_CODE.fullmatch(name.strip()))


def _request_of(values: Mapping[str, object]) -> ApprovalRequest:
    """Return a request with None for missing fields, so that one check reports all problems."""
    own: dict[str, Any] = dict.fromkeys(name for name in REQUIRED_FIELDS if name != "fiscal_code")
    own |= {name: value for name, value in values.items() if name in REQUEST_FIELDS}
    if not values.keys().isdisjoint(ADDITIONAL_FIELDS):
        additional: dict[str, Any] = {name: values.get(name) for name in ADDITIONAL_FIELDS}
        own["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**own)


def _content(path: str) -> bytes:
    """Return the content of a file, a pipe or standard input, unzipped."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None:
                raise input_error(name, "closed; pipe the rows in, or name a file")
            content = sys.stdin.buffer.read()
        else:
            content = Path(path).read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except IsADirectoryError:
        message = "this is a directory; name a file"
    except FileNotFoundError:
        message = "file not found"
    except (EOFError, zlib.error, gzip.BadGzipFile):
        message = "the gzip data is incomplete or damaged; create or download the file again"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    raise input_error(name, message)


def _text(name: str, content: bytes, encoding: str | None) -> str:
    """Decode a file. Without an encoding, it is UTF-8, or what the byte order mark says, or Excel's."""
    if kind := _NOT_TEXT.get(content[:4]):
        message = (
            f"this is {kind}, not text; open it in the program that wrote it, and save it as CSV (UTF-8)"
        )
        raise input_error(name, message)
    if content.startswith(codecs.BOM_UTF8):  # it says more than a setting
        encoding = "utf-8-sig"
    used = encoding or ("utf-16" if content.startswith(_UTF_16_MARKS) else "utf-8-sig")
    try:
        text = content.decode(used)
    except LookupError:
        raise input_error(
            name, f"unknown text encoding '{used}'; use a name such as utf-8 or cp1252"
        ) from None
    except UnicodeError as error:
        is_utf_8 = encoding is None and used == "utf-8-sig"
        if not is_utf_8 or _NOT_IN_EXCEL.search(content) or b"\0" in content:
            line = content[: getattr(error, "start", 0)].count(b"\n") + 1
            message = (
                f"not valid {used.removesuffix('-sig').upper()} from about this line on; save the file as "
                'UTF-8, or name its encoding in the mapping, such as encoding = "mac_roman"'
            )
            raise input_error(name, message, line) from None
        text = content.decode(_EXCEL)
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise input_error(name, "contains NUL bytes; this is not a text file", line)
    return text
