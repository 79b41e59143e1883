"""Exit codes of the commands."""

from collections.abc import Mapping
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. `MEANINGS` has the meaning of each one."""

    DECIDED = 0
    FAILED = 1
    NOTHING_SENT = 2
    UNKNOWN = 3
    LOCKED = 75  # EX_TEMPFAIL of sysexits.h
    INTERRUPTED = 130  # as of a process that Ctrl-C has ended


# The one table of exit codes, which the help and docs/reference/cli.md print.
MEANINGS: Mapping[Exit, str] = {
    Exit.DECIDED: "success: everything is decided (a refusal is a decision), resolved or valid",
    Exit.FAILED: "something failed, such as some rows, or a file on a full disk",
    Exit.NOTHING_SENT: "nothing was sent or done, because options or input are invalid",
    Exit.UNKNOWN: "outcomes are unknown, or a queue has dead letters: a person has to act",
    Exit.LOCKED: "another run of `approve-many` writes to the same file",
    Exit.INTERRUPTED: "interrupted by a person; run the same command to continue",
}
