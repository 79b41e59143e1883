"""Requests of `loanasync.testing` with a tag, sent to the sandbox."""

from loanasync import LoanClient, Refused, RetryPolicy
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, fiscal_code


async def test_approval_request_tag_reaches_the_sandbox() -> None:
    async with (
        Sandbox() as sandbox,
        LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token) as client,
    ):
        code = fiscal_code()
        await client.create_request({"fiscalCode": code})
        quick = client.with_options(retry=RetryPolicy(base=0.001, cap=0.002))
        decision = await quick.approve(code, approval_request(tag="500x1.refused"))
    assert isinstance(decision, Refused)
    assert decision.meta.attempts == 2
