"""Progress, summary and causes of `approve-many`."""

from types import SimpleNamespace

import pytest

from loanasync.cli.approve_many.report import Causes, Counts, progress_lines


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


def printed(capsys: pytest.CaptureFixture[str], causes: Causes) -> list[str]:
    causes.print()
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        (("line 7 of 9", "line 12 of 9"), "line … of 9"),
        (("try at 2026-11-23T02:17:50 again", "try at 2026-11-24T03:00:00 again"), "try at …:…:… again"),
        (("id 0f8fad5b-d9cb-469f-a165-70867728950e!", "id 7c9e6679-7425-40de-944b-e07fc1f90ae7!"), "id …!"),
        (("amount 5", "amount 5"), "amount 5"),
    ],
)
def test_messages_that_differ_in_numbers_and_ids_are_one_cause(
    capsys: pytest.CaptureFixture[str], messages: tuple[str, ...], shown: str
) -> None:
    causes = Causes()
    for number, message in enumerate(messages, 1):
        causes.add("field", message, number)
    assert printed(capsys, causes) == [f"2 × field: {shown} (lines 1 and 2)"]


def test_most_frequent_causes_are_printed_and_the_others_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    causes = Causes()
    for row in range(1, 2_001):
        causes.add("", "x" * row, row)
    for row in (900, 1_900):  # of the second one, no text is kept
        causes.add("", "x" * row, 3_000)
    first, *others, last = printed(capsys, causes)
    assert first == f"2 × {'x' * 900} (lines 900 and 3,000)"
    assert (len(others), last, causes.count) == (19, "and 1,981 others", 2_002)
    assert len(causes._causes) == 1_000


def test_long_word_without_a_number_is_searched_only_once() -> None:
    """A search from each letter would take hours."""
    causes = Causes()
    causes.add("field", "a" * 1_000_000, 0)
    assert causes.count == 1


def test_cause_has_the_first_rows_of_the_file_in_any_order_of_arrival(
    capsys: pytest.CaptureFixture[str],
) -> None:
    causes = Causes()
    for row in (9, 4, 7, 1, 8, 2):
        causes.add("field", "amount", row)
    assert printed(capsys, causes) == ["6 × field: amount (lines 1, 2, 4 and 3 others)"]
