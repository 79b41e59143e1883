"""Parsing of tags into outcomes; `test_outcomes` tests them over HTTP."""

import pytest
from attrs import evolve

from loanasync.sandbox.outcomes import DEFAULT_OUTCOME, TAG_WORDS, UnknownTagError, parse_email, parse_words
from loanasync.sandbox.validation import FIELDS


@pytest.mark.parametrize("email", ["anna@example.com", "a@b+refused.example", "anna+@x.it", "", None, 5, "+"])
def test_email_without_tag_has_default_outcome(email: object) -> None:
    assert parse_email(email) is DEFAULT_OUTCOME


@pytest.mark.parametrize("word", TAG_WORDS)
def test_documented_word_is_understood(word: str) -> None:
    written = word.replace("xN", "x2").replace("<ms>", "20").replace("<field>", "city")
    assert evolve(parse_email(f"Anna+{written.upper()}@example.com"), name="") != DEFAULT_OUTCOME


@pytest.mark.parametrize("field", sorted({name for fields in FIELDS.values() for name in fields}))
def test_invalid_word_ignores_case_of_the_field(field: str) -> None:
    assert parse_words(f"invalid.{field}").invalid == (field,)
    assert parse_words(f"invalid.{field.lower()}").invalid == (field,)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("refuse", "+refused"),
        ("500x", "+500xN"),
        ("501", "+500xN"),
        ("resetduring", "+resetafter"),
        ("500afterx2", "+500after"),
        ("emptybefore", "+resetbefore"),
        ("slow", "+slow<ms>"),
        ("invalid", "+invalid."),
        ("invalid.citty", "+invalid.city"),
    ],
)
def test_unknown_word_suggests_the_nearest(words: str, nearest: str) -> None:
    with pytest.raises(UnknownTagError) as caught:
        parse_words(words)
    assert f"did you mean {nearest}" in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        *("approved.refused", "already.nouser", "500after.resetafter", "civic.street", "slow10.slow20"),
        *("emptyafter.garbage", "refused.conflict"),
    ],
)
def test_contradictory_words_are_rejected(words: str) -> None:
    with pytest.raises(UnknownTagError, match="exclude each other"):
        parse_words(words)


def test_repeated_word_counts_once() -> None:
    assert parse_words("refused.refused").decision == "refused"


def test_faults_before_processing_keep_order_and_count() -> None:
    outcome = parse_words("500x2.reset.hangbefore")
    assert [outcome.fault_for(turn) for turn in range(5)] == ["500", "500", "reset", "hang", None]


def test_fault_without_count_is_endless_in_faults_and_single_in_tags() -> None:
    assert parse_words("reset", every_call=True).fault_for(99) == "reset"
    assert parse_words("reset").fault_for(1) is None
    assert parse_words("resetx2", every_call=True).fault_for(2) is None
