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
    DEADLINE = 124
    """``--deadline`` has passed before the end, as with the command ``timeout``. The same command resumes."""
    INTERRUPTED = 130
    """Stopped before the end by a person or a failing file. The same command resumes."""
