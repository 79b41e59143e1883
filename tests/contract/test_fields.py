"""Spec §2: each field of the approval, its response and the completion, over a real socket."""

from datetime import date
from typing import Any

import attrs
import pytest

from loanasync import AdditionalData, ApprovalRequest, Approved, Dialect, LoanClient, Refused, UserData
from loanasync._models import APPROVAL_NAMES, USER_DATA_NAMES
from support.builders import FISCAL_CODE, additional_data, approval_request, user_data
from support.specification import SPECIFICATION

# A value for each field that is sent, from the usual request or by the type of the field.
BY_TYPE: dict[Any, Any] = {str | None: "made-up", bool | None: True, int | None: 5}
USUAL = approval_request(city="Forlì", province="FC", citizenship="eu", country_calling_code="+39")
FULL: dict[str, Any] = {
    each.name: BY_TYPE[each.type] if getattr(USUAL, each.name) is None else getattr(USUAL, each.name)
    for each in attrs.fields(ApprovalRequest)
    if each.metadata["wire"] is not None
}

# spec §2.1, response: members that echo the request
RESPONSE = {name for row in SPECIFICATION["2.1 response"] for name in row.split("/")}
ECHOED = sorted(name for name in FULL if APPROVAL_NAMES[name] in RESPONSE)


@pytest.fixture
async def decision(client: LoanClient) -> Approved:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    decided = await client.approve(FISCAL_CODE, ApprovalRequest(**FULL))
    assert isinstance(decided, Approved)
    return decided


@pytest.mark.parametrize("field", ECHOED)
async def test_input_field_is_echoed_unchanged(decision: Approved, field: str) -> None:
    assert getattr(decision, field) == FULL[field]


async def test_decision_has_the_fiscal_code(decision: Approved) -> None:
    assert decision.fiscal_code == FISCAL_CODE


async def test_decision_has_the_net_amount_in_cents(decision: Approved) -> None:
    assert isinstance(decision.net_amount, int)
    assert 0 < decision.net_amount <= 45_000


async def test_decision_has_the_redirect_url(decision: Approved) -> None:
    assert str(decision.redirect_url).startswith("http://127.0.0.1:")
    assert FISCAL_CODE not in str(decision.redirect_url)


async def test_payment_day_is_sent_as_text_and_read_as_an_integer(decision: Approved) -> None:
    assert decision.raw["paymentDayOfMonth"] == 5
    assert type(decision.payment_day_of_month) is int


@pytest.mark.parametrize("deprecated", ["approvalMessageApiFull", "approvalMessageApiSemiFull"])
async def test_deprecated_members_are_not_attributes(decision: Approved, deprecated: str) -> None:
    assert deprecated in decision.raw
    assert not {"approval_message_api_full", "approval_message_api_semi_full"} & set(dir(decision))


async def test_decision_members_are_known_or_deprecated(decision: Approved) -> None:
    known = {*APPROVAL_NAMES.values(), "approved", "approvalMessageApiFull", "approvalMessageApiSemiFull"}
    assert set(decision.raw) <= known
    assert decision.meta.unread == ()


async def test_a_refusal_echoes_the_same_members_without_a_redirect(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    decided = await client.approve(FISCAL_CODE, ApprovalRequest(**{**FULL, "amount": 1_200_000}))
    assert isinstance(decided, Refused)
    assert all(getattr(decided, field) == FULL[field] for field in ECHOED if field != "amount")


@pytest.mark.parametrize("citizenship", ["italian", "eu", "outside_eu"])
@pytest.mark.parametrize(
    "dialect", [Dialect.street_number(), Dialect.civic_number()], ids=["street", "civic"]
)
async def test_each_citizenship_is_accepted_in_both_dialects(
    client: LoanClient, citizenship: str, dialect: Dialect
) -> None:
    dialect_client = client.with_options(dialect=dialect)
    await dialect_client.create_request({"fiscalCode": FISCAL_CODE})
    request = approval_request(citizenship=citizenship, order_token="o")
    decided = await dialect_client.approve(FISCAL_CODE, request)
    assert decided.citizenship == citizenship


@pytest.mark.parametrize(("sent", "echoed"), [(None, False), (False, False), (True, True)])
async def test_zero_interest_rate_is_true_false_or_none(
    client: LoanClient, *, sent: bool | None, echoed: bool
) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    decided = await client.approve(FISCAL_CODE, approval_request(zero_interest_rate=sent))
    assert decided.zero_interest_rate is echoed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("residence", value)
            for value in (
                "rent",
                "home_ownership",
                "home_ownership_mortgage",
                "home_business",
                "with_relatives",
            )
        ),
        *(
            ("educational_qualification", value)
            for value in ("middle_school", "diploma", "graduation", "master", "doctorate")
        ),
        *(("children", value) for value in ("1", "2", "3", "4", "5+")),
        *(("salary_type", value) for value in ("net-monthly", "gross-yearly")),
        ("salary", 1_600),
        ("residence_start_date", date(2019, 5, 1)),
    ],
)
async def test_additional_data_values_are_accepted(client: LoanClient, field: str, value: Any) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE, "additionalDataNeeded": True})
    request = approval_request(additional=additional_data(**{field: value}))
    decided = await client.approve(FISCAL_CODE, request, additional_data_needed=True)
    assert decided.approved


async def test_additional_data_with_some_fields_is_accepted(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    request = approval_request(additional=AdditionalData(children="2"))
    assert (await client.approve(FISCAL_CODE, request)).approved


@pytest.mark.parametrize("field", sorted(USER_DATA_NAMES))
async def test_each_field_of_the_completion_is_saved_alone(client: LoanClient, field: str) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    await client.upload_documents(FISCAL_CODE, {})
    data = UserData(**{field: getattr(user_data(), field)})
    assert await client.complete(FISCAL_CODE, data) == data


@pytest.mark.parametrize("kind", ["identity_card", "driving_license", "passport"])
async def test_document_types_are_accepted(client: LoanClient, kind: str) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    await client.upload_documents(FISCAL_CODE, {})
    saved = await client.complete(FISCAL_CODE, user_data(document_type=kind))
    assert saved.document_type == kind


async def test_extra_member_is_sent_and_accepted(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    assert (await client.approve(FISCAL_CODE, approval_request(extra={"newField": [1]}))).approved
