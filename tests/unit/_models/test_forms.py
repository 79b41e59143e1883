"""`from_form` of the request models: text as a shopper types it."""

from datetime import date
from traceback import TracebackException

import pytest

from loanasync import AdditionalData, ApprovalRequest, Citizenship, Problem, Residence, UserData
from loanasync.testing import scripted_client
from support.builders import FISCAL_CODE

PYTHON = {
    "instalments": " 12 ",
    "email": "anna@example.com",
    "last_name": "Prova",
    "first_name": "Anna ",
    "mobile_phone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postal_code": "00100",
    "street_number": "12/A",
    "citizenship": "italiana",
}
WIRE = {
    "installments": "12",
    "email": "anna@example.com",
    "lastname": "Prova",
    "firstname": "Anna",
    "mobilePhone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "civicNumber": "12/A",
    "citizenship": "italian",
}
ADDITIONAL = {
    "residence": "affitto",
    "residence_start_date": "05/2019",
    "educational_qualification": "diploma",
    "children": "2",
    "salary_type": "netto mensile",
    "salary": "€ 1.600,00",
}


def problems(request: ApprovalRequest | UserData, *, needed: bool = False) -> tuple[Problem, ...]:
    return scripted_client().check(FISCAL_CODE, request, additional_data_needed=needed)


def test_form_with_names_of_python_or_the_specification_is_read() -> None:
    typed = ApprovalRequest.from_form(PYTHON, amount=45_000)
    assert typed == ApprovalRequest.from_form(WIRE, amount=45_000)
    assert (typed.instalments, typed.first_name, typed.citizenship) == (12, "Anna", Citizenship.ITALIAN)
    assert problems(typed) == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("amount", "1"),
        ("loan_finality", "x"),
        ("zeroInterestRate", "true"),
        ("orderToken", "x"),
        ("extra", "x"),
    ],
)
def test_shopper_cannot_set_what_the_shop_decides(name: str, text: str) -> None:
    typed = ApprovalRequest.from_form({**PYTHON, name: text}, amount=45_000)
    assert typed == ApprovalRequest.from_form(PYTHON, amount=45_000)


def test_arguments_precede_the_form() -> None:
    typed = ApprovalRequest.from_form(PYTHON, amount=45_000, order_token="t", email="b@example.com")
    assert (typed.order_token, typed.email) == ("t", "b@example.com")
    with pytest.raises(TypeError, match="ordr_token") as caught:
        ApprovalRequest.from_form(PYTHON, amount=45_000, ordr_token="t")
    frames = TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename.endswith("_models.py")]
    assert ours
    assert "anna@example.com" not in str(ours)


@pytest.mark.parametrize(
    ("text", "cents"), [("1.450,00", 145_000), ("450", 45_000), (" 450,5 ", 45_050), ("€ 450", 45_000)]
)
def test_amount_as_text_is_in_euro(text: str, cents: int) -> None:
    assert ApprovalRequest.from_form(PYTHON, amount=text).amount == cents


@pytest.mark.parametrize("text", ["", "molto", "1.450", "1,2,3", "9" * 5000])
def test_amount_that_is_not_clear_is_kept_and_reported(text: str) -> None:
    typed = ApprovalRequest.from_form(PYTHON, amount=text)
    assert typed.amount == text  # type: ignore[comparison-overlap]  # kept as typed
    assert [each.field for each in problems(typed)] == ["amount"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("instalments", ""),
        ("instalments", "dodici"),
        ("instalments", "1" * 5000),
        ("residence_start_date", "31/02/2019"),
        ("residence_start_date", "1.2/2019"),
        ("salary", "1.600,50"),
        ("salary", "1,600"),
        ("salary", "-1"),
    ],
)
def test_text_that_cannot_be_converted_is_kept_and_reported(name: str, text: str) -> None:
    typed = ApprovalRequest.from_form({**PYTHON, **ADDITIONAL, name: text}, amount=45_000)
    holder = typed.additional if name in ADDITIONAL else typed
    assert getattr(holder, name) == text
    assert [each.field for each in problems(typed)] == [name]
    assert not text or text not in repr(typed)


def test_field_that_the_form_lacks_is_reported_as_required() -> None:
    typed = ApprovalRequest.from_form({}, amount=45_000)
    assert {each.code.partition(".")[2] for each in problems(typed)} == {"required"}
    assert len(problems(typed)) == len(PYTHON)


def test_value_that_is_no_text_is_reported() -> None:
    typed = ApprovalRequest.from_form({**PYTHON, "city": b"Roma"}, amount=45_000)
    assert [each.code for each in problems(typed)] == ["city.type"]


@pytest.mark.parametrize("day", ["2019-05-01", "05/2019", "1/5/2019", "01.05.2019", "01-05-2019", "2019-05"])
@pytest.mark.parametrize("salary", ["1600", "1.600", "1.600,00", "1600.00", "€ 1600", "1.600 €"])
def test_additional_data_are_read_with_italian_dates_and_decimals(day: str, salary: str) -> None:
    form = {**PYTHON, **ADDITIONAL, "residence_start_date": day, "salary": salary}
    typed = ApprovalRequest.from_form(form, amount=45_000)
    assert problems(typed, needed=True) == ()
    assert typed.additional is not None
    assert (typed.additional.residence, typed.additional.salary) == (Residence.RENT, 1600)
    assert typed.additional.residence_start_date == date(2019, 5, 1)


def test_empty_optional_fields_are_not_sent() -> None:
    empty = {**dict.fromkeys(ADDITIONAL, ""), "iban": " ", "payment_day_of_month": ""}
    assert ApprovalRequest.from_form({**PYTHON, **empty}, amount=45_000) == ApprovalRequest.from_form(
        PYTHON, amount=45_000
    )
    partly = ApprovalRequest.from_form({**PYTHON, **empty, "children": "2"}, amount=45_000)
    assert partly.additional == AdditionalData(children="2")


def test_user_data_of_a_form_are_converted() -> None:
    form = {
        "documentOfType": "Carta d'identità",
        "documentCode": "AA00000AA",
        "documentCity": "Roma",
        "documentIssueDate": "17/05/2022",
        "document_expiration_date": "2032-05-17",
        "politicallyExposed": "no",
        "usPerson": "off",
        "paymentDayOfMonth": "5",
        "profession": "",
    }
    data = UserData.from_form(form, marketing="marketing" in form)
    assert problems(data) == ()
    assert (data.document_type, data.document_issue_date) == ("identity_card", date(2022, 5, 17))
    assert (data.politically_exposed, data.us_person, data.marketing) == (False, False, False)
    assert (data.payment_day_of_month, data.profession) == (5, None)


def test_user_data_with_wrong_text_are_reported() -> None:
    form = {
        "document_code": "",
        "document_issue_date": "ieri",
        "us_person": "forse",
        "document_type": "tessera",
    }
    data = UserData.from_form(form)
    assert {each.field for each in problems(data)} == form.keys()
    assert "forse" not in repr(data)
