"""Tests of docs/reference/errors.md: the classes have the values of its table, and it names every class."""

import re

import pytest

from errors_page import ABSTRACT, ROWS, Row
from loanasync import Approved, Meta, Refused, errors
from loanasync.bulk import Row as BulkRow
from loanasync.bulk import RowResult
from loanasync.bulk.rows import result_of
from support.builders import FISCAL_CODE, approval_request
from support.pages import ROOT


def test_errors_page_names_every_error_that_a_call_raises() -> None:
    shown = {type(row.error) for row in ROWS}
    assert shown == {getattr(errors, name) for name in errors.__all__} - set(ABSTRACT)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.after_fault], ids=lambda row: f"{type(row.error).__name__}: {row.when}"
)
def test_error_after_a_fault_is_unknown_as_the_page_says(row: Row) -> None:
    error = row.after_fault
    assert error is not None
    decided = isinstance(error, errors.AlreadyEvaluatedError)
    page = "already_decided" if decided else "ask_service"
    assert (error.outcome, error.repeatable, error.advice) == ("unknown", False, page)


BULK_PAGE = (ROOT / "docs" / "howto" / "bulk.md").read_text(encoding="utf-8")


def documented_outcomes(table: str) -> dict[str, set[str]]:
    """Return the outcomes by status in a table of a page or docstring. A line may continue the last one."""
    found: dict[str, set[str]] = {}
    status = ""
    for line in table.splitlines():
        first, outcomes, *_ = [*re.split(r" ?\| ?|  +", line.strip("| ")), ""]
        if re.fullmatch("`+[a-z_]+`+", first):
            status = first.strip("`")
        else:
            outcomes = first
        found.setdefault(status, set()).update(re.findall(r"\w+", outcomes))
    return found


@pytest.mark.parametrize(
    "table",
    [
        re.search(r"\| status \| outcome .*\n\|---.*\n((?:\|.*\n)+)", BULK_PAGE),
        re.search(r"status        outcome .*\n *=+ .*\n((?:.*\n)+?) *=====", RowResult.__doc__ or ""),
    ],
    ids=["bulk.md", "RowResult"],
)
def test_status_table_has_the_outcomes_of_the_errors(table: re.Match[str]) -> None:
    meta = Meta(201, 1, 0.1)
    ends: list[Approved | Refused | errors.LoanError] = [Approved(meta=meta), Refused(meta=meta)]
    ends += (each for row in ROWS for each in row.examples if each.operation != "complete")
    found: dict[str, set[str]] = {}
    for end in ends:
        result = result_of(0, BulkRow(FISCAL_CODE, approval_request()), end)
        found.setdefault(result.status, set()).add(result.outcome)
    assert documented_outcomes(table[1]) == found
