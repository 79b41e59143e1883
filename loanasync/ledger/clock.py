"""The clock of a ledger in a file, which does not move when the clock of the machine is set."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection

NOW = "ledger_now()"  # a function of each connection that `keep_time` was given
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes until the machine restarts
_TABLE = "CREATE TABLE IF NOT EXISTS clock (boot TEXT NOT NULL, start REAL NOT NULL)"
_LEASES = "SELECT max(expires) FROM decisions WHERE state = 'inflight'"


def keep_time(connection: Connection) -> None:
    """Give a connection the function ``ledger_now()``: seconds since 1970 by the ledger's clock.

    The time of day is read once after the machine started, and written to the file. From there all
    processes count the seconds that the machine runs. On systems other than Linux, where no file names the
    start of the machine, it is the time of day.

    Call it within a write transaction.
    """
    boot = None
    with suppress(OSError):
        boot = _BOOT.read_text(encoding="ascii").strip()
    if not boot:
        connection.create_function("ledger_now", 0, _time_of_day)
        return
    start = _start(connection, boot)
    connection.create_function("ledger_now", 0, lambda: start + _running())


def _time_of_day() -> float:
    return datetime.now(UTC).timestamp()


def _running() -> float:
    """Return the seconds for which the machine has run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _start(connection: Connection, boot: str) -> float:
    """Return the time at which the machine started, by the ledger's clock."""
    run = connection.execute
    run(_TABLE)
    starts = dict(run("SELECT boot, start FROM clock").fetchall())
    if boot in starts:
        return float(starts[boot])
    now = _time_of_day()
    if starts:  # the owners of all leases ended with the machine, also if its clock was set back since then
        now = max(now, run(_LEASES).fetchone()[0] or 0.0)
    run("DELETE FROM clock")
    start = now - _running()
    run("INSERT INTO clock VALUES (?, ?)", (boot, start))
    return start
