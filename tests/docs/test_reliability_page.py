"""The reliability page says what the tests play, and leaves no kind of failure out."""

import re

from faults_page import PAGE, ROWS, with_tables
from loanasync import DeadlineExceededError, LoanError, PoolTimeoutError, TransportError, errors


def test_the_page_has_the_rows_that_are_played() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "python docs/_generate/faults_page.py --write"


def test_a_row_is_found_by_its_name() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    shown = re.search(r"-k ([a-z-]+)", PAGE.read_text(encoding="utf-8"))
    assert shown
    assert shown[1] in names


def test_every_way_to_get_no_answer_is_on_the_page() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LoanError)}
    silent = {kind for kind in kinds if issubclass(kind, TransportError)} - {TransportError}
    # These two are made by the SDK's own clock and counter; they are told of, and tried with the pipeline.
    assert silent - {row.comes.error for row in ROWS} == {PoolTimeoutError, DeadlineExceededError}
    page = PAGE.read_text(encoding="utf-8")
    assert not [kind for kind in silent if f"`{kind.__name__}`" not in page]
