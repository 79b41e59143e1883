"""The progress display on a terminal and elsewhere, and the line with the duration."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from loanasync.bulk import FailureGroup, Summary
from loanasync.cli.approve_many.report import (
    Plan,
    duration_line,
    failure_lines,
    progress_display,
    report_members,
)
from loanasync.cli.console import listed_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    seen = Terminal()
    with progress_display(Console(file=seen, width=120), 1_000) as update:
        update(Summary(approved=990, refused=7, rejected=1, unknown=1, error=1))
    assert "990 approved, 7 refused, 3 failed" in seen.getvalue()
    assert "1000/1000" in seen.getvalue()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the progress lines, as a list of one number."""
    now = [0.0]
    monkeypatch.setattr("loanasync.cli.approve_many.report.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(now: list[float]) -> None:
    seen = io.StringIO()
    with progress_display(Console(file=seen, width=20), 12_000) as update:
        for seconds in range(26):
            now[0] = seconds
            update(Summary(approved=seconds, refused=99 * seconds, error=seconds // 10))
    assert seen.getvalue().splitlines() == [
        "1,001 of 12,000 rows: 10 approved, 990 refused, 1 failed; 100 rows/s; about 110 s left",
        "2,002 of 12,000 rows: 20 approved, 1,980 refused, 2 failed; 100 rows/s; about 100 s left",
        "2,502 of 12,000 rows: 25 approved, 2,475 refused, 2 failed; 100 rows/s; about 95 s left",
    ]


@pytest.mark.parametrize(
    ("rows", "seconds", "end"),
    [
        (0, 10, "0 failed; 0.0 rows/s"),
        (5, 10, "0 failed; 0.5 rows/s; about 4 h left"),
        (50, 10, "0 failed; 5.0 rows/s; about 26 min left"),
        (8_000, 0, "0 failed; 80,000 rows/s"),
    ],
)
def test_progress_line_has_rate_and_remaining_time(
    now: list[float], rows: int, seconds: float, end: str
) -> None:
    seen = io.StringIO()
    with progress_display(Console(file=seen), 8_000) as update:
        now[0] = seconds
        update(Summary(approved=rows))
    assert seen.getvalue().splitlines()[-1].endswith(end)


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_progress_in_a_log_has_no_control_characters(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Servers that run jobs often set these variables."""
    monkeypatch.setenv(name, "1")
    seen = io.StringIO()
    console = Console(file=seen)
    assert console.is_terminal, "rich uses colours"
    with progress_display(console, 10) as update:
        update(Summary(approved=10))
    assert seen.getvalue() == "10 of 10 rows: 10 approved, 0 refused, 0 failed; 100 rows/s\n"


def test_progress_on_a_dumb_terminal_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    seen = Terminal()
    with progress_display(Console(file=seen), 10):
        pass
    assert seen.getvalue().startswith("0 of 10 rows")


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


@pytest.mark.parametrize(
    ("lines", "count", "text"),
    [
        ((7,), 1, "line 7"),
        ((3, 7), 2, "lines 3 and 7"),
        ((3, 7, 9), 3, "lines 3, 7 and 9"),
        ((3, 7, 9), 4, "lines 3, 7, 9 and 1 other"),
        ((3, 9, 7_000), 2_003, "lines 3, 9, 7,000 and 2,000 others"),
    ],
)
def test_listed_lines_names_the_first_and_counts_the_others(
    lines: tuple[int, ...], count: int, text: str
) -> None:
    assert listed_lines(lines, count) == text


@pytest.mark.parametrize(
    ("number", "end"), [(10, []), (11, ["and 1 other cause in out"]), (13, ["and 3 other causes in out"])]
)
def test_failure_lines_are_ten_and_a_count(number: int, end: list[str]) -> None:
    groups = [FailureGroup(f"Error{each}: no", 54, "unknown", (3, 7, 9)) for each in range(number)]
    first, *others = failure_lines(groups, "out")
    assert first == "54 × Error0: no (lines 3, 7, 9 and 51 others)"
    assert others[9:] == end


def test_report_has_the_causes_with_advice() -> None:
    groups = [
        FailureGroup("ConnectError: no", 3, "not_sent", (3, 7, 9)),
        FailureGroup("PayloadMismatchError: no", 1, "approved", (12,)),
    ]
    members = report_members(Summary(), groups, invalid=0, plan=Plan(), unsent=0)
    assert members["failures"] == [
        {
            "cause": "ConnectError: no",
            "count": 3,
            "outcome": "not_sent",
            "lines": (3, 7, 9),
            "advice": "correct the cause, then send these rows again",
        },
        {
            "cause": "PayloadMismatchError: no",
            "count": 1,
            "outcome": "approved",
            "lines": (12,),
            "advice": "the customers were decided before; do not send these rows again",
        },
    ]
