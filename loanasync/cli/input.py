"""The options with which commands read rows."""

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from loanasync import Dialect, LoanClient
from loanasync.bulk import InputRows
from loanasync.bulk.columns import headings
from loanasync.bulk.problems import input_error
from loanasync.bulk.records import Records


class DialectName(StrEnum):
    """The values of ``--dialect``: the name of the street number in each description of the call."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def dialect_of(name: DialectName) -> Dialect:
    """Return the dialect of a name."""
    is_street = name is DialectName.STREET_NUMBER
    return Dialect.street_number() if is_street else Dialect.civic_number()


def rows_of(
    file: str, mapping: str | None, *, encoding: str, **options: Any
) -> tuple[InputRows, Mapping[str, str]]:
    """Return the rows of a file, and the columns by member of the body of a creation.

    Args:
        file: Path of the file; ``-`` is standard input.
        mapping: Path of a mapping file in TOML: ``ignore``, ``columns`` and ``members``.
        encoding: Text encoding of the file.
        options: Other options of `InputRows`.

    Raises:
        InputError: The file or the mapping cannot be used.
    """
    tables = {} if mapping is None else _load_mapping(mapping)
    members = tables.pop("members", {})
    is_valid = isinstance(members, dict) and all(isinstance(each, str) and each for each in members.values())
    if not is_valid or "fiscalCode" in members:
        message = "[members] has the columns of other members than fiscalCode, each in quotes"
        raise input_error(str(mapping), message)
    columns, ignore, member_columns = tables.get("columns"), tables.get("ignore", []), members.values()
    if isinstance(ignore, list):
        known = headings(columns, (), str(mapping))
        ignore = [*ignore, *(each for each in member_columns if known.field_of(each) is None)]
    # Only its check is used: the address and the credentials are made up.
    client = LoanClient("http://localhost", shop_id="none", auth_token="none")  # noqa: S106  (made up)
    records = Records(file, encoding)
    found = headings(columns, ignore, records.name)
    rows = InputRows(records, found, **options, check=client.check, members=tuple(member_columns))
    missing = [] if rows.columns is None else [each for each in member_columns if each not in rows.columns]
    if missing:
        raise input_error(str(mapping), f"[members]: the file has no column {missing[0]!r}")
    return rows, members


def _load_mapping(path: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
        if not (wrong := tables.keys() - {"columns", "ignore", "members"}):
            return tables
        reason = f"unknown {', '.join(sorted(wrong))}; use [columns], [members] and ignore"
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except (ValueError, RecursionError) as error:
        reason = f"is not valid TOML in UTF-8: {type(error).__name__}"
    raise input_error(path, reason)
