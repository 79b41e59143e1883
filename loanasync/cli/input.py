"""The options with which commands read rows."""

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from attrs import field, frozen

from loanasync import Dialect, LoanClient
from loanasync.bulk import InputRows, read
from loanasync.bulk.columns import FIELDS, load_mapping
from loanasync.bulk.records import STANDARD_INPUT


class DialectName(StrEnum):
    """The values of ``--dialect``: the name of the street number in each description of the call."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def dialect_of(name: DialectName) -> Dialect:
    """Return the dialect of a name."""
    is_street = name is DialectName.STREET_NUMBER
    return Dialect.street_number() if is_street else Dialect.civic_number()


def absolute(name: str) -> str:
    """Return the absolute path of an input, or the name of standard input."""
    return name if name in ("-", STANDARD_INPUT) else str(Path(name).absolute())


def source_of(name: str) -> str:
    """Return the name of an input in a job: its absolute path, with other bytes than UTF-8 escaped."""
    return os.fsencode(absolute(name)).decode(errors="backslashreplace")


def offline_client() -> LoanClient:
    """Return a client for `LoanClient.check` only. Its address and credentials are made up."""
    return LoanClient("http://localhost", shop_id="none", auth_token="none")  # noqa: S106  (made up)


@frozen
class Reading:
    """The input of a run and the options with which it is read. The job keeps them for its exports.

    Args:
        file: Path of the file; ``-`` is standard input.
        column: Values of ``--column``, which win over the mapping.
        mapping: Path of a mapping file.
        euro: Amounts without a currency sign are in euro.
        ignore_unknown: Skip unknown columns and members.
        dialect: The dialect of the requests.
    """

    file: str
    column: Sequence[str]
    mapping: str | None
    euro: bool
    ignore_unknown: bool
    dialect: DialectName = field(converter=DialectName)

    def rows(self) -> InputRows:
        """Return the rows of the file.

        Raises:
            InputError: The file or the mapping cannot be used.
            typer.BadParameter: A value of ``--column`` is wrong.
        """
        tables: dict[str, Any] = {} if self.mapping is None else load_mapping(self.mapping)
        if own := _columns(self.column):
            named = tables.get("columns", {})
            tables["columns"] = {name: each for name, each in named.items() if each not in own.values()} | own
        if self.euro:
            tables["amounts"] = "euro"
        if self.ignore_unknown:
            tables["ignore"] = [*tables.get("ignore", ()), "*"]
        return read(self.file, tables, check=offline_client().check)


def _columns(options: Sequence[str]) -> dict[str, str]:
    """Return the column by field from the values of ``--column``."""
    columns = named_columns(options, "--column", "FIELD=NAME")
    for name in columns:
        if name not in FIELDS:
            known = ", ".join(sorted(FIELDS))
            raise typer.BadParameter(f"unknown field '{name}'; the fields are {known}", param_hint="--column")
    return columns


def named_columns(values: Sequence[str], option: str, form: str) -> dict[str, str]:
    """Return the column by name from the values of an option, such as ``amount=Importo``.

    Raises:
        typer.BadParameter: A value has another form.
    """
    columns = {}
    for value in values:
        name, _, column = value.partition("=")
        if not name or not column:
            raise typer.BadParameter(f"'{value}' must be {form}", param_hint=option)
        columns[name] = column
    return columns
