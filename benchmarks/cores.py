"""Pinning of processes to CPU cores, so that a client and its server do not share one."""

import os
import sys

CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def pin(pid: int, core: int) -> None:
    """Pin a process to one core, if the system supports it and has at least two."""
    if sys.platform == "linux" and len(CORES) > 1:
        os.sched_setaffinity(pid, {CORES[core]})
