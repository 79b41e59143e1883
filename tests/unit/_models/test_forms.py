"""`from_form` of the request models: text as a shopper types it."""

from datetime import date
from traceback import TracebackException
from typing import Any

import attrs
import pytest

from loanasync import AdditionalData, ApprovalRequest, Citizenship, Dialect, Problem, Residence, UserData
from loanasync.testing import scripted_client
from support.builders import FISCAL_CODE, approval_request

PYTHON = {
    "instalments": " 12 ", "email": "anna@example.com", "last_name": "Prova", "first_name": "Anna ",
    "mobile_phone": "3330000000", "city": "Roma", "address": "Via Prova", "province": "RM",
    "postal_code": "00100", "street_number": "12/A", "citizenship": "italiana",
}  # fmt: skip
WIRE = {
    "installments": "12", "email": "anna@example.com", "lastname": "Prova", "firstname": "Anna",
    "mobilePhone": "3330000000", "city": "Roma", "address": "Via Prova", "province": "RM",
    "postalCode": "00100", "civicNumber": "12/A", "citizenship": "italian",
}  # fmt: skip
ADDITIONAL = {
    "residence": "affitto", "residence_start_date": "05/2019", "educational_qualification": "diploma",
    "children": "2", "salary_type": "netto mensile", "salary": "€ 1.600,00",
}  # fmt: skip


def typed(amount: int | str = 45_000, **form: object) -> ApprovalRequest:
    """Return the request of a complete form with these changes."""
    return ApprovalRequest.from_form({**PYTHON, **form}, amount=amount)


def problems(request: ApprovalRequest | UserData, *, needed: bool = False) -> tuple[Problem, ...]:
    return scripted_client().check(FISCAL_CODE, request, additional_data_needed=needed)


def test_form_with_names_of_python_or_the_specification_is_read() -> None:
    request = typed()
    assert request == ApprovalRequest.from_form(WIRE, amount=45_000)
    assert (request.instalments, request.first_name, request.citizenship) == (12, "Anna", Citizenship.ITALIAN)
    assert problems(request) == ()


def test_shopper_cannot_set_what_the_shop_decides() -> None:
    own = {"amount": "1", "loan_finality": "x", "zeroInterestRate": "true", "orderToken": "x", "extra": "x"}
    assert ApprovalRequest.from_form({**PYTHON, **own}, amount=45_000) == typed()


def test_arguments_precede_the_form() -> None:
    request = ApprovalRequest.from_form(PYTHON, amount=45_000, order_token="t", email="b@example.com")
    assert (request.order_token, request.email) == ("t", "b@example.com")
    with pytest.raises(TypeError, match="ordr_token") as caught:
        ApprovalRequest.from_form(PYTHON, amount=45_000, ordr_token="t")
    frames = TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename.endswith("_models/requests.py")]
    assert ours
    assert "anna@example.com" not in str(ours)


@pytest.mark.parametrize(
    ("text", "cents"), [("1.450,00", 145_000), ("450", 45_000), (" 450,5 ", 45_050), ("€ 450", 45_000)]
)
def test_amount_as_text_is_in_euro(text: str, cents: int) -> None:
    assert typed(text).amount == cents


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("amount", ["", "molto", "1.450", "1,2,3", "9" * 5000]),
        ("instalments", ["", "dodici", "1" * 5000]),
        ("residence_start_date", ["31/02/2019", "1.2/2019"]),
        ("salary", ["1.600,50", "1,600", "-1"]),
        ("city", [b"Roma"]),
    ],
)
def test_value_that_cannot_be_converted_is_kept_and_reported(name: str, texts: list[Any]) -> None:
    for text in texts:
        request = typed(text) if name == "amount" else typed(**{**ADDITIONAL, name: text})
        assert getattr(request.additional if name in ADDITIONAL else request, name) == text
        assert [each.field for each in problems(request)] == [name]
        assert not text or str(text) not in repr(request)


def test_field_that_the_form_lacks_is_reported_as_required() -> None:
    found = problems(ApprovalRequest.from_form({}, amount=45_000))
    assert {each.code for each in found} == {f"{name}.required" for name in PYTHON}


@pytest.mark.parametrize("day", ["2019-05-01", "05/2019", "1/5/2019", "01.05.2019", "01-05-2019", "2019-05"])
@pytest.mark.parametrize("salary", ["1600", "1.600", "1.600,00", "1600.00", "€ 1600", "1.600 €"])
def test_additional_data_are_read_with_italian_dates_and_decimals(day: str, salary: str) -> None:
    request = typed(**{**ADDITIONAL, "residence_start_date": day, "salary": salary})
    assert problems(request, needed=True) == ()
    assert request.additional is not None
    assert (request.additional.residence, request.additional.salary) == (Residence.RENT, 1600)
    assert request.additional.residence_start_date == date(2019, 5, 1)


def test_empty_optional_fields_are_not_sent() -> None:
    empty = {**dict.fromkeys(ADDITIONAL, ""), "iban": " ", "payment_day_of_month": ""}
    assert typed(**empty) == typed()
    assert typed(**{**empty, "children": "2"}).additional == AdditionalData(children="2")


def test_invisible_characters_of_a_form_are_ignored() -> None:
    marked = {name: f"\u200b\u202a {text}\u3164\ufeff" for name, text in ADDITIONAL.items()}
    form = {**marked, "children": "2", "instalments": "1\u200b2\ufeff", "iban": "\u3164"}
    request = typed("\u202a450,50\u202c", **form)
    assert problems(request, needed=True) == ()
    assert (request.amount, request.instalments, request.iban) == (45_050, 12, None)
    assert request.additional == typed(**ADDITIONAL).additional
    blank = typed(**dict.fromkeys(ADDITIONAL, "\u200b"))
    assert blank.additional is None
    form = {"document_issue_date": "17/05/\u200b2022", "profession": "\u2800", "iban": "\xad"}
    data = UserData.from_form(form)
    assert data == UserData(document_issue_date=date(2022, 5, 17))


def test_texts_of_a_form_stay_as_typed() -> None:
    request = typed(first_name="\u200bFrancoi\u0308s", city="\u3164")
    assert (request.first_name, request.city) == ("\u200bFrancoi\u0308s", "\u3164")
    assert [each.code for each in problems(request)] == ["city.blank"]


def test_user_data_of_a_form_are_converted() -> None:
    form = {
        "documentOfType": "Carta d'identità", "documentCode": "AA00000AA", "documentCity": "Roma",
        "documentIssueDate": "17/05/2022", "document_expiration_date": "2032-05-17",
        "politicallyExposed": "no", "usPerson": "off", "paymentDayOfMonth": "5", "profession": "",
    }  # fmt: skip
    data = UserData.from_form(form, marketing="marketing" in form)
    assert problems(data) == ()
    assert (data.document_type, data.document_issue_date) == ("identity_card", date(2022, 5, 17))
    assert (data.politically_exposed, data.us_person, data.marketing) == (False, False, False)
    assert (data.payment_day_of_month, data.profession) == (5, None)


def test_user_data_with_wrong_text_are_reported() -> None:
    form = {"document_code": "", "document_issue_date": "ieri", "us_person": "forse", "document_type": "t"}
    data = UserData.from_form(form)
    assert {each.field for each in problems(data)} == form.keys()
    assert "forse" not in repr(data)


@pytest.mark.parametrize("dialect", [Dialect.street_number(), Dialect.civic_number()])
@pytest.mark.parametrize("name", ["street_number", "streetNumber", "civicNumber"])
def test_problem_is_beside_the_field_that_the_form_has(name: str, dialect: Dialect) -> None:
    order = attrs.evolve(approval_request(), street_number="")
    problems = scripted_client(dialect=dialect).check(FISCAL_CODE, order)
    beside, others = problems.for_fields([name])
    assert ([*beside], others) == ([name], ())
