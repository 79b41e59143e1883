"""Exit codes of the commands."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. A refusal is a decision; an interrupted command can be resumed."""

    DECIDED = 0
    """Success: everything is decided, settled or valid."""
    FAILED = 1
    """Something failed, and nothing is unknown."""
    NOTHING_SENT = 2
    """Options or input are wrong. Nothing was sent or changed."""
    UNKNOWN = 3
    """Outcomes are unknown, or a queue has dead letters: a person has to act."""
    INTERRUPTED = 130
    """Stopped before the end. The same command resumes."""
