"""The progress display on a terminal and elsewhere, and the line with the duration."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from loanasync.bulk import Summary
from loanasync.cli.approve_many.report import duration_line, progress_display


def test_progress_on_a_terminal_is_a_bar() -> None:
    seen = io.StringIO()
    with progress_display(Console(file=seen, force_terminal=True, width=120), 1_000) as update:
        update(Summary(approved=990, refused=10))
    assert "990 approved, 10 refused" in seen.getvalue()
    assert "1000/1000" in seen.getvalue()


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("loanasync.cli.approve_many.report.time", SimpleNamespace(monotonic=lambda: now[0]))
    seen = io.StringIO()
    with progress_display(Console(file=seen, width=120), 12_000) as update:
        for seconds in range(25):
            now[0] = seconds
            update(Summary(approved=100 * seconds))
    assert seen.getvalue().splitlines() == [
        "1,000 of 12,000 rows: 1,000 approved, 0 refused",
        "2,000 of 12,000 rows: 2,000 approved, 0 refused",
    ]


def test_duration_line_has_latencies_only_with_decisions() -> None:
    summary = Summary(refused=1, elapsed=1.25, latency_50=0.000544, latency_99=0.0214)
    assert duration_line(summary, has_decisions=False) == "1.2 s"
    assert duration_line(summary, has_decisions=True) == (
        "1.2 s; half of the decisions arrived within 1 ms, 99 % within 21 ms"
    )
    slow = Summary(refused=1, elapsed=12, latency_50=1.2345, latency_99=10.5432)
    assert duration_line(slow, has_decisions=True) == (
        "12.0 s; half of the decisions arrived within 1.2 s, 99 % within 10.5 s"
    )
