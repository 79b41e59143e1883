"""The quick check of all fields accepts only models that break no rule."""

from datetime import date, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loanasync import Citizenship, Limits
from loanasync._validation.rules import additional_rules, approval_rules
from loanasync._validation.validators import quick_check
from support.builders import additional_data, approval_request

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2_000_000),
    st.floats(),
    st.text(max_size=20),
    st.from_regex(r"[0-9]{5}|[A-Z]{2}|[^@\s]+@[^@\s]+", fullmatch=True),
    st.sampled_from(["Via Roma, 1", "+39333", " ", "\n", "a\nb", "\ud800", *Citizenship]),
    st.sampled_from([date(2030, 1, 1), datetime(2030, 1, 1)]),  # noqa: DTZ001  (a wrong value)
)
LIMITS = st.sampled_from([Limits(), Limits(street_number="[0-9]+", country_calling_code=r"\+[0-9]+")])


@given(data=st.data(), limits=LIMITS)
def test_quick_check_accepts_no_model_that_breaks_a_rule(data: st.DataObject, limits: Limits) -> None:
    for rules, model in (
        (approval_rules(limits), approval_request()),
        (additional_rules(limits), additional_data()),
    ):
        fields: dict[str, Any] = {name: getattr(model, name) for name in rules}
        for name in data.draw(st.lists(st.sampled_from(sorted(rules)), max_size=3)):
            fields[name] = data.draw(VALUES)
        if quick_check(rules)(SimpleNamespace(**fields)):
            assert [name for name, rule in rules.items() if rule(fields[name]) is not None] == []


def test_quick_check_accepts_a_full_order() -> None:
    assert quick_check(approval_rules(Limits()))(approval_request())
    assert quick_check(additional_rules(Limits()))(additional_data())
