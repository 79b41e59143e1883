"""Rules that the specification does not state: none is checked unless a limit enables it (spec §8)."""

from datetime import date

import pytest

from loanasync import Limits, UserData
from loanasync._validation import rules
from support.builders import additional_data, approval_request, user_data
from unit._validation.test_rules import CONTROL, OPTIONAL_TEXTS, only, plainly, problems


@pytest.mark.parametrize("field", OPTIONAL_TEXTS)
@pytest.mark.parametrize("value", ["", " ", "0039", "anything else"], ids=plainly)
def test_optional_text_of_any_form_is_valid(field: str, value: str) -> None:
    assert problems(approval_request(**{field: value})) == []


@pytest.mark.parametrize("field", ["last_name", "city", "street_number", "mobile_phone", *OPTIONAL_TEXTS])
@pytest.mark.parametrize("value", CONTROL, ids=plainly)
def test_control_characters_are_refused_only_by_single_line(field: str, value: str) -> None:
    assert problems(approval_request(**{field: value})) == []
    assert "control characters" in only(field, value, limits=Limits(single_line=True)).message


@pytest.mark.parametrize("value", CONTROL, ids=plainly)
def test_control_characters_in_user_data_are_refused_by_single_line(value: str) -> None:
    data = user_data(profession=value)
    assert list(rules.check_user_data(data)) == []
    [problem] = rules.check_user_data(data, Limits(single_line=True))
    assert problem.field == "profession"


@pytest.mark.parametrize(
    "number", ["333 000 0000", "333-0000000", "333.000/0000", "(333) 0000000", "\u0663\u0663\u0663", "n/a"]
)
def test_mobile_phone_of_any_form_is_valid_by_default(number: str) -> None:
    """Spec §2.1 states no format: only the international prefix is excluded."""
    assert problems(approval_request(mobile_phone=number)) == []
    assert "limits.mobile_phone" in only("mobile_phone", number, limits=Limits(mobile_phone="[0-9]+")).hint


@pytest.mark.parametrize("value", ["39", "0039", "+39 (0)", "IT"])
def test_calling_code_of_any_form_is_valid_by_default(value: str) -> None:
    limits = Limits(country_calling_code=r"\+[0-9]{1,4}")
    assert problems(approval_request(country_calling_code=value)) == []
    assert "limits.country_calling_code" in only("country_calling_code", value, limits=limits).hint
    assert problems(approval_request(country_calling_code="+39"), limits=limits) == []
    assert problems(approval_request(), limits=limits) == []


@pytest.mark.parametrize("salary", [-1, 0, 10_001, 1_000_000_001, 2**63 - 1, -(2**63)])
def test_salary_is_limited_only_by_salary_max(salary: int) -> None:
    request = approval_request(additional=additional_data(salary=salary))
    assert problems(request) == []
    found = problems(request, limits=Limits(salary_max=10_000))
    assert [each.field for each in found] == ([] if salary == 0 else ["salary"])


def test_user_data_empty_or_expired_is_valid() -> None:
    """Spec §4.2 does not say which fields are mandatory, so the service decides."""
    assert list(rules.check_user_data(UserData())) == []
    assert list(rules.check_user_data(UserData(iban="", profession=" ", unread=("iban",)))) == []
    assert list(rules.check_user_data(UserData(extra={"new": 1}))) == []
    assert list(rules.check_user_data(user_data(document_expiration_date=date(1999, 1, 1)))) == []


@pytest.mark.parametrize("children", ["0", "1", "2", "3", "4", "5+"])
def test_number_of_children_from_zero_is_valid(children: str) -> None:
    assert problems(approval_request(additional=additional_data(children=children))) == []
