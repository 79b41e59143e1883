"""Where something was made, for the warning about what was left open or unread."""

import sys
import warnings
from collections.abc import Callable

__all__ = ["line_outside", "made_here"]


def line_outside() -> tuple[str, int]:
    """File and number of the line outside this package that is running now.

    These are kept, and no frame, which would keep all of its variables.
    """
    frame = sys._getframe(1)  # noqa: SLF001  (as warnings and logging do; a traceback costs a hundred times more)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("loanasync."):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    del frame
    return file, line


def made_here() -> Callable[[], None]:
    """Remember the line outside this package that is running now; call the result to warn of it."""
    file, line = line_outside()

    def warn() -> None:
        warnings.warn_explicit(
            "a LoanClient made here was left open: close it with aclose(), or use it as a context manager",
            ResourceWarning,
            file,
            line,
        )

    return warn
