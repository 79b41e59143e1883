"""Validation rules of spec §2 and §8: the accepted values, and the exact message for any other."""

import math
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum.it import codicefiscale

from loanasync import AdditionalData, ApprovalRequest, Dialect, Limits, Problem, UserData
from loanasync._models.decisions import described
from loanasync._models.requests import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync._protocol import rules
from support.builders import (
    APPROVAL_REQUESTS,
    FISCAL_CODE,
    USER_DATA,
    additional_data,
    approval_request,
    user_data,
)

STREET, CIVIC = Dialect.street_number(), Dialect.civic_number()
DEFAULT = Limits()
DEMANDING = Dialect(order_token_required=True, sends_iban=False, sends_payment_day_of_month=False)
FIELDS = attrs.fields(ApprovalRequest)
TEXT_FIELDS = [each.name for each in FIELDS if each.type is str]
OPTIONAL_TEXTS = [each.name for each in FIELDS if each.type == str | None]
ADDITIONAL = [each.name for each in attrs.fields(AdditionalData)]
CONTROL = ["a\nb", "a\x01b", "a\x7fb", "a\u2028b"]
# Texts in which a person sees nothing.
BLANK = [
    *("", "  ", "\xa0", "\u200b", "\u202a\ufeff", "\xad \u2060", "\u034f", "\ufe0f", "\U000e0101"),
    *("\x01\x7f", "\u115f", "\u1160", "\u3164", "\uffa0", "\u2800", "\u200b\u3164"),
]
NO_TEXTS: list[tuple[object, str, str]] = [
    (5, "type", "must be text; use a str, not int"),
    (b"x", "type", "must be text; use a str, not bytes"),
    ("a\ud800", "encoding", "must not contain an unpaired surrogate, which UTF-8 cannot encode"),
    ("a\x00b", "control_characters", "must not contain a NUL character"),
    ("è\x00", "control_characters", "must not contain a NUL character"),
]
NAN = math.nan
A_TIME = datetime(2019, 5, 1, tzinfo=UTC)
CENTS = "must be a whole number between 5000 and 1500000 (euro cents)"
NO_EUROS = "; 125.50 euros are 12550 cents"
COUNT = "must be a whole number between 3 and 60"
DAY = "must be a whole number between 1 and 31"
PREFIX = "must not contain the international prefix; put it into country_calling_code"
PROVINCE = "must be two upper-case letters, such as RM"
NAPOLI = "; pandas reads NA (Napoli) as a missing value: read the column as text"
NOVARA = "; YAML reads NO (Novara) as false: put it in quotes"
DIGITS = "must be five digits; if it is shorter, it may have lost leading zeros"
ZEROS = "; give five digits as text, because a number loses its leading zeros (00100 is Roma)"
BOOL = "must be true or false; use a bool, not "
DATE = "must be a date; use a datetime.date, not "
ONE_LINE = "must not contain line breaks or other control characters"
EMAIL = "must be an e-mail address: one @ with text on both sides, and no spaces"
CITIZENSHIPS = "must be one of italian, eu, outside_eu, Italian"
CHILDREN = "must be one of 0, 1, 2, 3, 4, 5+"
RESIDENCES = "must be one of rent, home_ownership, home_ownership_mortgage, home_business, with_relatives"
TITLES = "must be one of middle_school, diploma, graduation, master, doctorate"
DOCUMENTS = "must be one of identity_card, driving_license, passport"
SALARY = "must be a whole number (euros); use an int, not "


def plainly(value: object) -> str:
    """Return a test id without backslashes, because pytest cannot select ids that contain them."""
    return ascii(value).replace("\\", "")[:40] if not isinstance(value, list) else "values"


def problems(
    request: object, dialect: Dialect = STREET, limits: Limits = DEFAULT, *, needed: bool = False
) -> list[Problem]:
    return rules.check_approval(request, additional_data_needed=needed, dialect=dialect, limits=limits)


def changed(changes: dict[str, Any]) -> ApprovalRequest:
    """Return a request with these values; those of additional data are in their place."""
    inner = {name: value for name, value in changes.items() if name in ADDITIONAL}
    outer = {name: value for name, value in changes.items() if name not in ADDITIONAL}
    return approval_request(**outer, **({"additional": additional_data(**inner)} if inner else {}))


def shown(found: Iterable[Problem]) -> list[tuple[str, str]]:
    return [(each.code, described(each)) for each in found]


@given(APPROVAL_REQUESTS, USER_DATA)
def test_valid_data_have_no_problem(request: ApprovalRequest, data: UserData) -> None:
    assert problems(request) == rules.check_user_data(data) == []


@pytest.mark.parametrize("field", TEXT_FIELDS)
def test_required_text_is_a_non_blank_str(field: str) -> None:
    for value, rule, message in (
        (None, "required", "is required"),
        *((blank, "blank", "must not be blank") for blank in BLANK),
        *NO_TEXTS,
    ):
        for dialect in (STREET, CIVIC):
            [problem] = problems(changed({field: value}), dialect)
            assert (problem.field, problem.wire_name) == (field, dialect.approval_names[field])
            assert problem.code == f"{field}.{rule}"
            assert described(problem).startswith(message)


@pytest.mark.parametrize("field", OPTIONAL_TEXTS)
def test_optional_text_is_none_or_a_str(field: str) -> None:
    for value, rule, message in NO_TEXTS:
        assert shown(problems(changed({field: value}))) == [(f"{field}.{rule}", message)]
    for valid in (None, *BLANK, "0039", "anything else"):
        assert problems(changed({field: valid})) == []


@pytest.mark.parametrize(
    ("field", "values", "rule", "sentence"),
    [
        ("amount", [None], "required", CENTS.replace("must be", "is required:")),
        ("amount", [1, 4_999, 1_500_001], "range", CENTS),
        ("amount", [125.5], "type", f"{CENTS}; use an int, not float{NO_EUROS}"),
        ("amount", ["204,00", "450"], "type", f"{CENTS}; use an int, not str{NO_EUROS}"),
        ("amount", [True], "type", f"{CENTS}; use an int, not bool{NO_EUROS}"),
        ("amount", [" "], "type", f"{CENTS}; use an int, not str"),
        ("amount", [NAN], "type", f"{CENTS}; use an int, not NaN"),
        ("instalments", [None], "required", COUNT.replace("must be", "is required:")),
        ("instalments", [2, 61], "range", COUNT),
        ("instalments", [np.float64(9)], "type", f"{COUNT}; use an int, not numpy.float64"),
        ("instalments", ["9"], "type", f"{COUNT}; use an int, not str; convert it with int(...)"),
        ("instalments", ["9,0"], "type", f"{COUNT}; use an int, not str"),
        ("email", ["anna", "anna@", "a b@example.com", "a@b@c", "\u200b@c", "a\u3164@c"], "format", EMAIL),
        ("mobile_phone", ["+39333", "00393330", " +39 333 0", "(0039) 333"], "prefix", PREFIX),
        ("mobile_phone", ["\uff0b39 333", "\u200b+39", "\xad(\u202a0039", "\uff10\uff1039", "\u207a39"],
         "prefix", PREFIX),
        ("mobile_phone", ["\u3164+39", "\u2800\uff0b39", "\x01+39", "0\u200b039"], "prefix", PREFIX),
        ("address", ["Via Prova, 12", "Via Prova\uff0c 12"], "comma",
         "must be the street name without commas; put the number into street_number"),
        ("province", ["rm", "RMA", "RM\n"], "format", PROVINCE),
        ("province", [None], "required", "is required" + NAPOLI),
        ("province", [0.5], "type", "must be text; use a str, not float" + NAPOLI),
        ("province", [NAN], "type", "must be text; use a str, not NaN" + NAPOLI),
        ("province", [False], "type", "must be text; use a str, not bool" + NOVARA),
        ("postal_code", ["100", "0100", "\u0660\u0660\u0661\u0660\u0660", "00100\n"], "format", DIGITS),
        ("postal_code", [100], "type", "must be text; use a str, not int" + ZEROS),
        ("postal_code", [100.0], "type", "must be text; use a str, not float" + ZEROS),
        ("postal_code", [NAN], "type", "must be text; use a str, not NaN"),
        ("citizenship", [None], "required", "is required"),
        ("citizenship", ["martian", "EU"], "choice", CITIZENSHIPS),
        ("iban", [NAN], "type", "must be text; use a str, not NaN; use None for missing values"),
        ("zero_interest_rate", [0], "yes_no", BOOL + "int"),
        ("zero_interest_rate", ["false"], "yes_no", BOOL + "str"),
        ("payment_day_of_month", [0, 32], "range", DAY),
        ("payment_day_of_month", ["5"], "type", f"{DAY}; use an int, not str; convert it with int(...)"),
        ("payment_day_of_month", [""], "type", f"{DAY}; use an int, not str; use None for missing values"),
        ("residence", ["castle"], "choice", RESIDENCES),
        ("residence", [5], "choice", f"{RESIDENCES}; use a str, not int"),
        ("residence_start_date", ["05/2019"], "date", f"{DATE}str; convert it with date.fromisoformat(...)"),
        ("residence_start_date", [2019], "date", f"{DATE}int"),
        ("residence_start_date", [A_TIME], "time", "must be a date without a time; convert it with .date()"),
        ("educational_qualification", ["phd"], "choice", TITLES),
        ("children", ["5", "two"], "choice", CHILDREN),
        ("children", [2], "choice", f"{CHILDREN}; use a str, not int"),
        ("salary_type", ["monthly"], "choice", "must be one of net-monthly, gross-yearly"),
        ("salary", [1.5], "type", f"{SALARY}float; cents are not sent"),
        ("salary", ["1600"], "type", f"{SALARY}str; cents are not sent"),
        ("salary", [2**63, 10**5000], "digits", "must be a number of at most 64 bits"),
    ],
    ids=plainly,
)  # fmt: skip
def test_mistake_has_its_code_and_message(field: str, values: list[object], rule: str, sentence: str) -> None:
    for value in values:
        for needed in {False, field in ADDITIONAL}:
            [problem] = problems(changed({field: value}), needed=needed)
            assert (problem.field, problem.wire_name) == (field, APPROVAL_NAMES[field])
            assert (problem.code, str(problem)) == (f"{field}.{rule}", f"{field}: {sentence}")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("amount", [5_000, 1_500_000]),
        ("instalments", [3, 60]),
        ("province", ["NA", "R\u200bM", "\ufeffRM"]),
        ("postal_code", ["00100\u200e"]),
        ("email", ["\u202aanna@example.com\u202c"]),
        ("mobile_phone", ["\u200b333 0+0"]),
        ("citizenship", ["Italian"]),
        ("street_number", ["12/A", "SNC", "3 bis", "km 12,5", "7-9"]),
        ("payment_day_of_month", [1, 31]),
        ("children", ["0", "1", "2", "3", "4", "5+"]),
    ],
)
def test_value_at_the_edge_is_valid(field: str, values: list[object]) -> None:
    assert [problems(changed({field: value})) for value in values] == [[]] * len(values)


def test_limits_can_be_overridden() -> None:
    limits = Limits(amount_max=50_000, instalments_min=1, province="[A-Z]{3}", postal_code="[0-9]{4}")
    request = approval_request(amount=50_001, instalments=1, province="ROM", postal_code="0010")
    assert [each.field for each in problems(request, limits=limits)] == ["amount"]
    one = Limits(amount_min=45_000, amount_max=45_000, instalments_min=12, instalments_max=12)
    assert problems(approval_request(amount=45_000, instalments=12), limits=one) == []


@pytest.mark.parametrize(
    ("limit", "pattern", "field", "refused", "accepted"),
    [
        ("mobile_phone", "[0-9]+", "mobile_phone",
         ["333 000", "333-0", "333.0/0", "(333) 0", "\u0663\u0663\u0663", "n/a"], "333"),
    ],
    ids=plainly,
)  # fmt: skip
def test_rule_that_the_specification_does_not_state_is_off_by_default(
    limit: str, pattern: Any, field: str, refused: list[object], accepted: object
) -> None:
    limits = Limits(**{limit: pattern})
    for value in refused:
        assert problems(changed({field: value})) == []
        assert [each.field for each in problems(changed({field: value}), limits=limits)] == [field]
    assert problems(changed({field: accepted}), limits=limits) == []
    assert problems(approval_request(street_number="7"), limits=limits) == []


def test_message_of_the_limit_that_is_off_by_default() -> None:
    [problem] = problems(changed({"mobile_phone": "333 0"}), limits=Limits(mobile_phone="[0-9]+"))
    text = "must be a valid mobile number; it does not match limits.mobile_phone"
    assert shown([problem]) == [("mobile_phone.format", text)]
    assert problem.params == {"pattern": "[0-9]+"}


@pytest.mark.parametrize("value", CONTROL)
def test_control_characters_are_the_business_of_the_service(value: str) -> None:
    for field in ("last_name", "city", "street_number", "mobile_phone", *OPTIONAL_TEXTS):
        assert problems(changed({field: value})) == []


@pytest.mark.parametrize("token", [None, "", " ", "\u200b", "\u3164"], ids=plainly)
def test_order_token_is_required_by_its_dialect(token: str | None) -> None:
    [problem] = problems(approval_request(order_token=token), DEMANDING)
    assert (problem.field, problem.wire_name) == ("order_token", "orderToken")
    assert shown([problem]) == [("order_token.required", "is required; this dialect requires it")]
    assert problems(approval_request(order_token=token), CIVIC) == []


class NoBool:
    """A value without a truth value, as the missing value of pandas."""

    def __bool__(self) -> bool:
        raise TypeError("ambiguous")


@pytest.mark.parametrize("token", [0, NoBool(), np.array([1, 2])], ids=type)
def test_order_token_of_another_type_is_one_problem(token: Any) -> None:
    [problem] = problems(approval_request(order_token=token), DEMANDING)
    assert problem.code == "order_token.type"


@pytest.mark.parametrize(("field", "value"), [("iban", "IT00"), ("payment_day_of_month", 5)])
def test_field_that_the_dialect_does_not_send_is_a_problem(field: str, value: object) -> None:
    request = changed({"order_token": "o", field: value})
    sends: dict[str, Any] = {f"sends_{field}": True}
    assert problems(request, attrs.evolve(DEMANDING, **sends)) == problems(request, CIVIC) == []
    [problem] = problems(request, DEMANDING)
    sentence = f"is not part of this dialect; omit it, or set sends_{field}=True in the Dialect"
    assert (problem.wire_name, problem.code) == (APPROVAL_NAMES[field], f"{field}.dialect")
    assert described(problem) == sentence


def test_additional_data_needed_requires_all_fields() -> None:
    for request in (approval_request(), approval_request(additional=AdditionalData())):
        missing = problems(request, needed=True)
        assert [each.wire_name for each in missing] == [APPROVAL_NAMES[field] for field in ADDITIONAL]
        assert shown(missing) == [
            (f"{field}.required", "is required; the service asked for additional data")
            for field in ADDITIONAL
        ]
    assert problems(approval_request(additional=additional_data()), needed=True) == []


@pytest.mark.parametrize("field", ADDITIONAL)
def test_additional_data_field_is_required_only_when_needed(field: str) -> None:
    """Spec §2.1: required when additionalDataNeeded is true; otherwise each field is optional."""
    without = approval_request(additional=additional_data(**{field: None}))
    alone = approval_request(additional=AdditionalData(**{field: getattr(additional_data(), field)}))
    assert problems(without) == problems(alone) == []
    assert [each.field for each in problems(without, needed=True)] == [field]
    assert [each.field for each in problems(alone, needed=True)] == [
        each for each in ADDITIONAL if each != field
    ]


@pytest.mark.parametrize(
    ("field", "value", "rule", "sentence"),
    [
        ("document_type", "library_card", "choice", DOCUMENTS),
        ("document_code", "", "blank", "must not be blank; use None for missing values"),
        ("document_city", 5, "type", "must be text; use a str, not int"),
        ("document_issue_date", "2022-05-17", "date", f"{DATE}str; convert it with date.fromisoformat(...)"),
        ("document_expiration_date", A_TIME, "time",
         "must be a date without a time; convert it with .date()"),
        ("iban", 5, "type", "must be text; use a str, not int"),
        ("politically_exposed", "no", "yes_no", BOOL + "str"),
        ("us_person", 0, "yes_no", BOOL + "int"),
        ("marketing", "true", "yes_no", BOOL + "str"),
        ("payment_day_of_month", "5", "type", f"{DAY}; use an int, not str; convert it with int(...)"),
        ("profession", b"baker", "type", "must be text; use a str, not bytes"),
    ],
)  # fmt: skip
def test_each_field_of_the_user_data_is_checked(field: str, value: object, rule: str, sentence: str) -> None:
    [problem] = rules.check_user_data(user_data(**{field: value}))
    assert (problem.field, problem.wire_name) == (field, USER_DATA_NAMES[field])
    assert shown([problem]) == [(f"{field}.{rule}", sentence)]


def test_user_data_of_few_or_expired_fields_are_valid() -> None:
    """Spec §4.2 does not say which fields are mandatory, so the service decides."""
    for data in (
        UserData(),
        UserData(iban="", profession=" ", unread=("iban",), extra={"new": 1}),
        user_data(document_expiration_date=date(1999, 1, 1)),
        user_data(profession="a\nb"),
    ):
        assert rules.check_user_data(data) == []


def test_options_of_a_choice_are_params() -> None:
    [problem] = rules.check_user_data(user_data(document_type="library_card"))
    assert problem.params == {"options": ("identity_card", "driving_license", "passport")}
    assert repr(problem.params["options"]) == "('identity_card', 'driving_license', 'passport')"


JSON_ONLY = (
    "extra.json",
    "must contain only JSON values; use str, int, finite float, bool, None, list and dict",
)
KEYS = ("extra.keys", "must have only texts as keys")
NUL = ("extra.control_characters", "must not contain a NUL character")


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ("abc", [("extra.object", "must be a mapping; not str")]),
        *(({"a": value}, [JSON_ONLY]) for value in (NAN, math.inf, {1, 2}, 1j, "\ud800", "\udfff")),
        ({1: "a"}, [KEYS]),
        *((found, [NUL]) for found in ({"a": "\0"}, {"a\0": 1}, {"a": [{"b": "\\\0"}]}, {"a": {"\0": 1}})),
        *((valid, []) for valid in ({"a": "\\u0000"}, {"a": "\\\\u0000"}, {"a": "\u200b"})),
        ({"email": NAN}, [
            JSON_ONLY, ("extra.known", "must not contain email; extra is for members without a field")
        ]),
        ({"zip": 1, "email": 2, "civicNumber": 3}, [
            ("extra.known", f"must not contain {name}; extra is for members without a field")
            for name in ("civicNumber", "email")
        ]),
    ],
    ids=plainly,
)  # fmt: skip
def test_extra_is_json_without_known_members(extra: Any, found: list[tuple[str, str]]) -> None:
    assert shown(problems(approval_request(extra=extra))) == found
    of_user_data = [each for each in found if each[0] != "extra.known"]
    assert shown(rules.check_user_data(user_data(extra=extra))) == of_user_data
    of_payload = [(code.replace("extra", "payload"), sentence) for code, sentence in of_user_data]
    assert shown(rules.check_payload(extra)) == of_payload


def test_extra_of_user_data_has_no_known_members() -> None:
    [problem] = rules.check_user_data(user_data(extra={"usPerson": True}))
    assert (problem.code, problem.wire_name) == ("extra.known", "usPerson")


def test_payload_with_a_cycle_or_nested_too_deeply_is_a_problem() -> None:
    endless: dict[str, object] = {}
    endless["again"] = endless
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    for payload in (endless, {"a": deep}):
        assert [each.code for each in rules.check_payload(payload)] == ["payload.json"]


def test_value_of_another_type_is_a_problem() -> None:
    assert [
        *shown(problems({"amount": 5})),
        *shown(problems(approval_request(additional={"residence": "rent"}))),
        *shown(rules.check_user_data(5)),
        *shown(rules.check_order_id(7)),
    ] == [
        ("request.object", "must be an instance of ApprovalRequest; not dict"),
        ("additional.object", "must be an AdditionalData; not dict"),
        ("data.object", "must be an instance of UserData; not int"),
        ("order_id.type", "must be text; use a str, not int"),
    ]


@pytest.mark.parametrize(
    ("rule", "order_ids"),
    [
        ("", ("", "A-1", "A 1", "a-1", "Forl\u00ec 1")),
        ("format", (" A-1", "A-1 ", "A-1\u00a0", "A-1\u200b", "A\u00a01", "A\u30001", "Forli\u0300 1")),
        ("blank", (" ", "\u3164")),
        ("control_characters", ("A-1\n", "A\t1", "A-1\0")),
        ("encoding", ("A-1\ud800",)),
    ],
)
def test_order_number_that_looks_like_another_one_is_a_problem(rule: str, order_ids: tuple[str, ...]) -> None:
    """Else "A-1" and "A-1 " are two orders, and the customer is evaluated for both."""
    found = [code for each in order_ids for code, _ in shown(rules.check_order_id(each))]
    assert found == [f"order_id.{rule}"] * (len(order_ids) if rule else 0)


FORM = ("format", "must be 16 letters and digits")


@pytest.mark.parametrize(
    ("code", "rule", "sentence"),
    [
        (None, "required", "is required"),
        (5, "type", "must be text; use a str, not int"),
        ("", "blank", "must not be blank"),
        ("  ", "blank", "must not be blank"),
        ("TSTXY\n00A00A000AA", "control_characters", ONE_LINE),
        *((code, *FORM) for code in ("SHORT", "0" * 11, FISCAL_CODE + "A", "TST/YZ00A00A000A")),
        *((f"TSTXYZ00A00A00{letter}", *FORM) for letter in ("0\u00c0", "\u00df", "0\u0131")),
        ("TSTXYZ\u066000A00A000", *FORM),
    ],
    ids=plainly,
)  # fmt: skip
def test_fiscal_code_of_another_form_is_a_problem(code: object, rule: str, sentence: str) -> None:
    [problem] = rules.check_fiscal_code(code)
    assert (problem.field, problem.wire_name) == ("fiscal_code", "fiscalCode")
    assert shown([problem]) == [(f"fiscal_code.{rule}", sentence)]


@pytest.mark.parametrize(
    "code",
    [
        *(FISCAL_CODE, FISCAL_CODE.lower(), f" {FISCAL_CODE}\n"),
        *(f"\u202a{FISCAL_CODE}\u202c", f"\ufeff \u3164{FISCAL_CODE[:3]}\xad{FISCAL_CODE[3:]}\u200b "),
    ],
    ids=plainly,
)
def test_fiscal_code_is_trimmed_and_upper_cased(code: str) -> None:
    assert rules.check_fiscal_code(code) == ()
    assert rules.normalize_fiscal_code(code) == FISCAL_CODE


def test_check_letter_is_verified_only_when_strict() -> None:
    body = "TSTXYZ80A01A000"
    right = codicefiscale.calc_check_digit(body)
    wrong = "A" if right != "A" else "B"
    assert rules.check_fiscal_code(body + right, strict=True) == rules.check_fiscal_code(body + wrong) == ()
    assert shown(rules.check_fiscal_code(body + wrong, strict=True)) == [
        ("fiscal_code.check_letter", "has a wrong check letter; ask the customer to type it again")
    ]


MARKED = st.text(max_size=8).map("Zzqmarker,{}".format)
BYTES = MARKED.map(lambda text: text.encode(errors="replace"))
VALUES = st.one_of(MARKED, st.just("Zzqmarker,\ud800"), st.lists(MARKED, min_size=1), BYTES)


@given(VALUES)
def test_all_broken_rules_are_reported_without_the_values(value: Any) -> None:
    strict = Limits(mobile_phone="[0-9]+")
    request = ApprovalRequest(**{each.name: value for each in FIELDS})
    data = UserData(
        document_type=value, document_issue_date=value, marketing=value, extra={"a": [{str(value): 1j}]}
    )
    reported = problems(request, DEMANDING, strict)
    assert {each.name for each in FIELDS} >= {each.field for each in reported} >= {"amount", "extra"}
    reported += [*problems(value), *rules.check_fiscal_code(value), *rules.check_user_data(data)]
    for problem in reported + rules.check_payload(value):
        texts = [problem.text(language) for language in ("en", "it")]
        assert "Zzqmarker" not in f"{problem!r} {problem} {dict(problem.params)} {texts}"
    wrong: dict[str, Any] = {each.name: object() for each in FIELDS}
    assert [each.field for each in problems(ApprovalRequest(**wrong))] == [*wrong]


def test_rules_made_while_a_test_freezes_the_clock_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that freeze the clock replace `date` in all modules."""

    class FrozenDate(date):
        pass

    expected = [rules.additional_rules(), rules.user_data_rules()]
    modules = [each for name, each in sys.modules.items() if name.startswith("loanasync")]
    for module in modules:
        if vars(module).get("date") is date:
            monkeypatch.setattr(module, "date", FrozenDate)
    assert [rules.additional_rules(), rules.user_data_rules()] == expected
