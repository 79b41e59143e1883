"""The builders of `loanasync.testing`: valid, different and made-up values."""

import re
from collections.abc import Callable
from random import Random, seed

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum.it import codicefiscale

from loanasync import Citizenship, Dialect
from loanasync.testing import (
    additional_data,
    approval_request,
    email,
    fiscal_code,
    scripted_client,
    user_data,
)


def test_thousands_of_fiscal_codes_are_valid_and_distinct() -> None:
    codes = [fiscal_code() for _ in range(5_000)]
    assert [code for code in codes if not codicefiscale.is_valid(code)] == []
    assert len(set(codes)) == len(codes)


@given(st.randoms(use_true_random=False))
def test_any_random_generator_makes_valid_fiscal_codes(random: Random) -> None:
    code = fiscal_code(random)
    assert codicefiscale.is_valid(code)
    # Real codes of birthplaces begin with A to M (Italy) or Z (other countries).
    assert re.fullmatch("TST[A-Z]{3}[5-9][0-9][A-Z][0-9]{2}X[0-9]{3}[A-Z]", code)


def test_only_a_given_generator_repeats_its_fiscal_codes() -> None:
    first, second = Random(3), Random(3)  # noqa: S311  (the values need not be secret)
    assert [fiscal_code(first) for _ in range(10)] == [fiscal_code(second) for _ in range(10)]
    seed(1)
    made = fiscal_code(), email()
    seed(1)
    assert not {fiscal_code(), email()} & set(made)


def test_email_is_different_on_each_call_and_has_its_tag() -> None:
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
def test_built_requests_are_valid_in_both_dialects(dialect: Dialect) -> None:
    client = scripted_client(dialect=dialect, strict=True)
    request = approval_request(additional=additional_data(), order_token="made-up")
    assert client.check(fiscal_code(), request, additional_data_needed=True) == ()
    assert client.check(fiscal_code(), user_data()) == ()


def test_approval_request_has_a_new_email_and_takes_changes() -> None:
    first, second = approval_request(), approval_request(amount=5_000, tag="refused")
    assert first.email != second.email
    assert (first.amount, second.amount, first.citizenship) == (45_000, 5_000, Citizenship.ITALIAN)
    assert "+refused@" in second.email
    assert approval_request(email="own@example.com").email == "own@example.com"
    assert additional_data(salary=0).salary == 0
    assert user_data(iban=None).iban is None


def test_tag_and_email_together_are_refused() -> None:
    with pytest.raises(ValueError, match="pass either tag or email"):
        approval_request(tag="refused", email="own@example.com")


@pytest.mark.parametrize("build", [approval_request, additional_data, user_data])
def test_unknown_field_is_named_in_the_error(build: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'amuont'"):
        build(amuont=1)
