"""Spec §1, §3, §4: the flow, its states and prerequisites, over a real socket to the sandbox."""

from collections.abc import Mapping

import aiohttp
import attrs
import pytest

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    Dialect,
    InvalidRequestError,
    LoanClient,
    OutcomeUnknownError,
    Refused,
    RejectedError,
    UserNotFoundError,
)
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, additional_data, approval_request, user_data

BOTH = pytest.mark.parametrize(
    "dialect", [Dialect.street_number(), Dialect.civic_number()], ids=["street_number", "civic_number"]
)


async def create(client: LoanClient, **more: object) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE, **more})  # type: ignore[dict-item]


@BOTH
async def test_loan_request_from_creation_to_completion(client: LoanClient, dialect: Dialect) -> None:
    dialect_client = client.with_options(dialect=dialect)
    await create(dialect_client)  # §1.1
    decision = await dialect_client.approve(FISCAL_CODE, approval_request(order_token="order-1"))  # §1.2
    assert isinstance(decision, Approved)
    async with aiohttp.ClientSession() as browser, browser.get(str(decision.redirect_url)) as page:  # §1.3
        assert page.status == 200
    await dialect_client.upload_documents(FISCAL_CODE, {"front": "...", "back": "..."})  # §1.4
    data = user_data()
    assert await dialect_client.complete(FISCAL_CODE, data) == data


@pytest.mark.parametrize("dialect", ["street_number", "civic_number"])
async def test_sandbox_and_client_of_one_dialect_agree(dialect: str) -> None:
    own_dialect = Dialect.street_number() if dialect == "street_number" else Dialect.civic_number()
    other = Dialect.civic_number() if dialect == "street_number" else Dialect.street_number()
    async with (
        Sandbox(dialect=dialect) as sandbox,  # type: ignore[arg-type]
        LoanClient(
            sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token, dialect=own_dialect
        ) as client,
    ):
        await create(client)
        with pytest.raises(RejectedError) as caught:
            await client.with_options(dialect=other).approve(FISCAL_CODE, approval_request(order_token="o"))
        assert "street_number" in [problem.field for problem in caught.value.problems]
        decision = await client.approve(FISCAL_CODE, approval_request(order_token="o", street_number="7"))
        assert decision.street_number == "7"
        wire_name = "streetNumber" if dialect == "street_number" else "civicNumber"
        assert decision.raw[wire_name] == "7"


async def test_created_then_approved_is_201_with_approved_true_and_a_redirect(client: LoanClient) -> None:
    await create(client)
    decision = await client.approve(FISCAL_CODE, approval_request())
    assert isinstance(decision, Approved)
    assert (decision.meta.status, decision.approved) == (201, True)
    assert decision.redirect_url is not None


async def test_created_then_refused_is_422_with_approved_false_and_no_redirect(client: LoanClient) -> None:
    await create(client)
    decision = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.approved) == (422, False)
    assert "redirectUrl" not in decision.raw


async def test_sandbox_refuses_an_amount_above_ten_thousand_euro(client: LoanClient) -> None:
    await create(client)
    assert isinstance(await client.approve(FISCAL_CODE, approval_request(amount=1_000_001)), Refused)


@pytest.mark.parametrize("tag", ["approved", "refused"])
async def test_second_approval_raises_already_evaluated(
    sandbox: Sandbox, client: LoanClient, tag: str
) -> None:
    await create(client)
    request = approval_request(email=f"a+{tag}@example.com")
    await client.approve(FISCAL_CODE, request)
    async with sandbox.client() as another:
        with pytest.raises(AlreadyEvaluatedError) as caught:
            await another.approve(FISCAL_CODE, request)
    assert not caught.value.after_retry
    assert caught.value.outcome == "unknown"


@pytest.mark.parametrize("tag", ["approved", "refused"])
async def test_approve_again_on_one_client_returns_its_decision(
    sandbox: Sandbox, client: LoanClient, tag: str
) -> None:
    await create(client)
    request = approval_request(email=f"a+{tag}@example.com")
    decision = await client.approve(FISCAL_CODE, request)
    again = await client.approve(FISCAL_CODE, request)
    assert attrs.evolve(again, meta=decision.meta) == decision
    assert sum(entry.operation == "approve" for entry in sandbox.journal) == 1


async def test_approve_after_already_evaluated_is_blocked(client: LoanClient) -> None:
    await create(client)
    with pytest.raises(AlreadyEvaluatedError):
        await client.approve(FISCAL_CODE, approval_request(email="a+already@example.com"))
    with pytest.raises(OutcomeUnknownError) as caught:
        await client.approve(FISCAL_CODE, approval_request(email="a+already@example.com"))
    assert caught.value.state == "lost"


async def test_evaluation_before_a_500_has_after_retry(sandbox: Sandbox, client: LoanClient) -> None:
    await create(client)
    with pytest.raises(AlreadyEvaluatedError) as caught:
        await client.approve(FISCAL_CODE, approval_request(email="a+500after@example.com"))
    assert caught.value.after_retry
    assert sum(entry.evaluated for entry in sandbox.journal) == 1


async def test_two_faults_before_the_decision_are_retried(sandbox: Sandbox, client: LoanClient) -> None:
    await create(client)
    decision = await client.approve(FISCAL_CODE, approval_request(email="a+500x2@example.com"))
    assert isinstance(decision, Approved)
    assert decision.meta.attempts == 3
    assert [entry.status for entry in sandbox.journal] == [201, 500, 500, 201]


async def test_refused_customer_is_not_evaluated_again(sandbox: Sandbox, client: LoanClient) -> None:
    await create(client)
    await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert [entry.status for entry in sandbox.journal] == [201, 422]


async def test_approve_without_created_request_is_user_not_found(client: LoanClient) -> None:
    with pytest.raises(UserNotFoundError):
        await client.approve(FISCAL_CODE, approval_request())


async def test_a_completion_needs_documents(client: LoanClient) -> None:
    await create(client)
    with pytest.raises(RejectedError):
        await client.complete(FISCAL_CODE, user_data())
    await client.upload_documents(FISCAL_CODE, {"front": "..."})
    assert await client.complete(FISCAL_CODE, user_data()) == user_data()


async def test_additional_data_is_required_if_the_created_request_needs_it(client: LoanClient) -> None:
    created = await client.create_request({"fiscalCode": FISCAL_CODE, "additionalDataNeeded": True})
    assert isinstance(created, Mapping)
    assert created["additionalDataNeeded"] is True
    with pytest.raises(InvalidRequestError):
        await client.approve(FISCAL_CODE, approval_request(), additional_data_needed=True)
    with pytest.raises(RejectedError) as caught:
        await client.approve(FISCAL_CODE, approval_request())
    assert {problem.field for problem in caught.value.problems} == {
        "residence",
        "residence_start_date",
        "educational_qualification",
        "children",
        "salary_type",
        "salary",
    }
    decision = await client.approve(
        FISCAL_CODE, approval_request(additional=additional_data()), additional_data_needed=True
    )
    assert decision.approved
