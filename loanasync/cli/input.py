"""The options with which commands read rows."""

import os
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from attrs import field, frozen

from loanasync import Dialect, LoanClient
from loanasync.bulk import InputRows, read
from loanasync.bulk.problems import input_error
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
        mapping: Path of a mapping file.
        encoding: Text encoding.
        euro: Amounts without a currency sign are in euro.
        dialect: The dialect of the requests.
        ignore: Columns that are not read.
    """

    file: str
    mapping: str | None
    encoding: str
    euro: bool
    dialect: DialectName = field(converter=DialectName)
    ignore: Sequence[str] = ()

    def rows(self) -> InputRows:
        """Return the rows of the file.

        Raises:
            InputError: The file or the mapping cannot be used.
        """
        tables = {} if self.mapping is None else _load_mapping(self.mapping)
        tables["ignore"] = [*tables.get("ignore", ()), *self.ignore]
        return read(self.file, **tables, encoding=self.encoding, euro=self.euro, check=offline_client().check)


def _load_mapping(path: str) -> dict[str, Any]:
    """Return the tables of a mapping file in TOML: ``columns`` and ``ignore``.

    Raises:
        InputError: The file cannot be used.
    """
    try:
        tables = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
        if not (wrong := tables.keys() - {"columns", "ignore"}):
            return tables
        reason = f"unknown {', '.join(sorted(wrong))}; use [columns] and ignore"
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except (ValueError, RecursionError) as error:
        reason = f"is not valid TOML in UTF-8: {type(error).__name__}"
    raise input_error(path, reason)


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
