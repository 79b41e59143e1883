"""Requests for users' own tests: valid, fresh, and of nobody."""

import re
from collections.abc import Callable
from random import Random, seed

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum.it import codicefiscale

from loanasync import (
    Citizenship,
    Dialect,
    InvalidRequestError,
)
from loanasync.testing import (
    additional_data,
    approval_request,
    email,
    fiscal_code,
    scripted_client,
    user_data,
)


def test_thousands_of_fiscal_codes_are_valid_and_each_is_another() -> None:
    codes = [fiscal_code() for _ in range(5_000)]
    assert [code for code in codes if not codicefiscale.is_valid(code)] == []
    assert len(set(codes)) == len(codes)


@given(st.randoms(use_true_random=False))
def test_any_generator_makes_valid_fiscal_codes_of_nobody(random: Random) -> None:
    code = fiscal_code(random)
    assert codicefiscale.is_valid(code)
    # A place of birth begins with A to M in Italy and with Z abroad.
    assert re.fullmatch("TST[A-Z]{3}[5-9][0-9][A-Z][0-9]{2}X[0-9]{3}[A-Z]", code)


def test_a_seeded_generator_makes_the_same_fiscal_codes_again() -> None:
    first, second = Random(3), Random(3)  # noqa: S311  (made-up customers are no secrets)
    codes = [fiscal_code(first) for _ in range(10)]
    assert codes == [fiscal_code(second) for _ in range(10)]
    assert len(set(codes)) == 10


def test_seeding_the_global_generator_makes_no_fiscal_code_come_again() -> None:
    seed(1)
    first = fiscal_code(), email()
    seed(1)
    assert not {fiscal_code(), email()} & set(first)


def test_an_email_address_is_another_each_time_and_carries_its_tag() -> None:
    addresses = [email("500x2.refused") for _ in range(1_000)] + [email()]
    assert len(set(addresses)) == 1_001
    assert re.fullmatch(r"shopper-[0-9a-f]{12}\+500x2\.refused@example\.com", addresses[0])
    assert re.fullmatch(r"shopper-[0-9a-f]{12}@example\.com", addresses[-1])


@pytest.mark.parametrize("tag", ["", " ", "a b", "a@b", "a+b", "a\n", "é"])
def test_a_tag_that_would_break_the_address_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="letters, digits, dots and hyphens"):
        email(tag)
    with pytest.raises(ValueError, match="letters, digits, dots and hyphens"):
        approval_request(tag=tag)


@pytest.mark.parametrize("dialect", [Dialect.street_number(), Dialect.civic_number()])
def test_what_the_builders_make_breaks_no_rule_in_either_dialect(dialect: Dialect) -> None:
    client = scripted_client(dialect=dialect, strict=True)
    request = approval_request(additional=additional_data(), order_token="made-up")
    assert client.check(fiscal_code(), request, additional_data_needed=True) == ()
    assert client.check(fiscal_code(), user_data()) == ()


def test_a_request_has_a_fresh_address_and_takes_changes() -> None:
    first, second = approval_request(), approval_request(amount=5_000, tag="refused")
    assert first.email != second.email
    assert (first.amount, second.amount, first.citizenship) == (45_000, 5_000, Citizenship.ITALIAN)
    assert "+refused@" in second.email
    assert approval_request(email="own@example.com").email == "own@example.com"
    assert additional_data(salary=0).salary == 0
    assert user_data(iban=None).iban is None


def test_a_tag_and_an_address_are_not_both_taken() -> None:
    with pytest.raises(ValueError, match="pass either tag or email"):
        approval_request(tag="refused", email="own@example.com")


@pytest.mark.parametrize("build", [approval_request, additional_data, user_data])
def test_a_change_of_no_field_is_named(build: Callable[..., object]) -> None:
    with pytest.raises(InvalidRequestError, match="is not a field of this model"):
        build(amuont=1)
