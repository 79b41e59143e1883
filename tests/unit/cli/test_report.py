"""Progress of `approve-many` without a terminal."""

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from loanasync.cli.approve_many.report import Counts, progress_display


def test_progress_lines_show_the_rate_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("loanasync.cli.approve_many.report.time", SimpleNamespace(monotonic=lambda: now[0]))
    shown, counts = StringIO(), Counts()
    with progress_display(Console(file=shown, width=200), counts, 3_000) as update:
        for now[0], done in ((5.0, 100), (10.0, 250), (12.0, 300), (100.0, 1_500), (101.0, 3_000)):
            counts.rows["approved"] = done
            update()
    assert shown.getvalue().splitlines() == [
        "250 of 3,000 rows: 250 approved, 0 refused; 25 rows/s; about 110 s left",
        "1,500 of 3,000 rows: 1,500 approved, 0 refused; 15 rows/s; about 100 s left",
        "3,000 of 3,000 rows: 3,000 approved, 0 refused; 30 rows/s",
    ]
