"""Removal of superseded lines from a results file, so that each row has one line after any number of runs."""

import os
import shutil
import tempfile
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path

from loanasync._validation.rules import normalize_fiscal_code
from loanasync.cli.approve_many.results import DECIDED, Format
from loanasync.cli.console import print_message
from loanasync.cli.rows.append import AppendFile, read_lines

_NOT_EVALUATED = ("not_sent", "not_evaluated")


def keep_final_lines_if_possible(path: str, form: Format, earlier_lines: int) -> None:
    """Call `keep_final_lines`. If the file cannot be replaced, print the reason."""
    try:
        keep_final_lines(path, form, earlier_lines)
    except OSError as error:
        print_message(
            f"{path} keeps earlier lines ({error.strerror}): the last line of a row counts. "
            "The next run removes the others",
            "bold",
        )


def keep_final_lines(path: str, form: Format, earlier_lines: int) -> None:
    """Remove the lines that later ones have superseded.

    The file is replaced as a whole: after a kill it is the old one or the new one.

    Args:
        path: Path of the results.
        form: Their format.
        earlier_lines: Number of lines that the file had before this run.

    Raises:
        OSError: The file cannot be replaced. It is unchanged.
    """
    superseded = _superseded_lines(path, form, earlier_lines)
    if not superseded:
        return
    path = os.path.realpath(path)  # a link stays a link
    folder, name = os.path.split(path)
    # A new name: with a fixed one, a link or another file of the user would be overwritten.
    handle, prepared = tempfile.mkstemp(
        prefix=f"{name}.", suffix=".new.gz" if path.endswith(".gz") else ".new", dir=folder
    )
    os.close(handle)
    try:
        with closing(AppendFile(prepared, overwrite_with="")) as file:
            for number, line in enumerate(read_lines(path)):
                if number not in superseded:
                    file.add(line + "\n")
            file.sync()
        shutil.copymode(path, prepared)
        Path(prepared).replace(path)
    except OSError:
        with suppress(OSError):
            Path(prepared).unlink()
        raise


def _superseded_lines(path: str, form: Format, earlier_lines: int) -> Collection[int]:
    """Return the numbers of the lines, from 0, that are not the final ones of their rows.

    A line is superseded by a later one of the same customer. A decision is superseded only by another
    decision or by a line of this run, because a run adds such a line only if the ledger was corrected.

    A row that was not evaluated may have a wrong fiscal code, so its line is also superseded by a later line
    with the same line number and id. In a later run, the same id is enough.
    """
    superseded: set[int] = set()
    decided: set[int] = set()
    unevaluated: set[int] = set()
    by_customer: dict[str, int] = {}
    by_row: dict[tuple[str, str], int] = {}
    earlier_by_id: dict[str, list[int]] = {}  # unevaluated lines of earlier runs
    for number, line in enumerate(read_lines(path)):
        if number == 0 and line == form.header.rstrip("\n"):
            continue
        record = form.record(line)
        if customer := normalize_fiscal_code(record.get("fiscal_code", "")):
            is_decided = record["status"] in DECIDED
            previous = by_customer.get(customer, -1)
            if previous in decided and not is_decided and number < earlier_lines:
                superseded.add(number)
                continue
            superseded.add(previous)
            by_customer[customer] = number
            if is_decided:
                decided.add(number)
        row_id = str(record.get("id", ""))
        row = (str(record.get("line")), row_id)
        if (previous := by_row.get(row, -1)) in unevaluated:
            superseded.add(previous)
        by_row[row] = number
        if number >= earlier_lines:
            superseded.update(earlier_by_id.pop(row_id, ()))
        if record["outcome"] in _NOT_EVALUATED:
            unevaluated.add(number)
            if row_id and number < earlier_lines:
                earlier_by_id.setdefault(row_id, []).append(number)
    return superseded - {-1}
