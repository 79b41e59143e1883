"""Which processor core a process works on, so that what is measured and what it talks to never share one."""

import os
import sys

__all__ = ["CORES", "pin"]

CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def pin(pid: int, core: int) -> None:
    """Keep a process on one core, where the system lets us, and there are two."""
    if sys.platform == "linux" and len(CORES) > 1:
        os.sched_setaffinity(pid, {CORES[core]})
