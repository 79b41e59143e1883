"""How a command ended, for the shell."""

from enum import IntEnum


class Exit(IntEnum):
    """A refusal is a decision; what is interrupted can be gone on with."""

    DECIDED = 0
    FAILED = 1
    NOTHING_SENT = 2
    UNKNOWN = 3
    INTERRUPTED = 130
