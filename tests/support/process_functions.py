"""What another process does with a value; it is found there by this module's name."""

from typing import Any

from loanasync import LoanError


def again(value: Any) -> Any:
    """Hand it back."""
    return value


def fail(error: LoanError) -> None:
    """Raise it, with a note."""
    error.add_note("seen by worker 7")
    raise error
