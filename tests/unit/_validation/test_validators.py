"""Rules as data, from which other descriptions of the requests can be written."""

from loanasync import Limits
from loanasync._validation import rules
from loanasync._validation.validators import Boolean, Choice, Day, Integer, Number, Optional, Text


def test_rule_tables_describe_their_fields() -> None:
    approval = rules.approval_rules(Limits(amount_max=9_000, street_number="[0-9]+"))
    assert approval["amount"] == Number(5_000, 9_000, "euro cents", "125.50 euros are 12550 cents")
    assert approval["citizenship"] == Choice(("italian", "eu", "outside_eu", "Italian"))
    assert isinstance(approval["street_number"], Text)
    assert approval["street_number"].pattern == "[0-9]+"
    assert approval["iban"] == Optional(Text(may_be_blank=True))
    assert approval["zero_interest_rate"] == Optional(Boolean())
    additional = rules.additional_rules(Limits())
    assert additional["residence_start_date"] == Optional(Day())
    assert additional["salary"] == Optional(Integer("euros", "cents are not sent"))
    assert rules.user_data_rules(Limits())["document_city"] == Optional(Text())


def test_options_of_a_choice_are_plain_texts() -> None:
    document_type = rules.user_data_rules(Limits())["document_type"]
    assert isinstance(document_type, Optional)
    assert isinstance(document_type.rule, Choice)
    assert {type(each) for each in document_type.rule.options} == {str}
