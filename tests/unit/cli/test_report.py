"""The progress of a run where there is no terminal."""

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from loanasync.cli.approve_many.job import Counts, Kind
from loanasync.cli.approve_many.report import progress_display


def test_progress_lines_show_the_rate_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    timer = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("loanasync.cli.approve_many.report.time", timer)
    # FORCE_COLOR has the same effect.
    console, counts = Console(file=StringIO(), force_terminal=True), Counts()
    with progress_display(console, counts, 1_000) as update:
        for clock.now, finished in ((9.0, 5), (10.0, 25), (19.0, 30), (20.0, 400)):
            counts.rows[Kind.APPROVED] = finished
            update(finished)
        clock.now, counts.rows[Kind.REFUSED] = 40.0, 600
        update(1_000)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "25 of 1,000 rows: 25 approved, 0 refused, 0 unknown, 0 failed; 2.5 rows/s; about 6 min left",
        "400 of 1,000 rows: 400 approved, 0 refused, 0 unknown, 0 failed; 20 rows/s; about 30 s left",
        *["1,000 of 1,000 rows: 400 approved, 600 refused, 0 unknown, 0 failed; 25 rows/s"] * 2,
    ]
