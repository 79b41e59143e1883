"""Spec §2: each field of the approval, its response and the completion, over a real socket."""

from datetime import date
from typing import Any

import attrs
import pytest

from loanasync import AdditionalData, ApprovalRequest, Approved, Dialect, LoanClient, Refused, UserData
from loanasync._models.requests import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync.sandbox import Sandbox
from loanasync.testing import fiscal_code
from support.builders import FISCAL_CODE, additional_data, approval_request, user_data
from support.specification import SPECIFICATION

# A value for each field that is sent, from the usual request or by the type of the field.
BY_TYPE: dict[Any, Any] = {str | None: "made-up", bool | None: True, int | None: 5}
USUAL = approval_request(city="Forlì", province="FC", citizenship="eu", country_calling_code="+39")
FULL: dict[str, Any] = {
    each.name: BY_TYPE[each.type] if getattr(USUAL, each.name) is None else getattr(USUAL, each.name)
    for each in attrs.fields(ApprovalRequest)
    if each.name in APPROVAL_NAMES
}
# spec §2.1, response: members that echo the request
RESPONSE = {name for row in SPECIFICATION["2.1 response"] for name in row.split("/")}
ECHOED = {name: FULL[name] for name in FULL if APPROVAL_NAMES[name] in RESPONSE}
DEPRECATED = {"approvalMessageApiFull", "approvalMessageApiSemiFull"}


async def approve(client: LoanClient, request: ApprovalRequest, **options: Any) -> Approved | Refused:
    """Create a request of a new customer, and approve it."""
    code = fiscal_code()
    needed = options.get("additional_data_needed", False)
    await client.create_request({"fiscalCode": code, "additionalDataNeeded": needed})
    decision = await client.approve(code, request, **options)
    assert decision.fiscal_code == code
    return decision


async def test_decision_has_the_fields_of_the_specification(client: LoanClient) -> None:
    decision = await approve(client, ApprovalRequest(**FULL))
    assert isinstance(decision, Approved)
    assert {name: getattr(decision, name) for name in ECHOED} == ECHOED
    assert isinstance(decision.net_amount, int)
    assert 0 < decision.net_amount <= 45_000
    assert str(decision.redirect_url).startswith("http://127.0.0.1:")
    assert str(decision.fiscal_code) not in str(decision.redirect_url)
    assert decision.raw["paymentDayOfMonth"] == 5
    assert type(decision.payment_day_of_month) is int, "sent as text"
    assert set(decision.raw) <= {*APPROVAL_NAMES.values(), "approved", *DEPRECATED}
    assert set(decision.raw) >= DEPRECATED
    assert not {"approval_message_api_full", "approval_message_api_semi_full"} & set(dir(decision))
    assert decision.meta.unread == ()


async def test_refusal_echoes_the_same_fields_without_a_redirect(client: LoanClient) -> None:
    decision = await approve(client, ApprovalRequest(**{**FULL, "amount": 1_200_000}))
    assert isinstance(decision, Refused)
    assert {name: getattr(decision, name) for name in ECHOED} == {**ECHOED, "amount": 1_200_000}


@pytest.mark.parametrize(
    "dialect", [Dialect.street_number(), Dialect.civic_number()], ids=["street", "civic"]
)
async def test_choices_of_an_approval_are_accepted_and_echoed(sandbox: Sandbox, dialect: Dialect) -> None:
    async with sandbox.client(dialect=dialect) as shop:
        for citizenship in ("italian", "eu", "outside_eu"):
            decision = await approve(shop, approval_request(citizenship=citizenship, order_token="o"))
            assert decision.citizenship == citizenship
        for sent, echoed in ((None, False), (False, False), (True, True)):
            decision = await approve(shop, approval_request(zero_interest_rate=sent, order_token="o"))
            assert decision.zero_interest_rate is echoed


ADDITIONAL: dict[str, tuple[Any, ...]] = {
    "residence": ("rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"),
    "educational_qualification": ("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": ("1", "2", "3", "4", "5+"),
    "salary_type": ("net-monthly", "gross-yearly"),
    "salary": (1_600,),
    "residence_start_date": (date(2019, 5, 1),),
}


@pytest.mark.parametrize("field", ADDITIONAL)
async def test_additional_data_values_are_accepted(client: LoanClient, field: str) -> None:
    for value in ADDITIONAL[field]:
        whole = approval_request(additional=additional_data(**{field: value}))
        assert (await approve(client, whole, additional_data_needed=True)).approved
        partial = approval_request(additional=AdditionalData(**{field: value}))
        assert (await approve(client, partial)).approved


async def test_each_field_of_the_completion_is_saved_alone(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    await client.upload_documents(FISCAL_CODE, {})
    full = user_data()
    saved = [UserData(**{field: getattr(full, field)}) for field in USER_DATA_NAMES]
    saved += [UserData(document_type=kind) for kind in ("identity_card", "driving_license", "passport")]
    for data in saved:
        assert await client.complete(FISCAL_CODE, data) == data


async def test_extra_member_is_sent_and_accepted(client: LoanClient) -> None:
    assert (await approve(client, approval_request(extra={"newField": [1]}))).approved
