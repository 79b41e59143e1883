"""Other readings of the specification that the sandbox plays: R1, R2 and R6."""

import asyncio
from typing import Any

import pytest

from loanasync import Refused, UnexpectedResponseError
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request


@pytest.mark.parametrize("status", [201, 422])
async def test_refusal_of_either_status_is_refused(status: Any) -> None:
    """Reading R1."""
    async with Sandbox(refusal=status) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        decision = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.amount) == (status, 45_000)


async def test_validation_errors_with_422_are_unknown() -> None:
    """Reading R2."""
    async with Sandbox(validation=422) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        with pytest.raises(UnexpectedResponseError) as caught:
            await client.approve(FISCAL_CODE, approval_request(email="a+invalid.lastname@example.com"))
    assert (caught.value.outcome, caught.value.repeatable) == ("unknown", False)
    assert [problem.field for problem in caught.value.problems] == ["last_name"]


@pytest.mark.parametrize(("evaluates", "statuses"), [("customer", [201, 400]), ("order", [201, 201])])
async def test_each_customer_or_each_order_is_evaluated_once(evaluates: Any, statuses: list[int]) -> None:
    """Reading R6."""
    async with Sandbox(evaluates=evaluates) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        orders = [
            client.approve(FISCAL_CODE, approval_request(order_token=order), order_id=order)
            for order in ("first", "second")
        ]
        await asyncio.gather(*orders, return_exceptions=True)
        assert sorted(call.status or 0 for call in sandbox.journal.calls(operation="approve")) == statuses
