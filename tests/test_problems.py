"""How much of a service's messages is read and shown, and what is left of a person where they are cut."""

import pytest

from loanasync import AlreadyEvaluatedError, DomainError, Problem, RejectedError
from loanasync._problems import personal_values, read_problems, rejection

READ, SHOWN, NAMED, MANY = 5000, 300, 60, 100


def message(text: str, *personal: str) -> str:
    [problem] = read_problems({"errors": {"city": text}}, personal)
    return problem.message


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * SHOWN, "x" * SHOWN),
        ("x" * (SHOWN + 1), "x" * (SHOWN - 1) + "…"),
        ("x" * READ, "x" * (SHOWN - 1) + "…"),
    ],
    ids=["as long as can be", "one too long", "much too long"],
)
def test_a_message_is_shown_up_to_its_limit(text: str, shown: str) -> None:
    assert message(text) == shown


def test_a_name_is_shown_up_to_its_limit() -> None:
    said = {"errors": {"n" * NAMED: "a", "m" * (NAMED + 1): "b"}}
    names = [each.wire_name for each in read_problems(said, ())]
    assert names == ["n" * NAMED, "m" * (NAMED - 1) + "…"]


def test_a_body_has_no_more_problems_than_the_limit() -> None:
    for said in (MANY, MANY + 1):
        assert len(read_problems({"errors": {"city": ["x"] * said}}, ())) == MANY


def short(hidden: str, length: int) -> str:
    """A text of this length that masking makes short, so that its end is shown."""
    return f"{hidden} " * (length // (len(hidden) + 1) - 1)


@pytest.mark.parametrize("longer", [0, 1])
def test_only_what_is_cut_loses_the_length_of_the_longest_value_at_its_end(longer: int) -> None:
    hidden = "h" * 99
    start = short(hidden, READ)
    text = start + "e" * (READ + longer - len(start))
    end = READ - len(start)
    left = "*** " * start.count(" ")
    assert message(text, hidden, "abcd") == left + ("e" * (end - 99) + "…" if longer else "e" * end)


def test_what_is_cut_without_a_value_to_hide_keeps_all_that_was_read() -> None:
    assert message(" " * READ + "x") == " " * (SHOWN - 1) + "…"


def test_what_is_cut_and_all_hidden_shows_nothing_but_that() -> None:
    assert message("h" * READ + " x", "h" * READ) == "…"


def test_the_longest_value_is_hidden_first() -> None:
    assert message("Piazza Prova", "Piazza Prova", "Prova") == "***", "in whichever order they come"
    assert message("Via Prova", "Via Prova", "Prova") == "***"


@pytest.mark.parametrize(
    ("value", "shown"), [("Abcdefg", "unabcdefgable, ***!"), ("Abcdefgh", "un***able, ***!")]
)
def test_within_a_word_only_what_has_eight_characters_is_hidden(value: str, shown: str) -> None:
    assert message(f"un{value.lower()}able, {value}!", value) == shown


@pytest.mark.parametrize(
    ("value", "found"),
    [("abc", set()), ("abcd", {"abcd"}), (123, set()), (1234, {"1234"}), (12.5, {"12.5"}), (True, set())],
)
def test_a_value_shorter_than_four_or_a_yes_would_be_found_in_innocent_words(
    value: object, found: set[str]
) -> None:
    assert personal_values({"a": [{"b": value}, 5, None]}, None) == found


def test_already_evaluated_is_known_by_what_is_read_of_it() -> None:
    evaluated = "already evaluat"
    for padding, error in (
        (READ - len(evaluated), AlreadyEvaluatedError),
        (READ - len(evaluated) + 1, DomainError),
    ):
        assert rejection({"errors": {"domain": " " * padding + evaluated}}, None) is error
    assert rejection({"errors": {"city": evaluated}}, None) is AlreadyEvaluatedError
    assert rejection({"errors": {"city": "evaluated"}}, None) is RejectedError


def test_a_message_without_a_field_and_one_that_is_no_text() -> None:
    assert read_problems({"error": "Access denied"}, ()) == (Problem("", "", "Access denied"),)
    assert read_problems({"errors": {"city": 5}}, ()) == (Problem("city", "city", "is not accepted"),)
    assert read_problems({"errors": "a", "error": "b"}, ()) == (Problem("", "", "a"),)
