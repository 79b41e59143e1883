"""Conversion of a file's rows to the outcomes that they state."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, frozen

from loanasync._validation.rules import check_fiscal_code, normalize_fiscal_code
from loanasync.cli.rows.convert import CellError, to_bool
from loanasync.cli.rows.mapping import normalize_name
from loanasync.cli.rows.parse import ParsedRow, Table, check_header, is_like_value
from loanasync.cli.rows.source import InputProblem, UnreadableError
from loanasync.ledger.model import State
from loanasync.ledger.resolution import STATES, problem_of_note

# Fields by the normalized names of their columns.
_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("fiscalcode", "codicefiscale", "cf"), "fiscal_code"),
    **dict.fromkeys(("outcome", "esito"), "outcome"),
    **dict.fromkeys(("approved", "approvato"), "approved"),
    **dict.fromkeys(("scope", "ambito"), "scope"),
    **dict.fromkeys(("ordertoken", "tokenordine"), "order_token"),
    **dict.fromkeys(("note", "nota"), "note"),
}
FIELDS = tuple(dict.fromkeys(_FIELDS.values()))
_OUTCOMES: Mapping[str, State] = {
    **{outcome.replace("_", ""): state for outcome, state in STATES.items()},
    **dict.fromkeys(("approvato", "approvata"), State.APPROVED),
    **dict.fromkeys(("rifiutato", "rifiutata"), State.REFUSED),
    **dict.fromkeys(("nonvalutato", "nonvalutata"), State.RELEASED),
}
_BETWEEN_WORDS = re.compile("(?<=[a-z])[ _-](?=[a-z])")  # another character, such as "?", may mean a doubt


@frozen
class StatedRow:
    """The outcome that one row of a file states about a customer's approval."""

    line: int
    fiscal_code: str
    state: State
    scope: str = ""
    order_token: str | None = None
    note: str = ""


@define
class Statements:
    """Converts the rows of a table to stated outcomes.

    Args:
        table: The rows.
        column_by_field: Column or member of each field that has another name, from ``--column``.
        ignore_unknown: Skip unknown columns and members. Otherwise each one is a problem, because a mistyped
            scope would select another approval of the customer.
    """

    table: Table
    column_by_field: Mapping[str, str]
    ignore_unknown: bool

    def column_problems(self) -> Iterator[InputProblem]:
        """Yield the problems of a CSV header, which concern every row.

        Raises:
            UnreadableError: The first line is not a header.
        """
        columns = self.table.columns
        if columns is None:
            return
        found = [self._field_of(column) for column in columns]
        check_header(dict(zip(columns, found, strict=True)))
        for column, name in zip(columns, found, strict=True):
            if name is None and not self.ignore_unknown:
                yield self.table.problem(_UNKNOWN.format(kind="column"), 1, f"column {column!r}")
            elif name is not None and found.count(name) > 1:
                yield self.table.problem("this field has two columns", 1, f"column {column!r}", name)
        if "fiscal_code" not in found:
            yield self.table.problem(_NO_COLUMN.format(name="fiscal_code"), 1, "", "fiscal_code")
        if not {"outcome", "approved"} & {*found}:
            yield self.table.problem(_NO_COLUMN.format(name="outcome"), 1, "", "outcome")
        for name, column in self.column_by_field.items():
            if column not in columns:
                yield self.table.problem(f"--column {name}={column}: there is no column {column!r}", 1)

    def read(self) -> Iterator[StatedRow | list[InputProblem]]:
        """Yield each row, or its problems."""
        try:
            for parsed in self.table.rows():
                yield self._convert(parsed)
        except UnreadableError as error:
            yield [self.table.problem(str(error), error.line)]

    def _field_of(self, column: str) -> str | None:
        for name, mapped in self.column_by_field.items():
            if mapped == column:
                return name
        found = _FIELDS.get(normalize_name(column))
        return None if found in self.column_by_field else found

    def _unknown_member(self, member: str, members: Iterable[str]) -> dict[str, str]:
        """Return the problem of a member without a field. Its name is not printed if it may be a value."""
        if is_like_value(member) or not any(map(self._field_of, members)):
            return {"": _UNPRINTED}
        return {member: _UNKNOWN.format(kind="member")}

    def _convert(self, parsed: ParsedRow) -> StatedRow | list[InputProblem]:
        if parsed.problem:
            return [self.table.problem(parsed.problem, parsed.line)]
        values: dict[str, Any] = {}
        messages: dict[str, str] = {}
        for column, value in parsed.members.items():
            name = self._field_of(column)
            if name is None:
                if not self.ignore_unknown and self.table.columns is None:
                    messages |= self._unknown_member(column, parsed.members)
            elif value is not None and value != "":
                if name in values:
                    messages[name] = "appears twice, under two names"
                values[name] = value
        messages |= _text_problems(values)
        for problem in check_fiscal_code(values.get("fiscal_code", "")):
            is_missing = "fiscal_code" not in values
            messages["fiscal_code"] = "is missing" if is_missing else problem.message
        try:
            state = _state_of(values)
        except CellError as error:
            messages["outcome"] = str(error)
        if messages:
            return [self.table.problem(text, parsed.line, "", name) for name, text in messages.items()]
        return StatedRow(
            parsed.line,
            normalize_fiscal_code(values["fiscal_code"]),
            state,
            values.get("scope", ""),
            values.get("order_token"),
            values.get("note", "").strip(),
        )


def _text_problems(values: Mapping[str, object]) -> dict[str, str]:
    texts = {name: values[name] for name in ("scope", "order_token", "note") if name in values}
    problems = {name: "must be text" for name, value in texts.items() if not isinstance(value, str)}
    if (wrong := problem_of_note(texts.get("note", ""))) is not None:
        problems.setdefault("note", wrong)
    return problems


def _state_of(values: Mapping[str, object]) -> State:
    """Return the stated outcome of a row, from its field `outcome` or `approved`.

    Raises:
        CellError: The row states no outcome, or two.
    """
    if "outcome" in values and "approved" in values:
        raise CellError("the row has both outcome and approved; leave one of them empty")
    if "approved" in values:
        approved = to_bool(values["approved"])
        if isinstance(approved, bool):
            return State.APPROVED if approved else State.REFUSED
        raise CellError("approved must be true or false")
    outcome = values.get("outcome")
    text = outcome.strip().casefold() if isinstance(outcome, str) else ""
    found = _OUTCOMES.get(_BETWEEN_WORDS.sub("", text))
    if found is None:
        raise CellError("must be approved, refused or not_evaluated")
    return found


_UNKNOWN = (
    "unknown {kind}. Map it, for example --column scope=NAME, or skip unknown {kind}s: --ignore-unknown"
)
_UNPRINTED = (
    "unknown members, not printed because their names may be values; write names such as fiscal_code, or map "
    "them: --column FIELD=NAME"
)
_NO_COLUMN = "no column for this field; if it has another name, add --column {name}=NAME"
