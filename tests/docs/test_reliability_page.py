"""Tests of docs/contributing/reliability.md: its tables are up to date, and have each transport error."""

import re

from faults_page import PAGE, ROWS, with_tables
from loanasync import DeadlineExceededError, LoanError, PoolTimeoutError, TransportError, errors


def test_fault_tables_are_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "python docs/_generate/faults_page.py --write"


def test_fault_row_names_are_unique_and_the_example_exists() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    example = re.search(r"-k ([a-z-]+)", PAGE.read_text(encoding="utf-8"))
    assert example
    assert example[1] in names


def test_each_transport_error_is_in_a_row() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LoanError)}
    times_out = {kind for kind in kinds if issubclass(kind, TransportError)} - {TransportError}
    # The clock and the slots of the SDK raise these two; tests of the pipeline cover them.
    assert times_out - {row.expected.error for row in ROWS} == {PoolTimeoutError, DeadlineExceededError}
