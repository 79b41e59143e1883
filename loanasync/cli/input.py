"""The options with which commands read rows."""

import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from loanasync import Dialect, LoanClient
from loanasync.bulk import InputRows, read
from loanasync.bulk.problems import input_error


class DialectName(StrEnum):
    """The values of ``--dialect``: the name of the street number in each description of the call."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def dialect_of(name: DialectName) -> Dialect:
    """Return the dialect of a name."""
    is_street = name is DialectName.STREET_NUMBER
    return Dialect.street_number() if is_street else Dialect.civic_number()


def offline_client() -> LoanClient:
    """Return a client for `LoanClient.check` only. Its address and credentials are made up."""
    return LoanClient("http://localhost", shop_id="none", auth_token="none")  # noqa: S106  (made up)


def rows_of(
    file: str, mapping: str | None, *, ignore: Sequence[str], required: Sequence[str], **options: Any
) -> InputRows:
    """Return the rows of a file.

    Args:
        file: Path of the file; ``-`` is standard input.
        mapping: Path of a mapping file.
        ignore: Columns that are not read, besides those of the mapping.
        required: Fields that each row must have.
        options: Other options of `loanasync.bulk.read`.

    Raises:
        InputError: The file or the mapping cannot be used.
    """
    tables = {} if mapping is None else _load_mapping(mapping)
    tables["ignore"] = [*tables.get("ignore", ()), *ignore]
    return read(file, **tables, required=required, check=offline_client().check, **options)


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
