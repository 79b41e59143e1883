"""The quick check of whole models accepts nothing that the check of a field reports."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from random import Random
from typing import Any

import attrs
import numpy as np
import pytest

from loanasync import Citizenship, Limits, Residence
from loanasync._models.requests import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync._models.values import Optional, Rule
from loanasync._protocol import rules
from support.builders import additional_data, approval_request, user_data


class OtherText(str):
    __slots__ = ()


class OtherChoice(StrEnum):
    ITALIAN = "italian"
    UNKNOWN = "unknown"


# Texts that an expression might match across two lines, a part of a line, or not as Python's methods do.
TEXTS = [
    *("", " ", "  x", "x ", "a\nb", "\n", "a\n", "\na", "\n\n", "a\rb", "a\x85b", "\x00", "\x7f", "\ud800"),
    *("RM\n00184", "RM\n", "00184\n", "RM", "rm", "00184", "5+", "5", "6", "aa", "D'Angelo", "x" * 5_000),
    *("\u2028", "\xa0", "\xad", "\xe8", "e\u0300", "\u3042", "\uff11" * 5, "\u0663" * 5, "\u0663"),
    *("a@b", "a@@b", "@", "a b@c", "a@b\nc@d", "+39333", "0039333", " (+39", "((", "\n+39", "a\n00"),
    *("333", "3330000000", "a,b", ",", "a\n,", "italian", "Italian", "italian\n"),
]
NO_TEXTS = [
    *(None, True, False, 0, 3, 15, 60, 61, 5_000, 1_500_001, 2**63, -1, 1.0, float("nan"), b"x", [], {}),
    *(date(2019, 5, 1), datetime(2019, 5, 1, tzinfo=UTC), np.int64(5), np.bool_(1), np.str_("RM"), object()),
    *(OtherText("RM"), OtherText("a\nb"), *Citizenship, *Residence, *OtherChoice),
]
PATTERNS = [
    *("[0-9]{5}", "[A-Z]{2}", r"3\d+", "[^x]+", ".*", "(?s:.*)", r"\S+\s?\S*", "^[A-Z]+$", "RM|rm", "(R|r)M"),
    *(
        "[A-Z |]{2}",
        r"(.)\1+",
        "(?i:rm)",
        "(?!R).+",
        "(?=.*\n).+",
        r"\ARM\Z",
        "[\n]?a[\n]?b?",
        "(?x) R M # x",
    ),
]
OPTIONS: list[dict[str, Any]] = [
    dict.fromkeys(fields, pattern)
    for pattern in PATTERNS
    for fields in (["province"], ["mobile_phone", "postal_code"])
]
LIMITS = [Limits(), Limits(amount_min=0), *(Limits(**options) for options in OPTIONS)]
MODELS: list[tuple[Any, Any, Any, Mapping[str, str]]] = [
    (approval_request(), rules.approval_rules, rules.approval_check, APPROVAL_NAMES),
    (
        additional_data(),
        lambda _: rules.additional_rules(),
        lambda _: rules.additional_check(),
        APPROVAL_NAMES,
    ),
    (user_data(), lambda _: rules.user_data_rules(), lambda _: rules.user_data_check(), USER_DATA_NAMES),
]


def invalid_fields(model: object, by_field: Mapping[str, Rule]) -> list[str]:
    """Return the fields of a model that their own rules report."""
    return [
        name
        for name, rule in by_field.items()
        if not (isinstance(rule, Optional) and getattr(model, name) is None)
        and (rule.rule if isinstance(rule, Optional) else rule).check(getattr(model, name)) is not None
    ]


@pytest.mark.parametrize("number", [20_000, pytest.param(1_000_000, marks=pytest.mark.scheduled)])
def test_quick_check_agrees_with_the_check_of_each_field(number: int) -> None:
    random = Random(1)  # noqa: S311  (the same orders in each run)
    values = [*TEXTS, *NO_TEXTS]
    valid = 0
    for count in range(0, number, 100):
        limits = LIMITS[count // 100 % len(LIMITS)]
        base, rules_of, check_of, names = MODELS[random.randrange(len(MODELS))]
        by_field, check = rules_of(limits), check_of(limits)
        fields = [*by_field]
        for _ in range(100):
            changes: dict[str, Any] = {
                random.choice(fields): random.choice(values) for _ in range(random.randrange(4))
            }
            model = attrs.evolve(base, **changes)
            found = [problem.field for problem in check(model, names)]
            assert found == invalid_fields(model, by_field), changes
            valid += not found
    assert number / 5 < valid < number / 2  # neither all orders are valid nor none


@pytest.mark.parametrize("number", [20_000])
def test_quick_check_of_a_whole_order_agrees_with_those_of_its_parts(number: int) -> None:
    random = Random(2)  # noqa: S311  (the same orders in each run)
    values = [*TEXTS, *NO_TEXTS]
    valid = 0
    for count in range(0, number, 100):  # the checks of many limits are not cached
        limits = LIMITS[count // 100 % len(LIMITS)]
        by_field, additional_by_field = rules.approval_rules(limits), rules.additional_rules()
        check = rules.whole_check(limits)
        for _ in range(100):
            changes, more = (
                {random.choice([*fields]): random.choice(values) for _ in range(random.randrange(2))}
                for fields in (by_field, additional_by_field)
            )
            additional = attrs.evolve(additional_data(), **more)
            order = attrs.evolve(approval_request(), additional=additional, **changes)
            invalid = invalid_fields(order, by_field) + invalid_fields(additional, additional_by_field)
            is_valid = check(order)
            assert not (is_valid and invalid), (changes, more)
            valid += is_valid
    assert valid > number / 20


def test_value_of_a_class_without_hash_is_a_problem() -> None:
    class WithoutHash(type):
        __hash__ = None  # type: ignore[assignment]  # as of a class that defines only __eq__

    class Other(metaclass=WithoutHash):
        pass

    city: Any = Other()
    [problem] = rules.approval_check(Limits())(approval_request(city=city), APPROVAL_NAMES)
    assert problem.code == "city.type"
