"""Exit codes of the commands."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. A refusal is a decision; an interrupted command can be resumed."""

    DECIDED = 0
    FAILED = 1
    NOTHING_SENT = 2
    UNKNOWN = 3
    INTERRUPTED = 130
