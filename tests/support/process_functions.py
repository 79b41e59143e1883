"""Functions that a spawned process runs; it imports them from this module."""

from typing import Any

from loanasync import LoanError


def again(value: Any) -> Any:
    """Return the value."""
    return value


def fail(error: LoanError) -> None:
    """Raise the error with a note."""
    error.add_note("seen by worker 7")
    raise error
