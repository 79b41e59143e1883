"""The rows of IN, read as the options and the mapping file say."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loanasync.bulk import InputRows
from loanasync.bulk.columns import Headings, headings
from loanasync.bulk.records import Records, input_error


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
    members = tables.get("members", {})
    is_valid = isinstance(members, dict) and all(isinstance(each, str) and each for each in members.values())
    if not is_valid or "fiscalCode" in members:
        message = "[members] has the columns of other members than fiscalCode, each in quotes"
        raise input_error(str(mapping), message)
    found = headings(tables.get("columns"), tables.get("ignore", []), str(mapping))
    only_sent = [column for column in members.values() if found.field_of(column) is None]
    rows = InputRows(
        Records(file, encoding),
        Headings(found.columns, [*found.ignore, *only_sent]),
        members=tuple(members.values()),
        **options,
    )
    if missing := [
        each for each in members.values() if rows.columns is not None and each not in rows.columns
    ]:
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
