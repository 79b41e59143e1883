"""Messages about rows, grouped by cause."""

import pytest

from loanasync.cli.causes import CauseTally


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        (("line 7 of 9", "line 12 of 9"), "line … of 9"),
        (("try at 2026-11-23T02:17:50 again", "try at 2026-11-24T03:00:00 again"), "try at …:…:… again"),
        (("id 0f8fad5b-d9cb-469f-a165-70867728950e!", "id 7c9e6679-7425-40de-944b-e07fc1f90ae7!"), "id …!"),
        (("entry 491687359f07", "entry c7ee1cbfc005", "entry c7ee1cbfc005"), "entry …"),
        (("amount 5", "amount 5"), "amount 5"),
    ],
)
def test_messages_that_differ_in_numbers_and_ids_are_one_cause(messages: tuple[str, ...], shown: str) -> None:
    tally: CauseTally[str] = CauseTally()
    for number, message in enumerate(messages):
        tally.add("field", message, number)
    (cause,) = tally.causes()
    assert (cause.kind, cause.text, cause.count) == ("field", shown, len(messages))


def test_tally_counts_causes_after_a_thousand_as_other_causes() -> None:
    tally: CauseTally[str] = CauseTally()
    for row in range(3_000):
        letters = f"{row:012b}".translate({ord("0"): "a", ord("1"): "b"})
        tally.add("field", f"{letters} in row {row}", row)
    tally.add("field", "aaaaaaaaaaaa in row 3000", 3_000)
    largest, second, *others = tally.causes()
    assert (largest.text, largest.count, largest.rows) == ("other causes", 2_000, [1_000, 1_001, 1_002])
    assert (second.text, second.count) == ("aaaaaaaaaaaa in row …", 2)
    assert len(others) == 999


def test_long_word_without_a_number_is_searched_only_once() -> None:
    """A search from each letter would take hours."""
    tally: CauseTally[str] = CauseTally()
    tally.add("field", "a" * 1_000_000, 0)
    assert [cause.count for cause in tally.causes()] == [1]


def test_group_has_the_first_rows_of_the_file_in_any_order_of_arrival() -> None:
    tally: CauseTally[str] = CauseTally()
    for row in (9, 4, 7, 1, 8, 2):
        tally.add("field", "amount", row)
    (cause,) = tally.causes()
    assert cause.rows == [1, 2, 4]
