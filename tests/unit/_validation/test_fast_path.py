"""The generated check of an approval accepts no request that breaks a rule."""

import copy
import math
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loanasync import AdditionalData, ApprovalRequest, Citizenship, Dialect, Limits, LoanClient, Residence
from loanasync._validation import rules
from loanasync._validation.fast_path import approval_check
from support.builders import APPROVAL_REQUESTS, FISCAL_CODE, additional_data, approval_request, user_data


class Word(str):
    """A str of another type."""

    __slots__ = ()


class NaTType(datetime):
    """A missing value, which is an instance of date like the one of pandas."""


class Town(Enum):
    """An enumeration whose members are not texts."""

    ROMA = "Roma"


DIALECTS = [
    Dialect(),
    Dialect(order_token_required=True),
    Dialect(sends_iban=False, sends_payment_day_of_month=False),
]
LIMITS = [
    Limits(),
    Limits(
        amount_min=1,
        amount_max=2**70,
        instalments_min=-5,
        instalments_max=5,
        province="[A-Za-z]*",
        postal_code="[0-9 ]*",
        street_number="[0-9]+",
        mobile_phone="[0-9]+",
        country_calling_code="[+][0-9]+",
        salary_max=5_000,
        single_line=True,
    ),
]
ODD: list[Any] = [
    *(None, True, False, 0, -1, 5, 12, 31, 32, 4_999, 5_000, 1_500_000, 1_500_001, 2**63, 2**64, -(2**64)),
    *(12.0, math.nan, math.inf, b"x", [], {}, (), object(), NaTType(2019, 5, 1, tzinfo=UTC)),
    *(np.int64(12), np.array([True])[0], np.float64(12), np.str_("Roma"), np.array([1, 2])),
    *("", " ", "\u00a0", "\u3000", "Roma", "RM", "rm", "00100", "0010", "a,b", "a b", "a@b", "a@b@c"),
    *("a\nb", "a@b\n", "\x00", "\x7f", "\u2028", "\u200b", "\ud800", "è", "+39", "0039 333", " (+39)"),
    *("italian", "Italian", "ITALIAN", "rent", "net-monthly", "yes", "12", "333", "5+", "6"),
    *(Word("Roma"), Word("italian"), Word(""), Word("rent"), Citizenship.ITALIAN, Residence.RENT, Town.ROMA),
    *(date(2019, 5, 1), datetime(2019, 5, 1, tzinfo=UTC)),
]
OWN = [each.name for each in attrs.fields(ApprovalRequest) if each.name not in ("additional", "extra")]
ADDITIONAL = [each.name for each in attrs.fields(AdditionalData)]
EXTRA: st.SearchStrategy[Any] = st.sampled_from(
    [{}, {"new": 1}, {"amount": 1}, {"new": math.nan}, {1: 2}, None, [], "x"]
)


@st.composite
def requests(draw: st.DrawFn) -> ApprovalRequest:
    """Return requests with some odd values in otherwise valid fields."""
    odd = st.sampled_from(ODD) | st.text(max_size=6)
    changes = draw(st.dictionaries(st.sampled_from(OWN), odd, max_size=2))
    if draw(st.booleans()):
        fields = draw(st.dictionaries(st.sampled_from(ADDITIONAL), odd, max_size=2))
        changes["additional"] = additional_data(**fields)
    if draw(st.integers(0, 9)) == 0:
        changes["extra"] = draw(EXTRA)
    return approval_request(**changes)


def accepts(
    request: object, dialect: Dialect = DIALECTS[0], limits: Limits = LIMITS[0], *, needed: bool = False
) -> bool:
    """Return the result of the generated function. It must not accept a request that breaks a rule."""
    is_accepted = approval_check(dialect, limits)(request, needed)
    if is_accepted:
        rest = rules.check_approval(request, additional_data_needed=needed, dialect=dialect, limits=limits)
        assert list(rest) == []
    return is_accepted


@given(requests(), st.sampled_from(DIALECTS), st.sampled_from(LIMITS), st.booleans())
def test_an_accepted_request_breaks_no_rule(
    request: ApprovalRequest,
    dialect: Dialect,
    limits: Limits,
    needed: bool,  # noqa: FBT001  (generated)
) -> None:
    accepts(request, dialect, limits, needed=needed)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("field", [*OWN, *ADDITIONAL])
def test_an_odd_value_is_accepted_only_by_its_rule(field: str, dialect: Dialect, limits: Limits) -> None:
    # Valid with all these limits and dialects.
    usual: dict[str, Any] = {"amount": 5_000, "instalments": 5, "street_number": "12", "order_token": "o"}
    accepted = []
    for value in (*ODD, getattr(additional_data(), field, None)):
        if field in OWN:
            request = approval_request(**{**usual, "additional": additional_data(), field: value})
        else:
            request = approval_request(**usual, additional=additional_data(**{field: value}))
        accepted += [accepts(request, dialect, limits, needed=needed) for needed in (False, True)]
    assert any(accepted)
    assert not all(accepted)


@given(APPROVAL_REQUESTS, st.sampled_from(DIALECTS))
@example(approval_request(additional=additional_data(), citizenship=Citizenship.EU), DIALECTS[0])
@example(approval_request(extra={"new": 1}), DIALECTS[0])
@example(copy.deepcopy(approval_request()), DIALECTS[0])
def test_a_printable_request_without_problems_is_accepted(request: ApprovalRequest, dialect: Dialect) -> None:
    texts = [value for value in attrs.astuple(request, recurse=False) if isinstance(value, str)]
    if all(map(str.isprintable, texts)):
        found = rules.check_approval(request, additional_data_needed=False, dialect=dialect, limits=LIMITS[0])
        assert accepts(request, dialect) is not any(found)


@pytest.mark.parametrize("wrong", [None, "x", {}, user_data(), additional_data(), ApprovalRequest])
def test_an_object_of_another_type_is_not_accepted(wrong: Any) -> None:
    assert not accepts(wrong)
    if wrong is not None and not isinstance(wrong, AdditionalData):
        assert not accepts(approval_request(additional=wrong))


def test_additional_data_are_required_when_needed() -> None:
    assert not accepts(approval_request(additional=None), needed=True)
    assert not accepts(approval_request(additional=additional_data(salary=None)), needed=True)
    assert accepts(approval_request(additional=additional_data()), needed=True)


@pytest.mark.parametrize("extra", [{"amount": 1}, {"new": math.nan}, {1: 2}, None, "x"])
def test_extra_that_breaks_a_rule_is_not_accepted(extra: Any) -> None:
    assert not accepts(approval_request(extra=extra))


def test_client_checks_with_its_own_dialect_and_limits() -> None:
    strict = Limits(amount_max=5_000)
    client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="secret", limits=strict)
    [problem] = client.check(FISCAL_CODE, approval_request(amount=5_001))
    assert problem.code == "amount.range"
    assert client.check(FISCAL_CODE, approval_request(amount=5_000)) == ()
