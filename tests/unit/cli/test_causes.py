"""Messages about rows, grouped by cause."""

import pytest

from loanasync.cli.approve_many.causes import Causes


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
