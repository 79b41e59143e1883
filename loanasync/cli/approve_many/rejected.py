"""The file of ``--rejected``: rows that may be sent again after a correction, with line and reason."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path

from loanasync.bulk import FileRow, InputRows
from loanasync.bulk.columns import REASON_NAME
from loanasync.cli.approve_many.results import csv_line, reason_of, record_of
from loanasync.cli.console import print_message
from loanasync.cli.files import create_private, has_content, write_whole
from loanasync.cli.ledger.open import UnusableError

_MARK = "\ufeff"  # Excel, and `read`, then read the file as UTF-8
_BEGIN = 1_000_000  # characters that are searched for the name of the first column


def write_invalid(path: str, rows: InputRows) -> None:
    """Write the rows with problems.

    Raises:
        OSError: The file cannot be written.
        UnusableError: The file contains something else.
    """
    keep_earlier(path, rows)
    write_whole(path, rejected_lines(rows, lambda _: None))


def keep_earlier(path: str, rows: InputRows) -> None:
    """Rename an earlier file of rejected rows: a person may have corrected rows in it.

    Raises:
        OSError: The file cannot be written.
        UnusableError: The file contains something else.
    """
    create_private(path)
    if not has_content(path):
        return
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            begin: str | None = file.read(_BEGIN)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        begin = None
    if begin == _header(rows):
        return
    if begin is None or REASON_NAME not in begin:
        raise UnusableError(f"{path} exists and contains no rejected rows: name another file for --rejected")
    names = (f"{path}.old{number}" for number in chain([""], count(2)))
    kept = next(name for name in map(Path, names) if not name.exists())
    Path(path).rename(kept)
    print_message(f"the earlier {path} is kept as {kept}")


def rejected_lines(rows: InputRows, reason: Callable[[FileRow], str | None]) -> Iterator[str]:
    """Yield the text of the file.

    Args:
        rows: The rows of the input.
        reason: Returns why a valid row was not evaluated; None if it must not be sent again.
    """
    yield _header(rows)
    for row in rows:
        text = reason_of(record_of(row, None)) if row.problems else reason(row)
        if text is not None:
            yield _line(rows, row, " ".join(text.splitlines()))


def _header(rows: InputRows) -> str:
    if rows.columns is None:
        return ""
    return _MARK + csv_line((REASON_NAME, *_columns(rows)), rows.delimiter)


def _columns(rows: InputRows) -> list[str]:
    return [name for name in rows.columns or () if name != REASON_NAME]


def _line(rows: InputRows, row: FileRow, reason: str) -> str:
    if rows.columns is None:
        return json.dumps({REASON_NAME: reason, **row.members}, ensure_ascii=False) + "\n"
    return csv_line((reason, *map(str, row.members.values())), rows.delimiter)
