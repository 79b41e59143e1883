"""Lines of Python that an act runs: a measure of its work that does not depend on the machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["lines_run"]


def lines_run(act: Callable[[], object]) -> int:
    """Return how many lines of Python an act runs, in all modules."""
    count = 0

    def note(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
