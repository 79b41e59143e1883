"""Validation rules of spec §2 and §8, in both dialects."""

import math
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum.it import codicefiscale

from loanasync import AdditionalData, ApprovalRequest, Dialect, Limits, Problem, UserData
from loanasync._display.texts import CATALOGUES
from loanasync._models import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync._results import described
from loanasync._validation import rules
from support.builders import (
    APPROVAL_REQUESTS,
    FISCAL_CODE,
    USER_DATA,
    additional_data,
    approval_request,
    user_data,
)

STREET, CIVIC = Dialect.street_number(), Dialect.civic_number()
DEMANDING = Dialect(order_token_required=True, sends_iban=False, sends_payment_day_of_month=False)
TEXT_FIELDS = [
    *("loan_finality", "email", "last_name", "first_name", "mobile_phone", "city", "address", "province"),
    *("postal_code", "street_number", "citizenship"),
]
OPTIONAL_TEXTS = [each.name for each in attrs.fields(ApprovalRequest) if each.type == str | None]
CONTROL = ["a\nb", "a\x00b", "\x7f", "a\u2028b"]
SURROGATE = "a\ud800"  # half of a pair, which UTF-8 cannot encode
NO_TEXTS = [
    (5, "must be text; use a str, not int"),
    (b"x", "must be text; use a str, not bytes"),
    (SURROGATE, "must not contain an unpaired surrogate, which UTF-8 cannot encode"),
]


def plainly(value: object) -> str:
    """Return a test id without backslashes, because pytest cannot select ids that contain them."""
    return ascii(value).replace("\\", "")


def problems(
    request: object, dialect: Dialect = STREET, limits: Limits | None = None, *, needed: bool = False
) -> list[Problem]:
    return list(
        rules.check_approval(
            request, additional_data_needed=needed, dialect=dialect, limits=limits or Limits()
        )
    )


def only(field: str, value: object, dialect: Dialect = STREET, limits: Limits | None = None) -> Problem:
    """Return the only problem of a request with this value in this field."""
    changes: dict[str, Any] = {"order_token": "o", field: value}
    [problem] = problems(approval_request(**changes), dialect, limits)
    assert problem.field == field
    assert problem.wire_name == dialect.approval_names[field]
    return problem


@given(APPROVAL_REQUESTS)
def test_a_valid_request_has_no_problem(request: ApprovalRequest) -> None:
    assert problems(request) == []


@given(USER_DATA)
def test_valid_user_data_has_no_problem(data: UserData) -> None:
    assert list(rules.check_user_data(data)) == []


@pytest.mark.parametrize("field", TEXT_FIELDS)
@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "is required"), ("", "must not be blank"), ("  ", "must not be blank"), *NO_TEXTS],
    ids=plainly,
)
def test_required_text_is_a_non_blank_str(field: str, value: object, message: str) -> None:
    if field == "citizenship" and value is not None:
        message = "must be one of italian, eu, outside_eu"
    for dialect in (STREET, CIVIC):
        assert described(only(field, value, dialect)).startswith(message)


@pytest.mark.parametrize("field", OPTIONAL_TEXTS)
@pytest.mark.parametrize(("value", "message"), NO_TEXTS, ids=plainly)
def test_optional_text_is_none_or_a_str(field: str, value: object, message: str) -> None:
    assert described(only(field, value)) == message
    assert problems(approval_request(**{field: None})) == []


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (4_999, "between 5000 and 1500000 (euro cents)"),
        (1_500_001, "between 5000 and 1500000 (euro cents)"),
        (450.0, "not float; 125.50 euros are 12550 cents"),
        (True, "not bool"),
        ("45000", "not str"),
        (None, "is required: a whole number between"),
    ],
)
def test_amount_is_an_int_of_cents_within_the_limits(value: object, hint: str) -> None:
    assert hint in str(only("amount", value))


@pytest.mark.parametrize("value", [2, 61, 12.0, "12", None, False])
def test_instalments_are_an_int_within_the_limits(value: object) -> None:
    assert "between 3 and 60" in only("instalments", value).message


@pytest.mark.parametrize(("field", "least", "most"), [("amount", 5_000, 1_500_000), ("instalments", 3, 60)])
def test_values_at_the_limits_are_valid(field: str, least: int, most: int) -> None:
    assert problems(approval_request(**{field: least})) == []
    assert problems(approval_request(**{field: most})) == []


@given(st.integers(), st.integers(-5, 100))
def test_number_outside_its_limits_is_a_problem(amount: int, instalments: int) -> None:
    found = {each.field for each in problems(approval_request(amount=amount, instalments=instalments))}
    assert ("amount" in found) == (not 5_000 <= amount <= 1_500_000)
    assert ("instalments" in found) == (not 3 <= instalments <= 60)


@given(st.text(max_size=7), st.text(max_size=4))
def test_postal_code_and_province_have_their_format(postal_code: str, province: str) -> None:
    found = {each.field for each in problems(approval_request(postal_code=postal_code, province=province))}
    digits = len(postal_code) == 5 and set(postal_code) <= set("0123456789")
    capitals = len(province) == 2 and set(province) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert ("postal_code" in found) == (not digits)
    assert ("province" in found) == (not capitals)


def test_limits_can_be_overridden() -> None:
    limits = Limits(
        amount_max=50_000,
        instalments_min=1,
        province="[A-Z]{3}",
        postal_code="[0-9]{4}",
        street_number="[0-9]{1,5}",
    )
    request = approval_request(amount=50_001, instalments=1, province="ROM", postal_code="0010")
    assert [each.field for each in problems(request, limits=limits)] == ["amount", "street_number"]
    assert problems(attrs.evolve(request, amount=50_000, street_number="12345"), limits=limits) == []


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("email", "anna", "one @"),
        ("email", "anna@", "one @"),
        ("email", "a b@example.com", "one @"),
        ("email", "a@b@c", "one @"),
        ("mobile_phone", "+393330000000", "not contain the international prefix"),
        ("mobile_phone", "00393330000000", "not contain the international prefix"),
        ("mobile_phone", " +39 333 0000000", "not contain the international prefix"),
        ("mobile_phone", "(0039) 3330000000", "not contain the international prefix"),
        ("address", "Via Prova, 12", "without commas"),
        ("province", "rm", "two upper-case letters"),
        ("province", "RMA", "two upper-case letters"),
        ("province", "RM\n", "two upper-case letters"),
        ("province", math.nan, "NA (Napoli)"),
        ("province", None, "NA (Napoli)"),
        ("province", False, "NO (Novara)"),
        ("postal_code", 100, "loses its leading zeros"),
        ("postal_code", 100.0, "loses its leading zeros"),
        ("postal_code", "0100", "may have lost leading zeros"),
        ("postal_code", "\u0660\u0660\u0661\u0660\u0660", "five digits"),
        ("postal_code", "00100\n", "five digits"),
        ("citizenship", "martian", "must be one of italian, eu, outside_eu"),
        ("citizenship", "EU", "must be one of"),
        ("zero_interest_rate", 0, "true or false; use a bool, not int"),
        ("zero_interest_rate", "false", "true or false; use a bool, not str"),
        ("payment_day_of_month", 0, "between 1 and 31"),
        ("payment_day_of_month", 32, "between 1 and 31"),
        ("payment_day_of_month", "5", "not str"),
    ],
)
def test_common_mistake_has_a_hint(field: str, value: object, hint: str) -> None:
    assert hint in str(only(field, value))


def test_province_na_and_capitalized_italian_are_valid() -> None:
    assert problems(approval_request(province="NA", citizenship="Italian")) == []


@pytest.mark.parametrize("street_number", ["12/A", "SNC", "3 bis", "km 12,5", "7-9"])
def test_street_number_of_any_form_is_valid(street_number: str) -> None:
    assert problems(approval_request(street_number=street_number)) == []


@pytest.mark.parametrize("token", [None, "", " "], ids=plainly)
def test_order_token_is_required_by_its_dialect(token: str | None) -> None:
    request = approval_request(order_token=token)
    [problem] = problems(request, DEMANDING)
    assert (problem.field, problem.wire_name) == ("order_token", "orderToken")
    assert problems(request, CIVIC) == []


def test_a_preset_accepts_every_field_of_the_request() -> None:
    assert problems(approval_request(iban="IT00", payment_day_of_month=5), CIVIC) == []


@pytest.mark.parametrize(("field", "value"), [("iban", "IT00"), ("payment_day_of_month", 5)])
def test_field_that_the_dialect_does_not_send_is_a_problem(field: str, value: object) -> None:
    assert f"set sends_{field}" in only(field, value, DEMANDING).hint
    sends: dict[str, Any] = {f"sends_{field}": True}
    sending = attrs.evolve(DEMANDING, **sends)
    assert problems(approval_request(order_token="o", **{field: value}), sending) == []


ADDITIONAL = [
    "residence",
    "residence_start_date",
    "educational_qualification",
    "children",
    "salary_type",
    "salary",
]


def test_additional_data_needed_requires_all_fields() -> None:
    assert [each.field for each in problems(approval_request(), needed=True)] == ADDITIONAL
    assert [each.wire_name for each in problems(approval_request(), needed=True)] == [
        APPROVAL_NAMES[field] for field in ADDITIONAL
    ]
    assert problems(approval_request(additional=additional_data()), needed=True) == []
    assert [each.field for each in problems(approval_request(additional=AdditionalData()), needed=True)] == (
        ADDITIONAL
    )


@pytest.mark.parametrize("field", ADDITIONAL)
def test_additional_data_field_is_required_only_when_needed(field: str) -> None:
    """Spec §2.1: required when additionalDataNeeded is true; otherwise each field is optional."""
    without = approval_request(additional=additional_data(**{field: None}))
    alone = approval_request(additional=AdditionalData(**{field: getattr(additional_data(), field)}))
    assert problems(without) == problems(alone) == []
    assert [(each.field, each.wire_name) for each in problems(without, needed=True)] == [
        (field, APPROVAL_NAMES[field])
    ]
    assert [each.field for each in problems(alone, needed=True)] == [
        each for each in ADDITIONAL if each != field
    ]


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("residence", "castle"),
        ("residence_start_date", "05/2019"),
        ("residence_start_date", datetime(2019, 5, 1, tzinfo=UTC)),
        ("educational_qualification", "phd"),
        ("children", 2),
        ("children", "5"),
        ("children", "two"),
        ("salary_type", "monthly"),
        ("salary", 1600.0),
        ("salary", "1600"),
        pytest.param("salary", 10**5000, id="many digits"),
    ],
)
def test_additional_data_fields_are_checked(field: str, value: object, needed: bool) -> None:  # noqa: FBT001  (parametrised)
    [problem] = problems(approval_request(additional=additional_data(**{field: value})), needed=needed)
    assert (problem.field, problem.wire_name) == (field, APPROVAL_NAMES[field])


def test_additional_data_of_another_type_is_a_problem() -> None:
    [problem] = problems(approval_request(additional={"residence": "rent"}))
    assert str(problem) == "additional: must be an AdditionalData; not dict"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("document_type", "library_card"),
        ("document_code", ""),
        ("document_city", 5),
        ("document_issue_date", "2022-05-17"),
        ("document_expiration_date", datetime(2032, 5, 17, tzinfo=UTC)),
        ("iban", 5),
        ("politically_exposed", "no"),
        ("us_person", 0),
        ("marketing", "true"),
        ("payment_day_of_month", "5"),
        ("profession", b"baker"),
    ],
)
def test_each_field_of_the_user_data_is_checked(field: str, value: object) -> None:
    [problem] = rules.check_user_data(user_data(**{field: value}))
    assert (problem.field, problem.wire_name) == (field, USER_DATA_NAMES[field])


@pytest.mark.parametrize(
    ("extra", "hint"),
    [
        ("abc", "must be a mapping; not str"),
        ({"a": math.nan}, "only JSON values"),
        ({"a": {1, 2}}, "only JSON values"),
        ({"a": "\ud800"}, "only JSON values"),
        ({1: "a"}, "only texts as keys"),
        ({"email": "x"}, "must not contain email; extra is for members without a field"),
        ({"civicNumber": "x"}, "must not contain civicNumber"),
    ],
    ids=plainly,
)
def test_extra_is_json_without_known_members(extra: object, hint: str) -> None:
    [problem] = problems(approval_request(extra=extra))
    assert problem.field == "extra"
    assert hint in str(problem)


@pytest.mark.parametrize("extra", ["abc", {"a": math.nan}, {"usPerson": True}], ids=plainly)
def test_extra_of_user_data_is_checked(extra: object) -> None:
    assert [each.field for each in rules.check_user_data(user_data(extra=extra))] == ["extra"]


def test_request_of_another_type_is_a_problem() -> None:
    assert [str(each) for each in problems({"amount": 5})] == [
        "request: must be an instance of ApprovalRequest; not dict"
    ]
    assert [str(each) for each in rules.check_user_data(5)] == [
        "data: must be an instance of UserData; not int"
    ]


@pytest.mark.parametrize(
    "payload",
    [[], None, "x", {"a": object()}, {"a": math.inf}, {"a": "\udfff"}, {5: 5}],
    ids=["list", "None", "text", "object", "infinity", "half a pair", "number for a name"],
)
def test_payload_that_is_not_a_json_object_is_a_problem(payload: object) -> None:
    [problem] = rules.check_payload(payload)
    assert problem.field == "payload"


def test_payload_with_a_cycle_is_a_problem() -> None:
    endless: dict[str, object] = {}
    endless["again"] = endless
    assert len(list(rules.check_payload(endless))) == 1


def test_payload_nested_too_deeply_is_a_problem() -> None:
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    assert len(list(rules.check_payload({"a": deep}))) == 1


@pytest.mark.parametrize(
    "code",
    [
        None,
        "",
        "  ",
        5,
        "SHORT",
        "0" * 11,
        "0" * 12,
        FISCAL_CODE + "A",
        "TST/YZ00A00A000A",
        "TSTXYZ00A00A000\u00c0",
        "TSTXY\n00A00A000AA",
        "TSTXYZ00A00A00\u00df",
        "TSTXYZ00A00A000\u0131",
        "TSTXYZ\u066000A00A000",
    ],
    ids=plainly,
)
def test_fiscal_code_of_another_form_is_a_problem(code: object) -> None:
    [problem] = rules.check_fiscal_code(code)
    assert (problem.field, problem.wire_name) == ("fiscal_code", "fiscalCode")


@pytest.mark.parametrize("code", [FISCAL_CODE, FISCAL_CODE.lower(), f" {FISCAL_CODE}\n"], ids=plainly)
def test_fiscal_code_is_trimmed_and_upper_cased(code: str) -> None:
    assert list(rules.check_fiscal_code(code)) == []
    assert rules.normalize_fiscal_code(code) == FISCAL_CODE


def test_check_letter_is_verified_only_when_strict() -> None:
    body = "TSTXYZ80A01A000"
    right = codicefiscale.calc_check_digit(body)
    wrong = "A" if right != "A" else "B"
    assert list(rules.check_fiscal_code(body + right, strict=True)) == []
    assert list(rules.check_fiscal_code(body + wrong)) == []
    [problem] = rules.check_fiscal_code(body + wrong, strict=True)
    assert "check letter" in problem.message


def test_all_broken_rules_are_reported_at_once() -> None:
    wrong: dict[str, Any] = {each.name: object() for each in attrs.fields(ApprovalRequest)}
    found = {problem.field for problem in problems(ApprovalRequest(**wrong))}
    assert found == set(wrong)


MARKED = st.text(max_size=8).map("Zzqmarker,{}".format)
BYTES = MARKED.map(lambda text: text.encode(errors="replace"))
VALUES = st.one_of(MARKED, st.lists(MARKED, min_size=1), BYTES)


@given(st.sampled_from([each.name for each in attrs.fields(ApprovalRequest)]), VALUES)
def test_problem_does_not_contain_the_value(field: str, value: Any) -> None:
    strict = Limits(street_number="[0-9]+", mobile_phone="[0-9]+", country_calling_code="[+].*")
    request = attrs.evolve(approval_request(), **{field: value})
    data = UserData(
        document_type=value, document_issue_date=value, marketing=value, extra={"a": [{str(value): 1j}]}
    )
    reported = [*rules.check_fiscal_code(value), *rules.check_user_data(data), *problems(request, DEMANDING)]
    reported += [*problems(request, limits=strict), *problems(value), *rules.check_payload(value)]
    for problem in reported:
        texts = [problem.text(language) for language in CATALOGUES]
        assert "Zzqmarker" not in f"{problem!r} {problem} {dict(problem.params)} {texts}"


def test_problem_of_every_field_does_not_contain_the_value() -> None:
    wrong: dict[str, Any] = {each.name: "Zzqmarker,\ud800" for each in attrs.fields(ApprovalRequest)}
    reported = problems(ApprovalRequest(**wrong))
    assert {each.field for each in reported} == set(wrong)
    assert "Zzqmarker" not in repr([(each, each.text("it"), each.text("en")) for each in reported])
