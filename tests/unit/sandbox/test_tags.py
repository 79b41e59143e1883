"""Words and what they ask for, without a loop (the sockets are in test_outcomes)."""

import pytest
from attrs import evolve

from loanasync.sandbox.outcomes import DEFAULT_OUTCOME, TAG_WORDS, UnknownTagError, parse_email, parse_words
from loanasync.sandbox.validation import APPROVAL_FIELDS, USER_DATA_FIELDS


@pytest.mark.parametrize("email", ["anna@example.com", "a@b+refused.example", "anna+@x.it", "", None, 5, "+"])
def test_without_a_tag_the_answer_is_the_plain_one(email: object) -> None:
    assert parse_email(email) is DEFAULT_OUTCOME


@pytest.mark.parametrize("word", TAG_WORDS)
def test_every_word_that_is_told_of_is_understood(word: str) -> None:
    written = word.replace("xN", "x2").replace("<ms>", "20").replace("<field>", "city")
    assert evolve(parse_email(f"Anna+{written.upper()}@example.com"), name="") != DEFAULT_OUTCOME


@pytest.mark.parametrize("field", [*APPROVAL_FIELDS, *USER_DATA_FIELDS])
def test_every_field_can_be_invalid_however_an_address_spells_it(field: str) -> None:
    assert parse_words(f"invalid.{field}").invalid == (field,)
    assert parse_words(f"invalid.{field.lower()}").invalid == (field,)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("refuse", "+refused"),
        ("aproved", "+approved"),
        ("500", None),
        ("500x", "+500xN"),
        ("501", "+500xN"),
        ("resetduring", "+resetbefore"),
        ("500afterx2", "+500after"),
        ("emptybefore", "+emptyafter"),
        ("slow", "+slow<ms>"),
        ("slowly", "+slow<ms>"),
        ("invalid", "+invalid.amount"),
        ("invalid.citty", "+invalid.city"),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_the_nearest(words: str, nearest: str | None) -> None:
    if nearest is None:
        assert parse_words(words).before == ("500",)
        return
    with pytest.raises(UnknownTagError) as caught:
        parse_words(words)
    if nearest != "+invalid.amount":
        assert nearest in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "approved.refused",
        "already.nouser",
        "500after.resetafter",
        "civic.street",
        "slow10.slow20",
        "emptyafter.garbage",
    ],
)
def test_words_that_exclude_each_other_are_refused(words: str) -> None:
    with pytest.raises(UnknownTagError, match="exclude each other"):
        parse_words(words)


def test_words_that_say_the_same_twice_are_one() -> None:
    assert parse_words("refused.refused").decision == "refused"


def test_faults_before_the_work_come_in_order_and_as_often_as_said() -> None:
    outcome = parse_words("500x2.reset.hangbefore")
    assert [outcome.fault_for(turn) for turn in range(5)] == ["500", "500", "reset", "hang", None]


def test_without_a_number_a_rule_s_fault_is_for_every_call_and_a_tag_s_for_one() -> None:
    assert parse_words("reset", every_call=True).fault_for(99) == "reset"
    assert parse_words("reset").fault_for(1) is None
    assert parse_words("resetx2", every_call=True).fault_for(2) is None
