"""Progress and summary of `approve-many`."""

from types import SimpleNamespace

import pytest

from loanasync.cli.approve_many.report import Counts, progress_lines


def test_progress_lines_show_the_rate_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, counts = [0.0], Counts()
    monkeypatch.setattr("loanasync.cli.approve_many.report.time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress_lines(counts, 3_000) as update:
        for now[0], done in ((5.0, 100), (10.0, 250), (12.0, 300), (100.0, 1_500), (101.0, 3_000)):
            counts.rows["approved"] = done
            update()
    assert capsys.readouterr().err.splitlines() == [
        "250 of 3,000 rows: 250 approved, 0 refused; 25 rows/s; about 110 s left",
        "1,500 of 3,000 rows: 1,500 approved, 0 refused; 15 rows/s; about 100 s left",
        "3,000 of 3,000 rows: 3,000 approved, 0 refused; 30 rows/s",
    ]


def test_progress_without_a_result_has_no_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("loanasync.cli.approve_many.report.time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress_lines(Counts(), 3) as update:
        now[0] = 10.0
        update()
    assert capsys.readouterr().err.splitlines() == ["0 of 3 rows: 0 approved, 0 refused; 0.0 rows/s"] * 2


def test_table_has_the_statuses_that_rows_have() -> None:
    counts = Counts()
    record = {"sent": True, "amount_cents": 123_450, "error": None}
    for status in ("approved", "approved", "refused"):
        counts.add({**record, "status": status})
    assert counts.table("results").splitlines() == [
        "results                      rows  sent now            euro",
        "approved                        2         2        2,469.00",
        "refused                         1         1        1,234.50",
        "total                           3         3        3,703.50",
    ]
