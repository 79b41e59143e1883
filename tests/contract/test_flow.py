"""Spec §1, §3, §4: the flow, its states and prerequisites, over a real socket to the sandbox."""

from typing import Any

import aiohttp
import pytest

from loanasync import Approved, Dialect, LoanClient, Refused, errors
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, additional_data, approval_request, user_data

DIALECTS = {"street_number": Dialect.street_number(), "civic_number": Dialect.civic_number()}


async def create(client: LoanClient, **more: Any) -> Any:
    return await client.create_request({"fiscalCode": FISCAL_CODE, **more})


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
async def test_loan_request_from_creation_to_completion(sandbox: Sandbox, dialect: Dialect) -> None:
    async with sandbox.client(dialect=dialect) as shop:
        await loan_request(shop)


async def loan_request(shop: LoanClient) -> None:
    await create(shop)  # §1.1
    decision = await shop.approve(FISCAL_CODE, approval_request(order_token="order-1"))  # §1.2
    assert isinstance(decision, Approved)
    assert (decision.meta.status, decision.approved) == (201, True)  # §3
    async with aiohttp.ClientSession() as browser, browser.get(str(decision.redirect_url)) as page:  # §1.3
        assert page.status == 200
    data = user_data()
    with pytest.raises(errors.RejectedError):  # §4.2
        await shop.complete(FISCAL_CODE, data)
    await shop.upload_documents(FISCAL_CODE, {"front": "...", "back": "..."})  # §1.4
    assert await shop.complete(FISCAL_CODE, data) == data


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_sandbox_and_client_of_one_dialect_agree(dialect: Any) -> None:
    request = approval_request(order_token="o", street_number="7")
    [other] = [value for name, value in DIALECTS.items() if name != dialect]
    async with (
        Sandbox(dialect=dialect) as sandbox,
        sandbox.client(dialect=DIALECTS[dialect]) as client,
        sandbox.client(dialect=other) as stranger,
    ):
        await create(client)
        with pytest.raises(errors.RejectedError) as caught:
            await stranger.approve(FISCAL_CODE, request)
        assert "street_number" in [problem.field for problem in caught.value.problems]
        decision = await client.approve(FISCAL_CODE, request)
        assert decision.street_number == "7"
        assert decision.raw["streetNumber" if dialect == "street_number" else "civicNumber"] == "7"


async def test_refusal_is_422_with_approved_false_and_no_redirect(client: LoanClient) -> None:
    await create(client)
    decision = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.approved) == (422, False)
    assert "redirectUrl" not in decision.raw


@pytest.mark.parametrize("tag", ["approved", "refused"])
async def test_second_approval_raises_already_evaluated(
    sandbox: Sandbox, client: LoanClient, tag: str
) -> None:
    await create(client)
    request = approval_request(email=f"a+{tag}@example.com")
    decision = await client.approve(FISCAL_CODE, request)
    assert (await client.approve(FISCAL_CODE, request)).raw == decision.raw, "one client sends nothing"
    async with sandbox.client() as another:
        with pytest.raises(errors.AlreadyEvaluatedError) as caught:
            await another.approve(FISCAL_CODE, request)
    assert (caught.value.after_retry, caught.value.outcome) == (False, "unknown")
    assert [entry.evaluated for entry in sandbox.journal] == [False, True, False]


async def test_approve_without_created_request_is_user_not_found(client: LoanClient) -> None:
    with pytest.raises(errors.UserNotFoundError):
        await client.approve(FISCAL_CODE, approval_request())


async def test_additional_data_is_required_if_the_created_request_needs_it(client: LoanClient) -> None:
    assert (await create(client, additionalDataNeeded=True))["additionalDataNeeded"] is True
    with pytest.raises(errors.InvalidRequestError) as checked:
        await client.approve(FISCAL_CODE, approval_request(), additional_data_needed=True)
    with pytest.raises(errors.RejectedError) as caught:
        await client.approve(FISCAL_CODE, approval_request())
    fields = {problem.field for problem in caught.value.problems}
    assert len(fields) == 6
    assert fields == {problem.field for problem in checked.value.problems}
    request = approval_request(additional=additional_data())
    assert (await client.approve(FISCAL_CODE, request, additional_data_needed=True)).approved
