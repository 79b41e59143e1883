"""Number of Python lines that a function runs, a measure of work that does not depend on the machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], object]) -> int:
    """Return the number of Python lines that a call of the function runs, in all modules."""
    count = 0

    def count_line(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return count_line

    before = sys.gettrace()
    sys.settrace(count_line)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
